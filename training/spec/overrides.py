"""A trigger's parameters: `{as_of, force, train: {…}}`, checked by the spec's own models before anything starts.

Airflow enforces the JSON Schema of its Params, which lets unknown keys, NaN, wrong dates and rules across keys pass.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from training.errors import Problem, SpecError, shown
from training.spec.documents import MAX_DEPTH, Document, dotted
from training.spec.families import FAMILIES
from training.spec.loader import check_values
from training.spec.models import PipelineSpec
from training.spec.problems import in_order, problems_of
from training.spec.schedule import parse_as_of
from training.spec.train import Train
from training.spec.values import Section

MAX_CONF_BYTES: Final = 256 * 1024
SOURCE: Final = "trigger"


class TrainOverrides(Section):
    """What a trigger may change for one run; absent or null: as the spec says."""

    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    seed: int | None = None
    early_stopping: int | None = None


class Overrides(Section):
    as_of: Annotated[str, Field(max_length=40)] | None = None
    force: bool = False
    train: TrainOverrides = Field(default_factory=TrainOverrides)
    tune: dict[str, Any] = Field(default_factory=dict)
    """Keys of the spec's `tune` that are others for this run: a space of one's own, another objective."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunParameters:
    """What a trigger says of the run itself."""

    as_of: str | None = None
    """As given, checked: a day or a date-time with an offset. `settle_as_of` makes the instant of it."""
    force: bool = False
    """Do all work again, also what is done."""


_TITLES: Final[Mapping[str, tuple[str, str]]] = {
    "epochs": ("Epochs", "Passes over the training rows; boosting rounds for trees."),
    "batch_size": ("Batch size", "Rows of one step over all processes."),
    "learning_rate": ("Learning rate", ""),
    "weight_decay": ("Weight decay", ""),
    "seed": ("Seed", ""),
    "early_stopping": ("Early stopping", "Epochs without a better validation metric after which training ends."),
}


def apply_overrides(spec: PipelineSpec, conf: Mapping[str, Any]) -> tuple[PipelineSpec, RunParameters]:
    """Return the spec of one run and its parameters.

    Args:
        spec: as loaded.
        conf: the trigger's, from outside: anything may be in it.

    Raises:
        SpecError: every problem: `conf.unknown_key`, `conf.too_large`, `spec.too_deep`, `as_of.invalid`, `field.*`, or what the whole
            spec with the overrides in it breaks.
    """
    values = _bounded(conf)
    try:
        overrides = Overrides.model_validate(values)
    except ValidationError as err:
        found = problems_of(err, Overrides, Document(value=values))
        raise SpecError(SOURCE, in_order(_as_conf(problem, spec) for problem in found)) from err
    problems = _as_of_problems(overrides, spec)
    changed = spec
    try:
        changed = _changed(spec, overrides.train.model_dump(exclude_none=True), overrides.tune)
    except SpecError as err:
        problems += [_as_conf(problem, spec) for problem in err.problems]
    if problems:
        raise SpecError(SOURCE, problems)
    return changed, RunParameters(as_of=overrides.as_of, force=overrides.force)


def params_schema(spec: PipelineSpec) -> dict[str, dict[str, Any]]:
    """Return name to JSON Schema, default included, of each parameter of a trigger's form; `train` has the spec's values as defaults."""
    properties = {name: _property(spec.train, name) for name in TrainOverrides.model_fields if _takes(spec.train, name)}
    defaults = {name: schema["default"] for name, schema in properties.items()}
    return _study_schema(spec) | {
        "as_of": {
            "title": "As of",
            "description": "The instant whose past the run may see; empty: the logical date, or the last slot of the schedule.",
            # No `format`: where a validator of dates happens to be installed, Airflow would refuse a day without a time, which we take.
            "type": ["null", "string"],
            "maxLength": 40,
            "default": None,
        },
        "force": {
            "title": "Do everything again",
            "description": "Do the work of every stage again, also where its result is there.",
            "type": "boolean",
            "default": False,
        },
        "train": {
            "title": "Training",
            "description": f"Overrides of `train` for this run alone: {', '.join(properties)}.",
            "type": "object",
            "properties": properties,
            "additionalProperties": False,
            "default": defaults,
        },
    }


def _study_schema(spec: PipelineSpec) -> dict[str, dict[str, Any]]:
    if spec.tune is None:
        return {}
    text = "Keys of `tune` that are others for this run: its space, its objective, how many trials."
    return {"tune": {"title": "Study", "description": text, "type": "object", "default": {}}}


def _as_of_problems(overrides: Overrides, spec: PipelineSpec) -> list[Problem]:
    try:
        if overrides.as_of is not None:
            parse_as_of(overrides.as_of, spec.timezone)
    except SpecError as err:
        return list(err.problems)
    return []


def _changed(spec: PipelineSpec, train: Mapping[str, Any], tune: Mapping[str, Any]) -> PipelineSpec:
    if tune and spec.tune is None:
        problem = Problem(code="conf.unknown_key", message="the pipeline has no study to change", hint="add tune to its YAML", field="tune")
        raise SpecError(SOURCE, [problem])
    if not train and not tune:
        return spec
    whole = spec.model_dump(mode="json", by_alias=True)
    whole["train"] |= train
    if tune:
        whole["tune"] |= tune
    return check_values(whole, SOURCE)


@functools.cache
def _train_properties() -> dict[str, Any]:
    properties: dict[str, Any] = Train.model_json_schema()["properties"]
    return properties


def _takes(train: Train, name: str) -> bool:
    facts = FAMILIES.get(train.model)
    return facts is None or name not in facts.takes_not


def _property(train: Train, name: str) -> dict[str, Any]:
    own = _train_properties()[name]
    # An optional key is an anyOf with null in pydantic's schema; forms want one type, or a list of them.
    branch = next((part for part in own.get("anyOf", [own]) if part.get("type") != "null"), own)
    bounds = {key: branch[key] for key in ("minimum", "maximum", "exclusiveMinimum") if key in branch}
    value = getattr(train, name)
    kind = branch["type"] if value is not None else ["null", branch["type"]]
    title, description = _TITLES[name]
    return {"title": title, "type": kind, **bounds, "default": value} | ({"description": description} if description else {})


def _bounded(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conf as plain JSON values.

    Raises:
        SpecError: it is too large, too deep, or holds what is not JSON.
    """
    values = dict(conf)
    if _depth_exceeds(values, MAX_DEPTH):
        raise SpecError(SOURCE, [Problem(code="spec.too_deep", message=f"is nested more than {MAX_DEPTH} deep")])
    infinite = _not_finite(values, ())
    if infinite:
        raise SpecError(SOURCE, infinite)
    try:
        num_bytes = len(json.dumps(values, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError) as err:
        raise SpecError(SOURCE, [Problem(code="spec.encoding", message=f"is no JSON: {shown(str(err))}")]) from err
    if num_bytes > MAX_CONF_BYTES:
        message = f"has {num_bytes} bytes, at most {MAX_CONF_BYTES} are read"
        raise SpecError(SOURCE, [Problem(code="conf.too_large", message=message, hint="a trigger carries parameters, never data")])
    return values


def _depth_exceeds(value: Any, limit: int) -> bool:
    """Say whether collections are nested deeper than `limit`; iterative, because what comes from outside may be very deep."""
    level = [value]
    for _ in range(limit + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, Mapping) else outer if isinstance(outer, list | tuple) else ())
        ]
        if not level:
            return False
    return True


def _not_finite(value: Any, path: tuple[str | int, ...]) -> list[Problem]:
    if isinstance(value, float) and not math.isfinite(value):
        return [Problem(code="field.range", message=f"must be finite, got {value}", field=dotted(path))]
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    return [problem for key, part in inner for problem in _not_finite(part, (*path, key if isinstance(key, int) else str(key)))]


def _as_conf(problem: Problem, spec: PipelineSpec) -> Problem:
    """Return the problem under the code that triggers have for it, with the keys of the spec that no trigger may change named as such."""
    if problem.code != "spec.unknown_key":
        return problem
    key = problem.field.rsplit(".", 1)[-1]
    if problem.field.startswith("tune."):
        return dataclasses.replace(problem, code="conf.unknown_key")
    of_run = [name for name in Overrides.model_fields if name != "tune" or spec.tune is not None]
    known = list(TrainOverrides.model_fields) if problem.field.startswith("train.") else of_run
    close = difflib.get_close_matches(key[:80], known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"a trigger takes {', '.join(known)}; all else is the YAML's"
    return Problem(code="conf.unknown_key", message=problem.message, hint=hint, field=problem.field)
