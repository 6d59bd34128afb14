"""Which part of a spec the work of a stage depends on: what its work id covers.

What cannot change a stage's result is left out, so that changing it causes no work: who owns the pipeline, when it runs, how
often it is tried again, how often it is saved, on which nodes it trains. The number of processes can change weights; it is an input of
the work id (`world_size`), being settled where a run is placed. The number of threads can too: covered where `placement.cpus` sets it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from training.contracts import JsonObject, JsonValue, json_object
from training.spec.pipeline_spec import PipelineSpec
from training.spec.rules.leakage import Lateness
from training.spec.rules.tuning import VALIDATION_LOSS
from training.spec.sections.train import Placement
from training.stage_table import REFIT, TABLE, TRIAL

_NOT_OF_THE_ROWS: Final = frozenset({"wait", "suite"})
_NOT_OF_THE_CELLS: Final = frozenset({"known", "because"})
_PLACES: Final = frozenset(
    {"uri", "kind", "settings", "source_name", "generated", "stored_as", "scale", "zone", "number_format", "missing"}
)
_NOT_OF_THE_CHECKS: Final = frozenset({"memory", "future_rows"})
_NOT_OF_THE_WEIGHTS: Final = frozenset(
    {"placement", "checkpoint", "activation_checkpointing", "replica_check_steps", "straggler_ratio", REFIT}
)
_NOT_OF_THE_WEIGHTS_OF_PARALLEL: Final = frozenset({"schedule"})
_OF_THE_STUDY: Final = ("sampler", "pruner", "objective", "seed", "space")
_OF_ITS_END: Final = ("trials", "patience", "within")


def spec_part(spec: PipelineSpec, stage: str) -> dict[str, JsonValue]:
    """Return the part of a spec, as JSON, that the result of `stage` depends on. Equal meaning, equal JSON.

    Raises:
        ValueError: there is no such stage.
    """
    if stage not in TABLE:
        raise ValueError(f"there is no stage {stage!r}: {', '.join(TABLE)}")
    values: dict[str, JsonValue] = spec.model_dump(mode="json", by_alias=True)
    if stage not in _PARTS:
        return {section: values[section] for section in TABLE[stage].sections}
    return _PARTS[stage](values)


def import_part(spec: PipelineSpec) -> dict[str, JsonValue]:
    """Return the part of a spec that a model from outside depends on, where the stage `train` takes one in instead of training.

    Its transforms may read any column, so which columns are late decides whether it is refused: no rule of the spec has seen them.
    """
    train = spec.model_dump(mode="json", by_alias=True)["train"]
    lateness = Lateness(spec.data, spec.prepare)
    late = sorted(name for name in {**spec.data.frame_types(), **spec.prepare.derive} if lateness.why(name) is not None)
    return {
        "train": {key: train[key] for key in ("model", "settings")},
        "task": spec.evaluate.task,
        "timezone": spec.timezone,
        "late": list[JsonValue](late),
    }


def _ingest(values: JsonObject) -> dict[str, JsonValue]:
    future_rows = json_object(values["validate"])["future_rows"]
    return {"data": _data(values, without=_NOT_OF_THE_ROWS), "timezone": values["timezone"], "future_rows": future_rows}


def _validate(values: JsonObject) -> dict[str, JsonValue]:
    checks = _without(json_object(values["validate"]), _NOT_OF_THE_CHECKS)
    return {"data": _data(values, without=_PLACES | {"wait"}), "validate": checks, "timezone": values["timezone"]}


def _prepare(values: JsonObject) -> dict[str, JsonValue]:
    data = _data(values, without=_NOT_OF_THE_ROWS | _PLACES)
    prepare = json_object(values["prepare"])
    prepare["derive"] = _columns(json_object(prepare["derive"]))
    return {"data": data, "prepare": prepare, "task": json_object(values["evaluate"])["task"], "timezone": values["timezone"]}


def _trial(values: JsonObject) -> dict[str, JsonValue]:
    """The study that a trial is of. Without the number of trials: a longer search continues with the existing ones."""
    if values["tune"] is None:
        return {}
    tune = json_object(values["tune"])
    # Trials begin at the start, whatever the training of the run does.
    from_start = {**values, "train": {**json_object(values["train"]), "from_checkpoint": None}}
    part: dict[str, JsonValue] = {"tune": {key: tune[key] for key in _OF_THE_STUDY}, **_train(from_start)}
    evaluate, objective = json_object(values["evaluate"]), str(tune["objective"])
    if objective == VALIDATION_LOSS:
        return part
    # How a metric is computed decides which trial is the best.
    own = json_object(evaluate["metrics"]).get(objective)
    return {**part, "measured": {"threshold": evaluate["threshold"], "gain": evaluate["gain"], "own": own}}


def _tune(values: JsonObject) -> dict[str, JsonValue]:
    if values["tune"] is None:
        return {}
    tune = json_object(values["tune"])
    return {**_trial(values), "end": {key: tune[key] for key in _OF_ITS_END}}


def _train(values: JsonObject) -> dict[str, JsonValue]:
    """Not the primary metric: the validation loss chooses the best epoch."""
    threads = Placement.model_validate(json_object(values["train"])["placement"]).threads_per_process
    train = _without(json_object(values["train"]), _NOT_OF_THE_WEIGHTS)
    if train["parallel"] is not None:
        train["parallel"] = _without(json_object(train["parallel"]), _NOT_OF_THE_WEIGHTS_OF_PARALLEL)
    return {"train": train, "task": json_object(values["evaluate"])["task"], "threads": threads}


def _refit(values: JsonObject) -> dict[str, JsonValue]:
    rows = json_object(values["train"])[REFIT]
    return {} if rows == "none" else {**_train(values), "rows": rows}


def _evaluate(values: JsonObject) -> dict[str, JsonValue]:
    """The source's key, times and zone are those of the baselines."""
    data = json_object(values["data"])
    source = json_object(data["source"])
    return {
        "evaluate": values["evaluate"],
        "model": json_object(values["promote"])["model"],
        "label": data["label"],
        "group": data["group"],
        "rows": {key: source[key] for key in ("key", "event_time", "decision_lead")},
        "timezone": values["timezone"],
    }


def _canary(values: JsonObject) -> dict[str, JsonValue]:
    """With the rules of the decision, which the page shows."""
    return {**_evaluate(values), "canary": json_object(values["promote"])["canary"]}


def _data(values: JsonObject, *, without: frozenset[str]) -> dict[str, JsonValue]:
    data = json_object(values["data"])
    features = data["features"]
    if not isinstance(features, list):
        raise TypeError(f"features are a list, got {type(features).__name__}")
    tables = [_table(json_object(table), without) for table in features]
    return {**data, "source": _table(json_object(data["source"]), without), "features": tables}


def _without(values: JsonObject, keys: frozenset[str]) -> dict[str, JsonValue]:
    return {key: value for key, value in values.items() if key not in keys}


def _table(table: JsonObject, without: frozenset[str]) -> dict[str, JsonValue]:
    kept = _without(table, without)
    if isinstance(further := kept.get("union"), list):
        kept["union"] = [_table(json_object(each), without) for each in further]
    if kept.get("where") is not None:
        kept["where"] = json_object(kept["where"])["sql"]
    return {key: _columns(json_object(value), without) if key in ("columns", "derive") else value for key, value in kept.items()}


def _columns(columns: JsonObject, without: frozenset[str] = frozenset()) -> dict[str, JsonValue]:
    """Leave out when a column is known: that decides whether a spec is refused, not what the rows are."""
    return {name: _without(json_object(column), _NOT_OF_THE_CELLS | without) for name, column in columns.items()}


_PARTS: Final[Mapping[str, Callable[[JsonObject], dict[str, JsonValue]]]] = {
    "ingest": _ingest,
    "validate": _validate,
    "prepare": _prepare,
    TRIAL: _trial,
    "tune": _tune,
    "train": _train,
    REFIT: _refit,
    "evaluate": _evaluate,
    "canary": _canary,
}
"""Stages whose part is more than whole sections, which the table of stages names."""
