"""Labels of type string: classes with names, numbered once per dataset; and scores brought into the order of those numbers.

The classes of the training rows come first, in the order of their names (for a binary label the negative one, then the positive one).
A class of several that only the validation or test rows have comes after them: no model can learn it, its probability is 0, and
the metrics count that as an error of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from training.data.dataset.scratch_arrays import slices_of
from training.data.join.contract import LABEL
from training.data.split.by_time import SPLITS
from training.errors import DataError, shown

if TYPE_CHECKING:
    from training.data.dataset.manifest import DatasetMeta
    from training.data.dataset.scratch_arrays import ColumnBatches, ScratchArrays

MAX_CLASSES: Final = 1000
MAX_NAMES_SHOWN: Final = 5

Floats = NDArray[np.float64]


class ClassesMeta(TypedDict):
    """What a dataset's meta says of a label with names."""

    classes: list[str]
    unseen_classes: dict[str, list[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Classes:
    """The names of a label's classes; the number of a class is its place."""

    names: tuple[str, ...]
    unseen: Mapping[str, tuple[str, ...]]
    """Split to the names that no split before it has, for validation and test; splits without such names are left out."""

    @property
    def learned(self) -> tuple[str, ...]:
        """The classes that a model is made with: those of the training rows, then those that the validation rows add."""
        return self.names[: len(self.names) - len(self.unseen.get("test", ()))]

    def meta(self) -> ClassesMeta:
        """Return the dataset's meta."""
        return {"classes": list(self.names), "unseen_classes": {split: list(names) for split, names in self.unseen.items()}}

    @classmethod
    def of(cls, meta: DatasetMeta) -> Classes | None:
        """Return what `meta` wrote; None for labels without names."""
        if "classes" not in meta:
            return None
        return cls(names=tuple(meta["classes"]), unseen={split: tuple(names) for split, names in meta["unseen_classes"].items()})


def number_classes(
    frame: ColumnBatches, rows: Mapping[str, NDArray[np.int64]], arrays: ScratchArrays, *, column: str, positive: str | None
) -> tuple[Floats, Classes]:
    """Return the number of each row's class, [n] float64, and the classes.

    Args:
        frame: its labels are texts, none null.
        rows: of each split, together all of them.
        arrays: makes the arrays.
        column: of the label, for messages.
        positive: the positive class of a binary label; None for several classes.

    Raises:
        DataError: `label.classes`: a binary label has other than two classes, or lacks the positive one; more than 1,000 classes.
    """
    code_of: dict[str, int] = {}
    codes = arrays.filled(_label_codes(frame, code_of, column, positive), frame.num_rows, np.int16)
    found = list(code_of)
    names: list[str] = []
    unseen: dict[str, tuple[str, ...]] = {}
    for split in SPLITS:
        is_there = np.zeros(len(found), dtype=bool)
        for part in slices_of(len(rows[split])):
            is_there[codes[rows[split][part]]] = True
        new = sorted({found[code] for code in np.flatnonzero(is_there)} - set(names))
        names += new
        if new and split != SPLITS[0]:
            unseen[split] = tuple(new)
    if positive is not None:
        _check_binary(names, column, positive)
        names, unseen = sorted(names, key=lambda name: name == positive), {}
    number_of = {name: number for number, name in enumerate(names)}
    numbers = np.array([number_of.get(name, 0) for name in found], dtype=np.float64)
    numbered = (numbers[codes[part]] for part in slices_of(len(codes)))
    return arrays.filled(numbered, len(codes), np.float64), Classes(names=tuple(names), unseen=unseen)


def _label_codes(frame: ColumnBatches, code_of: dict[str, int], column: str, positive: str | None) -> Iterator[NDArray[np.int16]]:
    """Yield the place of each row's name in `code_of`, some rows at a time; it gets the names as they appear.

    Raises:
        DataError: `label.classes`, more than 1,000 names: a column of texts with a value per row is not kept in memory.
    """
    for labels in frame.column_batches(LABEL):
        encoded = pc.dictionary_encode(labels.combine_chunks())
        here = [code_of.setdefault(name, len(code_of)) for name in encoded.dictionary.to_pylist()]
        if len(code_of) > MAX_CLASSES:
            if positive is not None:
                _check_binary(list(code_of), column, positive)
            message = f"label {shown(column)} has more than {MAX_CLASSES:,} different values, as many classes are possible"
            raise DataError("label.classes", message, hint="check data.label.column, or derive a text with fewer values")
        yield np.array(here, dtype=np.int16)[np.asarray(encoded.indices)]


def check_class_numbers(labels: NDArray[np.floating[Any]], *, is_binary: bool = False) -> None:
    """Check that each label, [n], is the number of a class: an integer from 0 to 999, or 0 or 1 where `is_binary`.

    Raises:
        DataError: `label.not_a_class`.
    """
    limit = 2 if is_binary else MAX_CLASSES
    num_wrong, first = 0, 0.0
    for part in slices_of(len(labels)):
        values = labels[part]
        wrong = values[~((values >= 0) & (values < limit) & (values == np.floor(values)))]
        first = float(wrong[0]) if len(wrong) and not num_wrong else first
        num_wrong += len(wrong)
    if not num_wrong:
        return
    message = f"{num_wrong} of {len(labels)} labels are not a class, the first is {first:.12g}"
    if is_binary:
        hint = "classes are 0 and 1: state data.label.rule, derive them in data.source.derive, or set another evaluate.task"
        raise DataError("label.not_a_class", message, hint=hint)
    hint = (
        f"classes are integers from 0 to {MAX_CLASSES - 1}: number them in data.source.derive, declare the label as string, "
        "or set evaluate.task: regression"
    )
    raise DataError("label.not_a_class", message, hint=hint)


def _check_binary(names: Sequence[str], column: str, positive: str) -> None:
    listed = ", ".join(shown(name) for name in sorted(names)[:MAX_NAMES_SHOWN])
    if len(names) > 2:
        count = f"more than {MAX_CLASSES:,}" if len(names) > MAX_CLASSES else f"{len(names):,}"
        message = f"label {shown(column)} has {count} classes, a binary label has two: {listed}"
        raise DataError("label.classes", message, hint="set evaluate.task: multiclass, or derive a text with two values")
    if positive not in names:
        message = f"label {shown(column)}: no row has the positive class {shown(positive)}; found: {listed}"
        raise DataError("label.classes", message, hint="correct data.label.positive")


def align_scores(scores: Floats, known: Sequence[str], classes: Classes | None) -> Floats:
    """Return a model's scores in the order of a dataset's classes.

    Args:
        scores: [n] probabilities of the positive class, or [n, classes of the model].
        known: names of the model's classes; empty for a model without names.
        classes: of the dataset; None where its labels are numbers.

    Returns:
        [n]; or [n, classes], 0 for a class that the model does not know, and after them a column for each class that only it knows.

    Raises:
        DataError: `label.classes`: of several classes, only the model or only the dataset has names, so their orders cannot be compared.
    """
    if scores.ndim == 2 and (classes is None) == bool(known):
        which = ("numbers", "names") if classes is not None else ("names", "numbers")
        message = f"the model to compare with was trained on classes with {which[0]}, the dataset has {which[1]}"
        raise DataError("label.classes", message, hint="keep the type of the label, or set a new promote.model for the new labels")
    if classes is None or not known:
        return scores
    if scores.ndim == 1:
        # The positive class was the other one when the model was made.
        return 1 - scores if known[-1] == classes.names[0] and len(classes.names) == 2 else scores
    places = {name: number for number, name in enumerate(known[: scores.shape[1]])}
    foreign = [name for name in places if name not in classes.names]
    aligned = np.zeros((len(scores), len(classes.names) + len(foreign)))
    for number, name in enumerate([*classes.names, *foreign]):
        if name in places:
            aligned[:, number] = scores[:, places[name]]
    return aligned
