"""A trigger's parameters, checked by the spec's own models before anything starts.

They are `{as_of, force, promote, snapshot, registration: {…}, data: {source: {window}}, train: {…}, evaluate: {…}, tune: {…}}`. Of the
spec's sections it takes:

    data      source.window
    train     all keys but placement.pool and refit, and no class of one's own as its model
    evaluate  the thresholds: `EvaluateOverrides`
    tune      all keys

What says which code runs, and what Airflow knows before a run begins, is the YAML's alone.

Airflow enforces the JSON Schema of its Params, which lets unknown keys, NaN, wrong dates and rules across keys pass.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from training.contracts import JsonObject, JsonValue, json_object
from training.errors import Problem, SpecError, shown, spec_error
from training.spec.descriptors.families import FAMILIES
from training.spec.pipeline_spec import PipelineSpec
from training.spec.reader.loader import check_values
from training.spec.reader.problems import in_order, problems_of
from training.spec.reader.yaml import MAX_DEPTH, Document, dotted
from training.spec.registration import Registration
from training.spec.scalar_types import Section
from training.spec.schedule.instants import parse_as_of

MAX_CONF_BYTES: Final = 256 * 1024
SOURCE: Final = "trigger"
SNAPSHOT_PATTERN: Final = "^([0-9a-f]{16}|[0-9a-f]{64})$"
"""The version of a snapshot, or its whole digest."""


MERGED: Final = ("placement", "checkpoint", "settings")
"""Mappings of `train` of which a trigger replaces single keys; others it replaces whole."""


class EvaluateOverrides(Section):
    """Thresholds that a trigger may change for one run; absent or null: as the spec says. A run's decision records them.

    What is within a mapping is checked with the whole spec.
    """

    threshold: float | None = None
    minimum: dict[str, float | None] = Field(default_factory=dict)
    maximum: dict[str, float | None] = Field(default_factory=dict)
    improvement: dict[str, object] = Field(default_factory=dict)
    """Replaces the spec's, absolute or relative."""
    confidence: float | None = None
    slice_support: int | None = None
    slice_drop: float | None = None
    fairness: dict[str, object] = Field(default_factory=dict)
    latency_ms: dict[str, object] = Field(default_factory=dict)
    checks: dict[str, object] = Field(default_factory=dict)


class SourceOverrides(Section):
    window: str | None = None
    """Of a run that takes a new snapshot; one that is named has its rows."""


class DataOverrides(Section):
    source: SourceOverrides = Field(default_factory=SourceOverrides)


class Overrides(Section):
    as_of: Annotated[str, Field(max_length=40)] | None = None
    force: bool = False
    promote: bool = True
    snapshot: Annotated[str, Field(pattern=SNAPSHOT_PATTERN)] | None = None
    """Version or digest of an existing snapshot of the pipeline, which the run takes instead of its sources."""
    registration: Registration | None = None
    """A model from outside, which the run judges instead of training one."""
    data: DataOverrides = Field(default_factory=DataOverrides)
    train: dict[str, object] = Field(default_factory=dict)
    """Keys of the spec's `train` that this run replaces; null: as the spec says, but in `settings`, where it is a value."""
    evaluate: EvaluateOverrides = Field(default_factory=EvaluateOverrides)
    tune: dict[str, object] = Field(default_factory=dict)
    """Keys of the spec's `tune` that this run replaces: the space, the objective."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunParameters:
    """What a trigger says of the run itself."""

    as_of: str | None = None
    """As given, checked: a day or a date-time with an offset. `settle_as_of` makes the instant of it."""
    force: bool = False
    """Do all work again, also what is done."""
    promote: bool = True
    """Decide about the model. A run that may not records no decision, and its snapshot is no reference for later ones."""
    snapshot: str | None = None
    """Version or digest of the snapshot that the run takes instead of its sources."""
    registration: Registration | None = None
    """The model from outside that the run judges."""
    overrides: JsonObject = field(default_factory=dict)
    """Dotted key of the spec to the value that the trigger gave instead; keys with the spec's own value are left out."""


def apply_overrides(spec: PipelineSpec, conf: Mapping[str, object]) -> tuple[PipelineSpec, RunParameters]:
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
        changed = _changed(spec, overrides)
        problems += [*_without_effect(overrides, _differences(spec, changed)), *_of_another_pool(spec, changed)]
        problems += _of_the_yaml_alone(spec, changed)
    except SpecError as err:
        problems += [_as_conf(problem, spec) for problem in err.problems]
    if problems:
        raise SpecError(SOURCE, problems)
    return changed, RunParameters(
        as_of=overrides.as_of,
        force=overrides.force,
        promote=overrides.promote,
        snapshot=overrides.snapshot,
        registration=overrides.registration,
        overrides=_differences(spec, changed),
    )


def _as_of_problems(overrides: Overrides, spec: PipelineSpec) -> list[Problem]:
    try:
        if overrides.as_of is not None:
            parse_as_of(overrides.as_of, spec.timezone)
    except SpecError as err:
        return list(err.problems)
    return []


def _without_effect(overrides: Overrides, differences: JsonObject) -> list[Problem]:
    """Return a problem for each changed key that a run has no use for where its model comes from outside."""
    if overrides.registration is None:
        return []
    # Not for each key that is given: Airflow's form sends the spec's values.
    keys = [key for key in differences if key.partition(".")[0] in ("train", "tune")]
    message = "has no effect: the model comes from outside"
    return [Problem(code="field.conflict", message=message, hint="leave it out", field=key) for key in keys]


def _of_another_pool(spec: PipelineSpec, changed: PipelineSpec) -> list[Problem]:
    """Return a problem for GPUs of a run whose task waits in the pool for trainings without, or the other way round."""
    before, after = spec.train.placement, changed.train.placement
    if before.pool is not None or bool(before.gpus) == bool(after.gpus):
        return []
    message = f"the YAML has gpus {before.gpus}: trainings with and without GPUs wait in different pools, and a trigger changes no pool"
    hint = "set train.placement.gpus in the YAML, or train.placement.pool, which is then that of all runs"
    return [Problem(code="field.conflict", message=message, hint=hint, field="train.placement.gpus")]


def _of_the_yaml_alone(spec: PipelineSpec, changed: PipelineSpec) -> list[Problem]:
    """Return a problem for each key that a trigger may not change."""
    found = {}
    if changed.train.model != spec.train.model and FAMILIES.get(changed.train.model) is None:
        found["train.model"] = "names a class of your own: which code runs is the YAML's alone"
    if changed.train.placement.pool != spec.train.placement.pool:
        found["train.placement.pool"] = "is the YAML's alone: Airflow knows the pool before a run begins"
    facts, before, after = FAMILIES.get(changed.train.model), spec.train.settings, changed.train.settings
    for name in () if facts is None else facts.yaml_settings:
        if before.get(name) != after.get(name):
            found[f"train.settings.{name}"] = "is the YAML's alone: it says which code runs"
    if changed.train.refit != spec.train.refit:
        found["train.refit"] = "is the YAML's alone: Airflow knows the tasks before a run begins"
    return [Problem(code="conf.unknown_key", message=message, hint="set it in the YAML", field=key) for key, message in found.items()]


def _changed(spec: PipelineSpec, overrides: Overrides) -> PipelineSpec:
    if overrides.tune and spec.tune is None:
        raise spec_error(SOURCE, "conf.unknown_key", "the pipeline has no study to change", hint="add tune to its YAML", field="tune")
    values = spec.model_dump(mode="json", by_alias=True)
    whole = {
        **values,
        "data": _data_with(values["data"], overrides.data.source),
        "train": _train_with(values["train"], overrides.train),
        "evaluate": _evaluate_with(values["evaluate"], _given(overrides.evaluate.model_dump())),
        "tune": values["tune"] | overrides.tune if overrides.tune else values["tune"],
    }
    return spec if whole == values else check_values(whole, SOURCE)


def _data_with(values: JsonObject, given: SourceOverrides) -> JsonObject:
    return values if given.window is None else {**values, "source": {**json_object(values["source"]), "window": given.window}}


def _train_with(values: JsonObject, given: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return the section with the keys given. Another family begins with its own settings, without keys that one of them has no use for."""
    # A null within settings is a value: only the user's model knows its meaning.
    known: dict[str, Any] = {
        key: value if key == "settings" else _given({"": value})[""] for key, value in given.items() if value is not None
    }
    model = known.get("model", values["model"])
    if model != values["model"]:
        families = [FAMILIES.get(str(name)) for name in (model, values["model"])]
        unused = {"settings", *(key for facts in families if facts for key in facts.ignored_keys)}
        values = {key: value for key, value in values.items() if key not in unused}
    merged = {key: {**json_object(values.get(key, {})), **known[key]} for key in MERGED if isinstance(known.get(key), dict)}
    return {**values, **known, **merged}


def _evaluate_with(values: JsonObject, given: JsonObject) -> dict[str, JsonValue]:
    """Return the section with the thresholds given: those within a mapping are replaced one by one."""
    replaced = {key: {**json_object(values[key]), **value} if isinstance(value, dict) else value for key, value in given.items()}
    improvement = given.get("improvement")
    if isinstance(improvement, dict) and improvement:
        # One of the two, never the spec's and the trigger's together.
        replaced["improvement"] = {"absolute": None, "relative": None, **improvement}
    return {**values, **replaced}


def _given(values: JsonObject) -> dict[str, JsonValue]:
    """Leave out what is null, at every level."""
    return {key: _given(value) if isinstance(value, dict) else value for key, value in values.items() if value is not None}


def _differences(spec: PipelineSpec, changed: PipelineSpec) -> dict[str, JsonValue]:
    before, after = (
        _flat(each.model_dump(mode="json", by_alias=True, include={"data", "train", "evaluate", "tune"})) for each in (spec, changed)
    )
    absent = object()
    return {key: after.get(key) for key in (before | after) if before.get(key, absent) != after.get(key, absent)}


def _flat(values: JsonObject, prefix: str = "") -> dict[str, JsonValue]:
    flat: dict[str, JsonValue] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return flat


def _bounded(conf: Mapping[str, object]) -> dict[str, object]:
    """Return the conf as plain JSON values.

    Raises:
        SpecError: it is too large, too deep, or holds what is not JSON.
    """
    values = dict(conf)
    if _is_too_deep(values):
        raise spec_error(SOURCE, "spec.too_deep", f"is nested more than {MAX_DEPTH} deep")
    infinite = _not_finite(values, ())
    if infinite:
        raise SpecError(SOURCE, infinite)
    try:
        num_bytes = len(json.dumps(values, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError) as err:
        raise spec_error(SOURCE, "spec.encoding", f"is not JSON: {shown(str(err))}") from err
    if num_bytes > MAX_CONF_BYTES:
        message = f"has {num_bytes} bytes, at most {MAX_CONF_BYTES} are read"
        raise spec_error(SOURCE, "conf.too_large", message, hint="a trigger carries parameters, never data")
    return values


def _is_too_deep(value: object) -> bool:
    """Return whether collections are nested deeper than `MAX_DEPTH`; iterative, because what comes from outside may be very deep."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, Mapping) else outer if isinstance(outer, list | tuple) else ())
        ]
        if not level:
            return False
    return True


def _not_finite(value: object, path: tuple[str | int, ...]) -> list[Problem]:
    if isinstance(value, float) and not math.isfinite(value):
        return [Problem(code="field.range", message=f"must be finite, got {value}", field=dotted(path))]
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    return [problem for key, part in inner for problem in _not_finite(part, (*path, key if isinstance(key, int) else str(key)))]


def _as_conf(problem: Problem, spec: PipelineSpec) -> Problem:
    """Return the problem under the code that triggers have for it, with the keys of the spec that no trigger may change named as such."""
    if problem.code != "spec.unknown_key":
        return problem
    head, _, key = problem.field.partition(".")
    sections: dict[str, type[Section]] = {"evaluate": EvaluateOverrides, "registration": Registration}
    if key and ("." in key or head not in sections):
        return dataclasses.replace(problem, code="conf.unknown_key")
    of_run = [name for name in Overrides.model_fields if name != "tune" or spec.tune is not None]
    known = list(sections[head].model_fields) if key else of_run
    close = difflib.get_close_matches((key or head)[:80], known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"a trigger takes {', '.join(known)}; all else is the YAML's"
    return Problem(code="conf.unknown_key", message=problem.message, hint=hint, field=problem.field)
