"""The descriptor of `sklearn`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pydantic import ConfigDict, Field

from training.spec.descriptors.families import NEURAL_ONLY, FamilyDescriptor
from training.spec.rules.rule_problems import Violation
from training.spec.scalar_types import Line, Section, Setting, in_yaml

if TYPE_CHECKING:
    # Descriptors import this module, and the sections import the descriptors.
    from training.spec.sections.train import Train

OF_THE_TRAINING: Final = {"random_state": "train.seed", "n_jobs": "train.placement.cpus"}
"""Parameters of estimators that follow from another key."""


class SklearnSettings(Section):
    """Of `sklearn`: the estimator, and its parameters by their own names, which `nightshift check` compares with its signature."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Setting]

    estimator: Line
    """Import path of a classifier or regressor. Example: `sklearn.ensemble.HistGradientBoostingRegressor`."""
    trusted: list[Line] = Field(default_factory=list)
    """Import paths of classes of other distributions than numpy, scipy and scikit-learn that the fitted estimator consists of.
    Example: `[imblearn.ensemble.EasyEnsembleClassifier]`."""


def parameters_follow_the_training(train: Train) -> Iterator[Violation]:
    """Yield a violation for an estimator that is not trusted, and for each parameter that another key gives."""
    estimator, trusted = train.settings.get("estimator"), train.settings.get("trusted")
    if isinstance(estimator, str) and isinstance(trusted, list) and not estimator.startswith("sklearn.") and estimator not in trusted:
        message = f"{in_yaml(estimator)} is not of scikit-learn, and train.settings.trusted does not list it"
        hint = "add it to trusted, if you trust its distribution as you trust the code of a model"
        yield Violation(("train", "settings", "estimator"), "estimator.untrusted", message, hint)
    for name, key in OF_THE_TRAINING.items():
        if name in train.settings:
            yield Violation(("train", "settings", name), "field.conflict", f"{name} is {key}", f"remove it, and set {key}")


DESCRIPTOR: Final = FamilyDescriptor(
    settings=SklearnSettings,
    tasks=("binary", "multiclass", "regression"),
    libraries=("scikit-learn", "skops"),
    distributed=False,
    ignored_keys=(*NEURAL_ONLY, "epochs", "learning_rate", "early_stopping", "checkpoint", "from_checkpoint"),
    weighted_tasks=("binary", "multiclass", "regression"),
    uses_gpus=False,
    uses_torch=False,
    rules=(parameters_follow_the_training,),
    settings_check="training.models.sklearn.estimators:violations",
    yaml_settings=("estimator", "trusted"),
)
