"""Which part of a spec the work of a stage depends on: what its fingerprint covers.

What cannot change a stage's result is left out, so that changing it makes no work: who owns the pipeline, when it runs, how
often it is tried again, how often it is saved, on which nodes it trains. The number of processes can change weights; it is an input of
the fingerprint (`world_size`), being settled where a run is placed. The number of threads can too: covered where `placement.cpus` sets it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from training.spec.models import PipelineSpec
from training.spec.rules.tuning import VALIDATION_LOSS
from training.spec.sections.train import Placement
from training.stage_table import TABLE, TRIAL

_NOT_OF_THE_ROWS: Final = frozenset({"wait", "suite"})
_NOT_OF_THE_CELLS: Final = frozenset({"known", "because"})
_PLACES: Final = frozenset({"uri", "kind", "settings"})
_NOT_OF_THE_WEIGHTS: Final = frozenset({"placement", "checkpoint"})
_LATER_KEYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "label": {"positive": None},
    "split": {"end": "window"},
    "validate": {"unknown_labels": None, "empty_days": None},
}
"""Keys that came later than the first models, by section, with the value that changes nothing: the work is the same as without them."""
_OF_THE_STUDY: Final = ("sampler", "pruner", "objective", "seed", "space")
_OF_ITS_END: Final = ("trials", "patience", "within")


def spec_part(spec: PipelineSpec, stage: str) -> dict[str, Any]:
    """Return the part of a spec, as JSON, that the result of `stage` depends on. Equal meaning, equal JSON.

    Raises:
        ValueError: there is no such stage.
    """
    if stage not in TABLE:
        raise ValueError(f"there is no stage {stage!r}: {', '.join(TABLE)}")
    values = spec.model_dump(mode="json", by_alias=True)
    if stage not in _PARTS:
        return {section: values[section] for section in TABLE[stage].sections}
    return _PARTS[stage](values)


def _ingest(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"data": _data(values, without=_NOT_OF_THE_ROWS), "timezone": values["timezone"]}


def _validate(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"data": _data(values, without=_PLACES | {"wait"}), "validate": _as_before(values, "validate"), "timezone": values["timezone"]}


def _prepare(values: Mapping[str, Any]) -> dict[str, Any]:
    data = _data(values, without=_NOT_OF_THE_ROWS | _PLACES)
    prepare = {**values["prepare"], "derive": _columns(values["prepare"]["derive"])}
    return {"data": data, "prepare": prepare, "task": values["evaluate"]["task"], "timezone": values["timezone"]}


def _trial(values: Mapping[str, Any]) -> dict[str, Any]:
    """The study that a trial is of. Not how many trials there are to be: a longer search goes on with what is there."""
    tune = values["tune"]
    if tune is None:
        return {}
    part = {"tune": {key: tune[key] for key in _OF_THE_STUDY}, **_train(values)}
    evaluate, objective = values["evaluate"], tune["objective"]
    if objective == VALIDATION_LOSS:
        return part
    # How a metric is computed decides which trial is the best.
    return {**part, "measured": {"threshold": evaluate["threshold"], "gain": evaluate["gain"], "own": evaluate["metrics"].get(objective)}}


def _tune(values: Mapping[str, Any]) -> dict[str, Any]:
    tune = values["tune"]
    return {} if tune is None else {**_trial(values), "end": {key: tune[key] for key in _OF_ITS_END}}


def _train(values: Mapping[str, Any]) -> dict[str, Any]:
    """Not the primary metric: the validation loss chooses the best epoch."""
    threads = Placement.model_validate(values["train"]["placement"]).threads_per_process
    train = {key: value for key, value in values["train"].items() if key not in _NOT_OF_THE_WEIGHTS}
    if train["warmup_steps"] is None:
        # The key came later than the first models: where it is not used, their training is still the same work.
        del train["warmup_steps"]
    part = {"train": train, "task": values["evaluate"]["task"]}
    return part if threads is None else {**part, "threads": threads}


def _evaluate(values: Mapping[str, Any]) -> dict[str, Any]:
    """The source's key, times and zone are those of the baselines."""
    data = values["data"]
    rows = {key: data["source"][key] for key in ("key", "event_time", "decision_lead")}
    found = {
        "evaluate": values["evaluate"],
        "model": values["promote"]["model"],
        "label": _as_before(data, "label"),
        "group": data["group"],
    }
    return {**found, "rows": rows, "timezone": values["timezone"]}


def _canary(values: Mapping[str, Any]) -> dict[str, Any]:
    """With the rules of the verdict, which the page shows."""
    return {**_evaluate(values), "canary": values["promote"]["canary"]}


def _data(values: Mapping[str, Any], *, without: frozenset[str]) -> dict[str, Any]:
    data = values["data"]
    sections = {"label": _as_before(data, "label"), "split": _as_before(data, "split")}
    tables = {"source": _table(data["source"], without), "features": [_table(table, without) for table in data["features"]]}
    return {**data, **sections, **tables}


def _as_before(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Return a section without the later keys that change nothing."""
    neutral = _LATER_KEYS[section]
    return {key: value for key, value in values[section].items() if key not in neutral or value != neutral[key]}


def _table(table: Mapping[str, Any], without: frozenset[str]) -> dict[str, Any]:
    # The key `settings` came later: where it is empty, the work is the same as without it.
    kept = {key: value for key, value in table.items() if key not in without and (key != "settings" or value)}
    return {key: _columns(value) if key in ("columns", "derive") else value for key, value in kept.items()}


def _columns(columns: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Leave out when a column is known: that decides whether a spec is refused, not what the rows are."""
    return {name: {key: value for key, value in column.items() if key not in _NOT_OF_THE_CELLS} for name, column in columns.items()}


_PARTS: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "ingest": _ingest,
    "validate": _validate,
    "prepare": _prepare,
    TRIAL: _trial,
    "tune": _tune,
    "train": _train,
    "evaluate": _evaluate,
    "canary": _canary,
}
"""Stages whose part is more than whole sections, which the table of stages names."""
