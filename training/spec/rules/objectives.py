"""The rule of families whose settings have an objective: what it needs, and which task it is for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from training.spec.reader.yaml import Path
from training.spec.rules.rule_problems import Violation

if TYPE_CHECKING:
    # Descriptors import this module, and the sections import the descriptors.
    from training.spec.sections.evaluation import Evaluate
    from training.spec.sections.train import Train

LOG_OBJECTIVES: Final = ("poisson", "log")


def objective_fits(train: Train, evaluate: Evaluate) -> Iterator[Violation]:
    """Yield a violation where an objective lacks its key, has one without effect, or is not for the task."""
    path: Path = ("train", "settings")
    objective, alpha = train.settings.get("objective"), train.settings.get("quantile_alpha")
    if objective is not None and evaluate.task != "regression":
        message = f"the objective {objective} is for the task regression, evaluate.task is {evaluate.task}"
        yield Violation((*path, "objective"), "field.conflict", message, "remove it")
    if objective == "quantile" and alpha is None:
        message = "the key quantile_alpha is missing: the objective quantile needs it"
        yield Violation((*path, "quantile_alpha"), "field.missing", message, "write the quantile to predict: quantile_alpha: 0.9")
    if objective != "quantile" and alpha is not None:
        message = "quantile_alpha has no effect without the objective quantile"
        yield Violation((*path, "quantile_alpha"), "field.conflict", message, "set objective: quantile, or remove it")
