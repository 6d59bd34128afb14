"""The estimator that a spec names, and whether it takes what the spec gives it.

A YAML names classes by their import path. So only a class of a distribution that is made for scikit-learn is imported, and only a
classifier or regressor is called, with plain values of parameters that it has.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import get_tags
from sklearn.utils._param_validation import validate_parameter_constraints
from sklearn.utils.validation import has_fit_parameter

from training.code.carried import distributions_with
from training.contracts import JsonValue
from training.errors import Problem, SpecError, shown
from training.models.sklearn.family import OF_THE_TRAINING
from training.spec import PipelineSpec
from training.spec.reader.problems import nearest
from training.spec.reader.yaml import Path, dotted
from training.spec.rules.rule_problems import Violation
from training.spec.rules.tuning import SETTINGS

OWN: Final = "scikit-learn"
OF_WHOLE_LABELS: Final = re.compile(
    r"poisson|gamma|tweedie|mape|percentage|msle|squaredlogerror|loglin|cross_?entropy|xentropy|survival|logistic$|^log$", re.IGNORECASE
)
"""In the values of `OBJECTIVES`: what depends on more of a label than its difference from another one."""
OBJECTIVES: Final = ("loss", "criterion", "objective", "loss_function", "link")
"""Parameters that say what is learned."""
PATH: Final[Path] = ("train", "settings")
IMPORT_PATH: Final = "write the import path of a class: sklearn.ensemble.RandomForestRegressor"


def made(spec: PipelineSpec) -> Any:
    """Return the estimator, not fitted, with `train.seed` and the threads of the training.

    Raises:
        SpecError: what `violations` finds.
    """
    if found := list(violations(spec)):
        raise SpecError(
            "train.settings", [Problem(code=each.code, message=each.message, hint=each.hint, field=dotted(each.path)) for each in found]
        )
    cls = _class_at(str(spec.train.settings["estimator"]))
    values, known = _parameters(spec), _known(cls)
    if "random_state" in known:
        values["random_state"] = spec.train.seed
    if "n_jobs" in known and spec.train.threads_per_process > 1:
        values["n_jobs"] = spec.train.threads_per_process
    return cls(**values)


def needs_whole_labels(estimator: Any) -> bool:
    """Return whether an estimator learns a logarithm or a share of the label. Others learn the exact difference from the mean."""
    given = estimator.get_params(deep=False)
    return bool(get_tags(estimator).target_tags.positive_only) or any(OF_WHOLE_LABELS.search(str(given.get(name))) for name in OBJECTIVES)


def type_name(place: str) -> str:
    """Return the module and name of the class at an import path, which may be that of another module."""
    cls = _class_at(place)
    return f"{cls.__module__}.{cls.__name__}"


def requirement_of(place: str) -> str:
    """Return `distribution==version` of what has the module of an import path."""
    distribution = _made_for_it(place)[0]
    return f"{distribution}=={importlib.metadata.version(distribution)}"


def violations(spec: PipelineSpec) -> Iterator[Violation]:
    """Yield what is wrong with `train.settings`, and with the settings that a study searches, by the estimator itself."""
    estimator, trusted = str(spec.train.settings["estimator"]), spec.train.settings["trusted"]
    places: list[tuple[Path, str]] = [
        ((*PATH, "estimator"), estimator),
        *(((*PATH, "trusted", n), place) for n, place in enumerate(trusted)),
    ]
    faults = [fault for path, place in places for fault in _faults_of_class(place, path)]
    yield from faults
    if faults:
        return
    cls, task = _class_at(estimator), spec.evaluate.task
    wanted, kind = (RegressorMixin, "regressor") if task == "regression" else (ClassifierMixin, "classifier")
    if not issubclass(cls, BaseEstimator) or not issubclass(cls, wanted):
        yield Violation((*PATH, "estimator"), "model.task", f"{estimator} is no {kind}, evaluate.task is {task}", "name another class")
        return
    given = _parameters(spec)
    known = _known(cls)
    needed = [name for name, parameter in known.items() if parameter.default is parameter.empty]
    if needed:
        message = f"{estimator} needs {needed[0]}, which is an estimator or a function: settings are plain values"
        yield Violation((*PATH, "estimator"), "estimator.unknown", message, "write a family (docs/extending.md)")
        return
    faults = [fault for name, value in given.items() for fault in _faults_of_value(cls, known, name, value, (*PATH, name))]
    for name, space in spec.tune.space.items() if spec.tune is not None else ():
        for value in space.choices if space.choices is not None else space.bounds:
            if name.startswith(SETTINGS):
                faults += _faults_of_value(cls, known, name.removeprefix(SETTINGS), value, ("tune", "space", name))
    yield from dict.fromkeys(faults)
    if not faults:
        yield from _faults_of_use(cls(**given), spec)


def _faults_of_class(place: str, path: Path) -> Iterator[Violation]:
    """Yield why the class at an import path cannot be used."""
    module, _, name = place.rpartition(".")
    if not _made_for_it(place):
        message = f"{shown(place)} is of no installed distribution that names {OWN} in its metadata"
        hint = "install the distribution where stages run; a class of your own package needs a family (docs/extending.md)"
        yield Violation(path, "estimator.unknown", message, hint)
        return
    if not module:
        yield Violation(path, "estimator.unknown", f"{shown(place)} is a package, and no class", IMPORT_PATH)
        return
    try:
        found = importlib.import_module(module)
    except ImportError as err:
        yield Violation(path, "estimator.unknown", f"{shown(place)} cannot be imported: {err}", IMPORT_PATH)
        return
    if not isinstance(getattr(found, name, None), type):
        classes = [key for key, value in vars(found).items() if isinstance(value, type)]
        yield Violation(path, "estimator.unknown", f"{module} has no class {shown(name)}", nearest(name, classes))


def _made_for_it(place: str) -> list[str]:
    """Return the distributions with the module of an import path that are scikit-learn, or are made for it."""
    found = distributions_with(place.partition(".")[0])
    return [name for name in found if name == OWN or any(re.match(rf"{OWN}\b", need) for need in importlib.metadata.requires(name) or ())]


def _class_at(place: str) -> Any:
    module, _, name = place.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _parameters(spec: PipelineSpec) -> dict[str, JsonValue]:
    return {name: value for name, value in spec.train.settings.items() if name not in ("estimator", "trusted", *OF_THE_TRAINING)}


def _known(cls: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a class; where it hands others on (`**kwargs`), also those of the classes that it derives from."""
    found: dict[str, inspect.Parameter] = {}
    for base in (base for base in cls.__mro__ if "__init__" in vars(base)):
        parameters = inspect.signature(base.__init__).parameters
        plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        found = {**{name: each for name, each in parameters.items() if name != "self" and each.kind in plain}, **found}
        if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
            break
    return found


def _faults_of_value(cls: Any, known: Mapping[str, inspect.Parameter], name: str, value: object, path: Path) -> Iterator[Violation]:
    if name in OF_THE_TRAINING:
        yield Violation(path, "field.conflict", f"{name} is {OF_THE_TRAINING[name]}", "remove it")
        return
    if name not in known:
        yield Violation(path, "spec.unknown_key", f"{cls.__name__} has no parameter {shown(name)}", nearest(name, known))
        return
    try:
        validate_parameter_constraints(getattr(cls, "_parameter_constraints", {}), {name: value}, caller_name=cls.__name__)
    except ValueError as err:
        yield Violation(path, "estimator.parameter", str(err), f"see the documentation of {cls.__name__}")


def _faults_of_use(estimator: Any, spec: PipelineSpec) -> Iterator[Violation]:
    """Yield what an estimator with these parameters cannot do."""
    name, path = type(estimator).__name__, (*PATH, "estimator")
    if spec.evaluate.task != "regression" and not hasattr(estimator, "predict_proba"):
        message = f"{name} gives no probabilities with these parameters"
        yield Violation(path, "model.task", message, "name a class that has predict_proba: metrics and service need them")
    weighted = [
        key for key, value in (("data.weight", spec.data.weight), ("train.class_weight", spec.train.class_weight)) if value is not None
    ]
    if weighted and not has_fit_parameter(estimator, "sample_weight"):
        yield Violation(path, "model.weight", f"{weighted[0]} is set, and {name} counts no weights", f"remove {' and '.join(weighted)}")
