"""The JSON Schema that editors complete and check pipelines with.

    python -m training.spec.schema            writes dags/pipelines/pipeline.schema.json
    python -m training.spec.schema --check    exit code 1 if that file is not current

It says less than the loader does: rules that join keys are the loader's alone.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from training.spec.families import built_in_families, usable_families
from training.spec.models import PipelineSpec

logger = logging.getLogger("training.spec.schema")

SCHEMA_NAME: Final = "pipeline.schema.json"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def pipeline_schema() -> dict[str, Any]:
    """Return the schema of a pipeline's YAML; `train.settings` follows `train.model` for the families that are described."""
    schema = PipelineSpec.model_json_schema(by_alias=True, ref_template="#/$defs/{model}")
    for name, facts in usable_families().items():
        # Classes of other distributions may have the names of ours.
        prefix = "" if name in built_in_families() else f"{name}."
        settings = facts.settings.model_json_schema(by_alias=True, ref_template=f"#/$defs/{prefix}{{model}}")
        parts = {**settings.pop("$defs", {}), facts.settings.__name__: settings}
        schema["$defs"] |= {f"{prefix}{part}": part_schema for part, part_schema in parts.items()}
        rule = {
            "if": {"properties": {"model": {"const": name}}, "required": ["model"]},
            "then": {"properties": {"settings": {"$ref": f"#/$defs/{prefix}{facts.settings.__name__}"}}},
        }
        schema["$defs"]["Train"].setdefault("allOf", []).append(rule)
    return {"$schema": DIALECT, "title": "Nightshift pipeline", **{key: value for key, value in schema.items() if key != "title"}}


def schema_text() -> str:
    return json.dumps(pipeline_schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the file; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.spec.schema", description="Writes the JSON Schema of pipelines.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the file is not current")
    options = parser.parse_args(arguments)
    default = Path(__file__).resolve().parents[2] / "dags" / "pipelines"
    path = Path(os.environ.get("NIGHTSHIFT_PIPELINES") or default) / SCHEMA_NAME
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
