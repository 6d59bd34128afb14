"""The JSON Schema that editors complete and check pipelines with.

    python -m training.spec.schema            writes dags/pipelines/pipeline.schema.json
    python -m training.spec.schema --check    exit code 1 if that file is not current

It says less than the loader does: rules that join keys are the loader's alone.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from training.contracts import JsonObject, JsonValue
from training.installation import PIPELINES
from training.spec.descriptors.families import FAMILIES, trained_families
from training.spec.descriptors.sources import SOURCES, SourceDescriptor
from training.spec.pipeline_spec import PipelineSpec
from training.spec.scalar_types import Section

logger = logging.getLogger("training.spec.schema")

SCHEMA_NAME: Final = "pipeline.schema.json"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def pipeline_schema() -> dict[str, JsonValue]:
    """Return the schema of a pipeline's YAML; `train.settings` follows `train.model` for the families that are described."""
    schema = PipelineSpec.model_json_schema(by_alias=True, ref_template="#/$defs/{model}")
    for name, facts in trained_families().items():
        settings = _settings(schema["$defs"], facts.settings, prefix="" if name in FAMILIES.built_in else f"{name}.")
        family_rule = {
            "if": {"properties": {"model": {"const": name}}, "required": ["model"]},
            "then": {"properties": {"settings": settings}},
        }
        schema["$defs"]["Train"].setdefault("allOf", []).append(family_rule)
    kinds = SOURCES.usable()
    for table in ("PipelineSource", "FeatureTable"):
        schema["$defs"][table]["properties"]["kind"]["enum"] = list(kinds)
    for name, kind in kinds.items():
        rule = _rule_of_kind(schema["$defs"], name, kind)
        for table in ("PipelineSource", "FeatureTable"):
            schema["$defs"][table].setdefault("allOf", []).append(rule)
    return {"$schema": DIALECT, "title": "Nightshift pipeline", **{key: value for key, value in schema.items() if key != "title"}}


def _settings(definitions: dict[str, JsonValue], model: type[Section], *, prefix: str) -> dict[str, str]:
    """Add the schema of settings; return the reference to it. `prefix`: classes of other distributions may have the names of ours."""
    settings = model.model_json_schema(by_alias=True, ref_template=f"#/$defs/{prefix}{{model}}")
    parts = {**settings.pop("$defs", {}), model.__name__: settings}
    definitions |= {f"{prefix}{part}": part_schema for part, part_schema in parts.items()}
    return {"$ref": f"#/$defs/{prefix}{model.__name__}"}


def _rule_of_kind(definitions: dict[str, JsonValue], name: str, kind: SourceDescriptor) -> JsonObject:
    """Return the rule of a kind of source: whether it has a `uri`, and its settings."""
    properties: dict[str, JsonValue] = {} if kind.has_uri else {"uri": {"type": "null"}}
    if kind.settings.model_fields:
        properties["settings"] = _settings(definitions, kind.settings, prefix=f"source.{name}.")
    then: dict[str, JsonValue] = {"required": ["uri"]} if kind.has_uri else {}
    if properties:
        then["properties"] = properties
    return {"if": {"properties": {"kind": {"const": name}}, "required": ["kind"]}, "then": then}


def schema_text() -> str:
    return json.dumps(pipeline_schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the file; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.spec.schema", description="Writes the JSON Schema of pipelines.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the file is not current")
    options = parser.parse_args(arguments)
    default = Path(__file__).resolve().parents[2] / "dags" / "pipelines"
    path = Path(PIPELINES.text() or default) / SCHEMA_NAME
    current = path.read_text(encoding="utf-8") if path.exists() else ""
    if current == schema_text():
        logger.info("%s is current", path.name)
        return 0
    if options.check:
        logger.error("%s is not current: run `python -m training.spec.schema`", path.name)
        return 1
    path.write_text(schema_text(), encoding="utf-8")
    logger.info("wrote %s", path.name)
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main())
