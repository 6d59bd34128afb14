"""The pipeline's YAML: models, loader, schedule, trigger parameters. Light: DAG files and operators import it."""

from training.spec.loader import load_spec, parse_spec
from training.spec.models import PipelineSpec, freeze
from training.spec.schedule import partitions, settle_as_of, window
from training.spec.uris import resolve_uris

__all__ = ["PipelineSpec", "freeze", "load_spec", "parse_spec", "partitions", "resolve_uris", "settle_as_of", "window"]
