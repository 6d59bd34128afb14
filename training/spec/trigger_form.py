"""The form of a trigger: JSON Schemas of a DAG's Params, with the spec's values as defaults.

Airflow validates them wherever a run is triggered (UI, CLI, REST), but not keys that no Param has: those are `overrides`' to refuse.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from training.contracts import JsonObject, JsonValue, json_object
from training.errors import Problem, shown
from training.spec.descriptors.families import FAMILIES
from training.spec.pipeline_spec import PipelineSpec
from training.spec.reader.overrides import SNAPSHOT_PATTERN, EvaluateOverrides
from training.spec.reader.problems import nearest
from training.spec.schedule.instants import AS_OF_PATTERN
from training.spec.sections.data import PipelineSource
from training.spec.sections.evaluation import Evaluate
from training.spec.sections.train import Train
from training.stage_table import REFIT

_TITLES: Final[Mapping[str, tuple[str, str]]] = {
    "epochs": ("Epochs", "Passes over the training rows; boosting rounds for trees."),
    "batch_size": ("Batch size", "Rows of one step over all processes."),
    "learning_rate": ("Learning rate", ""),
    "weight_decay": ("Weight decay", ""),
    "seed": ("Seed", ""),
    "early_stopping": ("Early stopping", "Epochs without a better validation metric after which training ends."),
    "from_checkpoint": ("From checkpoint", "SHA-256 that `nightshift checkpoints restore` prints: training begins there."),
    "placement": (
        "Resources",
        "Nodes, and for each its processes, cores, memory and GPUs; which of them count depends on the installation.",
    ),
    "settings": ("Settings", "The model family's own."),
}
_KEPT: Final[tuple[str, ...]] = (
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "enum",
    "items",
    "maxItems",
    "pattern",
    "examples",
)


def params_schema(spec: PipelineSpec) -> dict[str, dict[str, JsonValue]]:
    """Return name to JSON Schema, default included, of each parameter of a trigger's form; sections have the spec's values as defaults."""
    return {
        "as_of": as_of_schema(spec),
        "force": _FORCE,
        "promote": _PROMOTE,
        "snapshot": _SNAPSHOT,
        "registration": _REGISTRATION,
        "data": _data_schema(spec),
        "train": _train_schema(spec.train),
        "evaluate": _evaluate_schema(spec),
        **_study_schema(spec),
    }


def unknown_keys(schemas: Mapping[str, JsonObject], conf: JsonObject) -> Iterator[Problem]:
    """Yield a problem for each key of a conf that its section's schema does not have: what Airflow answers there is the whole schema.

    Args:
        schemas: of `params_schema`.
    """
    waiting: list[tuple[str, Any, JsonValue]] = [(name, schemas[name], value) for name, value in conf.items() if name in schemas]
    while waiting:
        place, schema, value = waiting.pop()
        if "then" in schema and isinstance(value, dict):
            schema = schema["then"] if value.get("model") in (None, *schema["if"]["properties"]["model"]["enum"]) else {}
        known = schema.get("properties", {})
        for key, inner in value.items() if isinstance(value, dict) else ():
            field = f"{place}.{key[:80]}"
            if key in known:
                waiting.append((field, known[key], inner))
            elif schema.get("additionalProperties") is False:
                yield Problem(code="conf.unknown_key", message=f"unknown key {shown(key)}", hint=nearest(key, known), field=field)


def as_of_schema(spec: PipelineSpec) -> dict[str, JsonValue]:
    """Return the schema of `as_of`: null, a day, or a date-time with an offset."""
    return {
        "title": "As of",
        "description": "The run uses data from before this time only. Empty: the logical date, or the last slot of the schedule. "
        f"A day (2026-01-31) begins at midnight in {spec.timezone}; a time needs its offset from UTC (2026-01-31T02:00:00+00:00).",
        # A pattern and no `format`: where a validator of dates happens to be installed, Airflow would refuse a day without a time.
        "type": ["null", "string"],
        "pattern": AS_OF_PATTERN,
        "maxLength": 40,
        "default": None,
    }


_FORCE: Final[dict[str, JsonValue]] = {
    "title": "Repeat all stages",
    "description": "Repeat the work of all stages, also where a result exists.",
    "type": "boolean",
    "default": False,
}

_PROMOTE: Final[dict[str, JsonValue]] = {
    "title": "Decide about the model",
    "description": "If not, the run ends with its evaluation: no decision, and its snapshot is no reference for later runs.",
    "type": "boolean",
    "default": True,
}

_SNAPSHOT: Final[dict[str, JsonValue]] = {
    "title": "Snapshot",
    "description": "Version of an existing snapshot of this pipeline (`nightshift datasets list`): the run uses it instead of its "
    "sources, with that snapshot's `as_of`. Empty: the run takes a new snapshot.",
    "type": ["null", "string"],
    "pattern": SNAPSHOT_PATTERN,
    "maxLength": 64,
    "default": None,
}

_REGISTRATION: Final[dict[str, JsonValue]] = {
    "title": "Model from outside",
    "description": "A model that was trained elsewhere, which this run judges instead of training one: `artifact_uri`, `format` "
    "(safetensors, xgboost_json, onnx), and more keys (docs/promotion.md); empty: the run trains.",
    "type": ["null", "object"],
    "default": None,
}


def _study_schema(spec: PipelineSpec) -> dict[str, dict[str, JsonValue]]:
    if spec.tune is None:
        return {}
    text = "Overrides of `tune` for this run alone: space, objective, number of trials."
    return {"tune": {"title": "Study", "description": text, "type": "object", "default": {}}}


def _data_schema(spec: PipelineSpec) -> dict[str, JsonValue]:
    window = json_object(json_object(spec.model_dump(mode="json", include={"data": {"source": {"window"}}})["data"])["source"])
    source = _section("Source", "", {"window": _nullable(_property(_schema_of(PipelineSource), "window", window["window"]))})
    return _section("Data", "Overrides of `data` for this run alone: source.window.", {"source": source})


def _train_schema(train: Train) -> dict[str, JsonValue]:
    """Keys and settings are those of the spec's family; of another one that a trigger names, the run's first task knows them."""
    facts = FAMILIES.get(train.model)
    ignored = frozenset() if facts is None else facts.ignored_keys
    names = [name for name in Train.model_fields if name not in ignored and name != REFIT]
    values = train.model_dump(mode="json", by_alias=True, exclude={"placement": {"pool"}})
    properties: dict[str, dict[str, JsonValue]] = {}
    for name in names:
        title, description = _TITLES.get(name, ("", ""))
        schema = _settings_schema(train) if name == "settings" else _property(_schema_of(Train), name, values[name])
        texts = {"title": title, "description": description}
        properties[name] = {**{key: text for key, text in texts.items() if text}, **schema}
    section = _section("Training", f"Overrides of `train` for this run alone: {', '.join(names)}.", properties)
    own = {key: section.pop(key) for key in ("properties", "additionalProperties")}
    return {**section, "if": {"properties": {"model": {"enum": [train.model, None]}}}, "then": own}


def _settings_schema(train: Train) -> dict[str, JsonValue]:
    facts = FAMILIES.get(train.model)
    if facts is None:
        return {"type": "object", "default": train.settings}
    known = [name for name in facts.settings.model_fields if name in train.settings]
    properties = {name: _property(_schema_of(facts.settings), name, train.settings[name]) for name in known}
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": facts.takes_other_settings,
        "default": train.settings,
    }


def _evaluate_schema(spec: PipelineSpec) -> dict[str, JsonValue]:
    values = spec.evaluate.model_dump(mode="json", by_alias=True)
    properties = {name: _property(_schema_of(Evaluate), name, values[name]) for name in EvaluateOverrides.model_fields}
    text = "Overrides of `evaluate`'s thresholds for this run alone; its decision records them: "
    return _section("Evaluation", f"{text}{', '.join(properties)}.", properties)


def _section(title: str, description: str, properties: Mapping[str, JsonObject]) -> dict[str, JsonValue]:
    defaults = {name: schema["default"] for name, schema in properties.items()}
    text = {"title": title, "description": description, "type": "object"}
    return {**text, "properties": dict(properties), "additionalProperties": False, "default": defaults}


def make_schemas() -> None:
    """Make the schemas of sections, and of the settings of built-in families, which are the same for all specs and are made once."""
    families = filter(None, map(FAMILIES.get, FAMILIES.built_in))
    for model in (PipelineSource, Train, Evaluate, *(facts.settings for facts in families)):
        _schema_of(model)


@functools.cache
def _schema_of(model: type[BaseModel]) -> dict[str, JsonValue]:
    return model.model_json_schema()


def _property(model: JsonObject, name: str, value: JsonValue) -> dict[str, JsonValue]:
    """Return the schema of one key: null is the spec's own value, for keys of sections too."""
    own = json_object(json_object(model["properties"])[name])
    # An optional key is an anyOf with null in pydantic's schema; forms want one type, or a list of them.
    branches = own.get("anyOf")
    parts = [part for each in branches if (part := json_object(each)).get("type") != "null"] if isinstance(branches, list) else [own]
    if len(parts) > 1:
        # A word or a section, such as `auto`: the run's first task checks it.
        return {"default": value}
    branch = parts[0]
    if "$ref" in branch:
        section = {**json_object(json_object(model["$defs"])[str(branch["$ref"]).rpartition("/")[2]]), "$defs": model["$defs"]}
        inner = {key: {**_nullable(_property(section, key, part)), "default": part} for key, part in json_object(value).items()}
        return {"type": "object", "properties": inner, "additionalProperties": False, "default": value}
    if branch["type"] == "object":
        return {"type": "object", "additionalProperties": {"type": ["null", "number"]}, "default": value}
    kept = {key: branch[key] for key in _KEPT if key in branch}
    found: dict[str, JsonValue] = {"type": branch["type"], **kept, "default": value}
    return found if value is not None else _nullable(found)


def _nullable(schema: JsonObject) -> dict[str, JsonValue]:
    if "type" not in schema:
        return dict(schema)
    kind, values = schema["type"], schema.get("enum")
    # An enumeration refuses what it does not list, null too.
    listed: dict[str, JsonValue] = {"enum": [*values, None]} if isinstance(values, list) and None not in values else {}
    return {**schema, "type": kind if isinstance(kind, list) else ["null", kind], **listed}
