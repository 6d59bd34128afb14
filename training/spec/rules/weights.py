"""Rules about the weights of rows and classes: which column has them, and which trainings count them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from training.spec.descriptors.families import FAMILIES
from training.spec.reader.problems import nearest
from training.spec.reader.yaml import Path
from training.spec.rules.rule_problems import Violation
from training.spec.scalar_types import in_yaml
from training.spec.sections.data import Data
from training.spec.sections.evaluation import Evaluate
from training.spec.sections.train import Train

NUMBERS: Final = ("int8", "int16", "int32", "int64", "float", "double")
WEIGHT: Final[Path] = ("data", "weight")
CLASS_WEIGHT: Final[Path] = ("train", "class_weight")


def weight_is_a_number(data: Data) -> Iterator[Violation]:
    """Yield a violation where the column of weights is missing, or has no numbers."""
    if data.weight is None:
        return
    types = data.source.types
    if data.weight not in types:
        message = f"{data.weight} is not a column of table {data.source.table}"
        yield Violation(WEIGHT, "column.unknown", message, nearest(data.weight, types))
    elif types[data.weight] not in NUMBERS:
        message = f"{data.weight} is of type {types[data.weight]}: weights are numbers"
        yield Violation(WEIGHT, "column.type", message, "name another column, or derive a number in data.source.derive")


def weights_are_counted(data: Data, train: Train, evaluate: Evaluate) -> Iterator[Violation]:
    """Yield a violation for each key of weights that the training would not count."""
    facts = FAMILIES.get(train.model)
    given = [(path, key) for path, key, value in _keys(data, train) if value is not None]
    for path, key in given:
        if evaluate.task in ("ranking", "language") or (facts is not None and evaluate.task not in facts.weighted_tasks):
            message = f"{key} has no effect on {train.model} for the task {evaluate.task}"
            yield Violation(path, "field.conflict", message, "leave it out")
    if train.class_weight is not None and evaluate.task == "regression":
        yield Violation(CLASS_WEIGHT, "field.conflict", "the task regression has no classes", "leave it out, or set data.weight")


def class_weights_name_classes(data: Data, train: Train, evaluate: Evaluate) -> Iterator[Violation]:
    """Yield a violation for each class weight whose name cannot be a class of a label without names."""
    if not isinstance(train.class_weight, dict) or evaluate.task not in ("binary", "multiclass"):
        return
    if data.has_text_label:
        return
    for name in train.class_weight:
        if not name.isdecimal() or (evaluate.task == "binary" and name not in ("0", "1")):
            message = f"{in_yaml(name)} is not a class of a label that is a number"
            hint = "write the classes as '0' and '1'" if evaluate.task == "binary" else "write the classes as '0', '1', '2'"
            yield Violation((*CLASS_WEIGHT, name), "class_weight.unknown", message, hint)


def _keys(data: Data, train: Train) -> Iterator[tuple[Path, str, object]]:
    yield WEIGHT, "weight", data.weight
    yield CLASS_WEIGHT, "class_weight", train.class_weight
