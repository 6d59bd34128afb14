"""Takes in trees that were boosted elsewhere: XGBoost's JSON or UBJ. What they are of is asked of XGBoost, once it has loaded them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import xgboost

from training.errors import DataError, first_line, shown
from training.models.base import FitResult, ImportedArtifact

MAX_REASONS: Final = 10
UBJ_HINT: Final = "write it again with Booster.save_model, as .json or .ubj"
_BOOSTERS: Final = ("gbtree", "dart")
_CATEGORIES: Final = "c"
"""Type of a feature whose splits are sets of categories."""
_VERSION: Final = re.compile(rb'"version"\s*:\s*\[(?P<json>\d+,\s*\d+)|version\[#L.{8}(?P<ubj>i.i.)', re.DOTALL)
"""Of what wrote the file: XGBoost reads files of later versions as if they were of its own."""
_OBJECTIVES: Final[Mapping[str, tuple[str, ...]]] = {
    "binary": ("binary:logistic", "reg:logistic"),
    "multiclass": ("multi:softprob",),
    "ranking": ("rank:ndcg", "rank:pairwise", "rank:map", "binary:logistic", "reg:squarederror"),
    "regression": (
        *("reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror", "reg:quantileerror"),
        *("reg:gamma", "reg:tweedie", "count:poisson"),
    ),
}
"""Task to the objectives whose predictions it can judge: probabilities where it needs such."""


def imported_trees(artifact: ImportedArtifact) -> FitResult:
    """Return the trees as `weights.ubj`, without the file's attributes and names.

    Where the file says at which round its validation was best, later rounds are left out, as XGBoost's own classes predict.

    Raises:
        DataError: `artifact.malformed`, `artifact.newer`, `artifact.mismatch`, every difference at once.
    """
    data = artifact.path.read_bytes()
    _check_version(data)
    try:
        booster = xgboost.Booster(model_file=bytearray(data))
        # Some of a file is looked at only when it is used: `base_score`.
        rounds = booster.num_boosted_rounds()
        learner = json.loads(booster.save_config())["learner"]
        best = int(booster.attr("best_iteration") or rounds)
    except (xgboost.core.XGBoostError, ValueError) as err:
        message = f"the file is not an XGBoost model: {first_line(err)}"
        raise DataError("artifact.malformed", message, hint=UBJ_HINT) from err
    if reasons := list(_differences(booster, learner, artifact)):
        more = f"; and {len(reasons) - MAX_REASONS} more" if len(reasons) > MAX_REASONS else ""
        message = f"the trees are not of this pipeline's input and task: {'; '.join(reasons[:MAX_REASONS])}{more}"
        raise DataError("artifact.mismatch", message, hint="train them on the cells of the transforms.json that the model is to have")
    if 0 <= best < rounds - 1:
        booster = booster[: best + 1]
    booster.feature_names = booster.feature_types = None
    booster.set_attr(**dict.fromkeys(booster.attributes()))
    architecture: dict[str, object] = {"objective": learner["objective"]["name"]}
    if artifact.num_classes is not None:
        architecture["num_class"] = artifact.num_classes
    return FitResult(
        weights_name="weights.ubj",
        weights=bytes(booster.save_raw("ubj")),
        architecture=architecture,
        best_epoch=booster.num_boosted_rounds(),
    )


def _check_version(data: bytes) -> None:
    for match in _VERSION.finditer(data):
        found = [int(number) for number in match["json"].split(b",")] if match["json"] else [match["ubj"][1], match["ubj"][3]]
        if found > [int(number) for number in xgboost.__version__.split(".")[:2]]:
            message = f"the file is of XGBoost {'.'.join(map(str, found))}, here is {xgboost.__version__}"
            raise DataError("artifact.newer", message, hint="train it with the version of docs/dependencies.md")


def _differences(booster: xgboost.Booster, learner: Mapping[str, Any], artifact: ImportedArtifact) -> Iterator[str]:
    """Yield what of the trees is not of the pipeline's input or task.

    Args:
        learner: XGBoost's configuration of them, as JSON.
    """
    names, num_features = [entry["name"] for entry in artifact.features], booster.num_features()
    if num_features != len(names):
        yield f"it has {num_features} features, the transforms have {len(names)}"
    found = booster.feature_names or names
    if sorted(found) == sorted(names) and found != names:
        yield f"its features are in another order: {', '.join(found[:MAX_REASONS])}; needed: {', '.join(names[:MAX_REASONS])}"
    for what, some in (("not in the transforms", set(found) - set(names)), ("missing", set(names) - set(found))):
        if some:
            yield f"features {what}: {', '.join(shown(name) for name in sorted(some)[:MAX_REASONS])}"
    if _CATEGORIES in (booster.feature_types or ()):
        yield "it splits by categories, the cells of transforms.json are numbers"
    task, objective = artifact.spec.evaluate.task, str(learner["objective"]["name"])
    if objective not in _OBJECTIVES[task]:
        yield f"its objective is {shown(objective)}, the task {task} can judge {', '.join(_OBJECTIVES[task])}"
    parameters = learner["learner_model_param"]
    if artifact.num_classes is not None and int(parameters["num_class"]) != artifact.num_classes:
        yield f"it has {parameters['num_class']} classes, the rows have {artifact.num_classes}"
    if int(parameters["num_target"]) > 1:
        yield f"it predicts {parameters['num_target']} targets"
    kind = str(learner["gradient_booster"]["name"])
    if kind not in _BOOSTERS:
        yield f"its booster is {shown(kind)}, needed: {' or '.join(_BOOSTERS)}"
