"""Takes in trees that were boosted elsewhere: XGBoost's JSON or UBJ, checked before XGBoost reads it.

XGBoost trusts its files: a child's number outside of the tree would read memory that is not its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import xgboost
from numpy.typing import NDArray

from training.errors import DataError, shown
from training.models.base import Artifact, FitResult
from training.models.boosted_trees.ubjson import decode

MAX_JSON_BYTES: Final = 128 * 1024 * 1024
"""A number of a JSON text takes ten times its bytes in memory; UBJ may be larger."""
MAX_REASONS: Final = 10
UBJ_HINT: Final = "write it again with Booster.save_model, as .json or .ubj"
_NO_CHILD: Final = -1
_BOOSTERS: Final = ("gbtree", "dart")
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
Fields = Mapping[str, Any]


def imported_trees(artifact: Artifact) -> FitResult:
    """Return the trees as `weights.ubj`, without the file's attributes and names.

    Where the file says at which round its validation was best, later rounds are left out, as XGBoost's own classes predict.

    Raises:
        DataError: `artifact.malformed`, `artifact.too_large`, `artifact.newer`, `artifact.mismatch`, every difference at once.
    """
    values = _read(artifact.path)
    try:
        learner = values["learner"]
        reasons = list(_differences(learner, artifact))
        _check_version(values["version"])
        if not reasons:
            _check_trees(learner, num_features=len(artifact.features))
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as err:
        raise _malformed(f"{type(err).__name__}: {str(err)[:200]}") from err
    if reasons:
        more = f"; and {len(reasons) - MAX_REASONS} more" if len(reasons) > MAX_REASONS else ""
        message = f"the trees are not of this pipeline's input and task: {'; '.join(reasons[:MAX_REASONS])}{more}"
        raise DataError("artifact.mismatch", message, hint="train them on the cells of the transforms.json that the model is to have")
    booster = _loaded(artifact.path, learner)
    objective = str(learner["objective"]["name"])
    architecture: dict[str, object] = {"objective": objective}
    if artifact.num_classes is not None:
        architecture["num_class"] = artifact.num_classes
    rounds = booster.num_boosted_rounds()
    return FitResult(
        weights_name="weights.ubj",
        weights=bytes(booster.save_raw("ubj")),
        architecture=architecture,
        best_epoch=rounds,
        validation_loss=0.0,
        history=(),
        num_steps=0,
    )


def _read(path: Path) -> Fields:
    data = path.read_bytes()
    try:
        if _is_ubj(data):
            values = decode(data)
        elif len(data) > MAX_JSON_BYTES:
            message = f"the JSON has {len(data):,} bytes, at most {MAX_JSON_BYTES:,} are read"
            raise DataError("artifact.too_large", message, hint="write it as UBJ: Booster.save_model('model.ubj')")
        else:
            values = json.loads(data, object_pairs_hook=_fields)
        if not isinstance(values, dict):
            raise TypeError("it is not an object")
    except (ValueError, TypeError, RecursionError) as err:
        raise _malformed(f"{type(err).__name__}: {str(err)[:200]}") from err
    return values


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. With a key twice, XGBoost would read the first value, which nothing here has looked at."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a key is there twice, of {', '.join(shown(name) for name, _ in pairs[:MAX_REASONS])}")
    return found


def _is_ubj(data: bytes) -> bool:
    # The length of the first key comes next; in a JSON text it is a quotation mark or a blank.
    return data[1:2] in (b"L", b"l", b"I", b"i", b"U")


def _loaded(path: Path, learner: Fields) -> xgboost.Booster:
    booster = xgboost.Booster()
    data = path.read_bytes()
    named = path.with_name("artifact.ubj" if _is_ubj(data) else "artifact.json")
    try:
        named.write_bytes(data)
        booster.load_model(str(named))
        # Some of a file is looked at only when it is used: `base_score`.
        booster.num_boosted_rounds()
        best = learner.get("attributes", {}).get("best_iteration")
        if best is not None and 0 <= int(best) < booster.num_boosted_rounds() - 1:
            booster = booster[: int(best) + 1]
    except (xgboost.core.XGBoostError, ValueError, TypeError) as err:
        raise _malformed(str(err).splitlines()[0][:200]) from err
    finally:
        named.unlink(missing_ok=True)
    booster.feature_names = booster.feature_types = None
    booster.set_attr(**dict.fromkeys(booster.attributes()))
    return booster


def _check_version(version: Sequence[int]) -> None:
    found = tuple(int(number) for number in version)
    own = tuple(int(number) for number in xgboost.__version__.split(".")[:3])
    if found[:2] > own[:2]:
        message = f"the file is of XGBoost {'.'.join(map(str, found))}, here is {xgboost.__version__}"
        raise DataError("artifact.newer", message, hint="train it with the version of docs/dependencies.md")


def _differences(learner: Fields, artifact: Artifact) -> Iterator[str]:
    """Yield what of the file is not of the pipeline's input or task."""
    parameters, names = learner["learner_model_param"], [entry["name"] for entry in artifact.features]
    num_features = int(parameters["num_feature"])
    if num_features != len(names):
        yield f"it has {num_features} features, the transforms have {len(names)}"
    found = [str(name) for name in learner.get("feature_names") or ()]
    if found and found != names:
        if sorted(found) == sorted(names):
            yield f"its features are in another order: {', '.join(found[:MAX_REASONS])}; needed: {', '.join(names[:MAX_REASONS])}"
        for what, some in (("not in the transforms", set(found) - set(names)), ("missing", set(names) - set(found))):
            if some:
                yield f"features {what}: {', '.join(shown(name) for name in sorted(some)[:MAX_REASONS])}"
    task, objective = artifact.spec.evaluate.task, str(learner["objective"]["name"])
    if objective not in _OBJECTIVES[task]:
        yield f"its objective is {shown(objective)}, the task {task} can judge {', '.join(_OBJECTIVES[task])}"
    num_classes = int(parameters["num_class"])
    if artifact.num_classes is not None and num_classes != artifact.num_classes:
        yield f"it has {num_classes} classes, the rows have {artifact.num_classes}"
    if int(parameters.get("num_target", 1)) > 1:
        yield f"it predicts {parameters['num_target']} targets"
    booster = str(learner["gradient_booster"]["name"])
    if booster not in _BOOSTERS:
        yield f"its booster is {shown(booster)}, needed: {' or '.join(_BOOSTERS)}"


def _check_trees(learner: Fields, *, num_features: int) -> None:
    """Check that each tree is one, of the features that there are.

    Raises:
        ValueError: it is not; KeyError, TypeError: a field is missing or of another type.
    """
    boosted = learner["gradient_booster"]
    model = boosted["model"] if boosted["name"] == "gbtree" else boosted["gbtree"]["model"]
    trees, groups = model["trees"], _whole(model["tree_info"])
    if any(len(each) for each in model.get("cats", {}).values()):
        raise ValueError("it has tables of categories; train with numbers, as transforms.json makes them")
    num_groups = max(1, int(learner["learner_model_param"]["num_class"]))
    if len(trees) != len(groups) or len(trees) != int(model["gbtree_model_param"]["num_trees"]) or not len(trees):
        raise ValueError(f"{len(trees)} trees, {len(groups)} in tree_info, {model['gbtree_model_param']['num_trees']} in num_trees")
    if groups.min() < 0 or groups.max() >= num_groups:
        raise ValueError(f"tree_info is from {groups.min()} to {groups.max()}, there are {num_groups} groups")
    if boosted["name"] == "dart" and (len(boosted["weight_drop"]) != len(trees) or not np.isfinite(_numbers(boosted["weight_drop"])).all()):
        raise ValueError("weight_drop has not one finite number for each tree")
    rounds = _whole(model.get("iteration_indptr", [0, len(trees)]))
    if len(rounds) < 2 or rounds[0] != 0 or rounds[-1] != len(trees) or (np.diff(rounds) < 0).any():
        raise ValueError("iteration_indptr does not divide the trees into rounds")
    for number, tree in enumerate(trees):
        # XGBoost puts a tree at the place that it names, wherever that is.
        fault = _fault(tree, num_features) if int(tree["id"]) == number else f"its id is {int(tree['id'])}"
        if fault:
            raise ValueError(f"tree {number}: {fault}")


def _fault(tree: Fields, num_features: int) -> str:
    """Return what is wrong with a tree, or nothing."""
    left, right, parents, features = (_whole(tree[name]) for name in ("left_children", "right_children", "parents", "split_indices"))
    conditions, weights = _numbers(tree["split_conditions"]), _numbers(tree["base_weights"])
    size = int(tree["tree_param"]["num_nodes"])
    others = (tree["default_left"], tree["loss_changes"], tree["sum_hessian"])
    lengths = {len(each) for each in (left, right, parents, features, conditions, weights, *others)}
    if lengths != {size} or size == 0:
        return f"num_nodes is {size}, its arrays have {', '.join(map(str, sorted(lengths)))} entries"
    if int(tree["tree_param"].get("size_leaf_vector", 1)) > 1:
        return "its leaves are vectors"
    if len(tree.get("categories_nodes", ())) or np.any(_whole(tree.get("split_type", []))):
        return "it splits by categories; train with numbers, as transforms.json makes them"
    reached = np.zeros(size, dtype=bool)
    reached[0] = True
    level = np.array([0])
    while len(level):
        inner = level[left[level] != _NO_CHILD]
        if (right[level][left[level] == _NO_CHILD] != _NO_CHILD).any():
            return "a node has one child"
        children = np.concatenate([left[inner], right[inner]])
        if len(children) and (children.min() < 1 or children.max() >= size):
            return "a child is not one of its nodes"
        if len(np.unique(children)) != len(children) or reached[children].any() or (parents[children] != np.tile(inner, 2)).any():
            return "a node has two parents, or another than it says"
        if ((features[inner] < 0) | (features[inner] >= num_features)).any():
            return f"it splits by a feature that is not one of the {num_features}"
        reached[children] = True
        level = children
    if not np.isfinite(conditions[reached]).all() or not np.isfinite(weights[reached]).all():
        return "a number is not finite"
    return ""


def _whole(values: Any) -> NDArray[np.int64]:
    found = _array(values)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iub"):
        raise TypeError("a list of whole numbers is needed")
    return found.astype(np.int64)


def _numbers(values: Any) -> NDArray[np.float64]:
    found = _array(values)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iuf"):
        raise TypeError("a list of numbers is needed")
    return found.astype(np.float64)


def _array(values: Any) -> NDArray[Any]:
    # Of texts, numpy would make an array in which each entry has the width of the longest.
    if isinstance(values, list) and not all(isinstance(value, int | float) for value in values):
        raise TypeError("a list of numbers is needed")
    return np.asarray(values)


def _malformed(reason: str) -> DataError:
    return DataError("artifact.malformed", f"the file is not an XGBoost model: {reason}", hint=UBJ_HINT)
