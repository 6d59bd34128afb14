"""Rules of the transform `target_encode`."""

from __future__ import annotations

from collections.abc import Iterator

from training.spec.reader.yaml import Path
from training.spec.rules.rule_problems import Violation
from training.spec.sections.evaluation import Evaluate
from training.spec.sections.prepare import Feature, Prepare


def target_encoding_fits(path: Path, feature: Feature) -> Iterator[Violation]:
    """Yield a violation for each key that has no effect on the feature's transform."""
    if feature.transform == "target_encode":
        if feature.fill is not None:
            message = "the transform target_encode gives missing values the mean of all training rows"
            yield Violation((*path, "fill"), "field.conflict", message, "leave it out")
        return
    for key in ("smoothing", "folds"):
        if getattr(feature, key) is not None:
            message = f"{key} has no effect on the transform {feature.transform}"
            yield Violation((*path, key), "field.conflict", message, "only target_encode has it; leave it out")


def label_has_a_mean(prepare: Prepare, evaluate: Evaluate) -> Iterator[Violation]:
    """Yield a violation for each `target_encode` where the label is one of several classes, whose numbers have no mean."""
    if evaluate.task not in ("multiclass", "language"):
        return
    for name, feature in prepare.features.items():
        if feature.transform == "target_encode":
            message = f"the transform target_encode is the mean of the label; the task {evaluate.task} has none"
            yield Violation(("prepare", "features", name, "transform"), "field.conflict", message, "use category or hash")
