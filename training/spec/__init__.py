"""The pipeline's YAML: models, loader, schedule, trigger parameters. Light: DAG files and operators import it."""

from training.spec.covered_keys import spec_part
from training.spec.pipeline_spec import PipelineSpec, freeze
from training.spec.reader.loader import load_spec, parse_spec
from training.spec.reader.overrides import RunParameters, apply_overrides
from training.spec.schedule.instants import check_not_future, partitions, settle_as_of, slot_of_day, window
from training.spec.trigger_form import params_schema
from training.spec.uris import resolve_uris

__all__ = [
    "PipelineSpec",
    "RunParameters",
    "apply_overrides",
    "check_not_future",
    "freeze",
    "load_spec",
    "params_schema",
    "parse_spec",
    "partitions",
    "resolve_uris",
    "settle_as_of",
    "slot_of_day",
    "spec_part",
    "window",
]
