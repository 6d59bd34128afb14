"""The parameters of a trigger belong to the DAG alone.

Airflow copies a DAG's params into every task that is made while the DAG has them, and serialises each copy: it resolves every param of
every task, with a check of the param's own JSON Schema each time. Nine tenths of the time to serialise a pipeline's DAG were that.
A task that declares no params still has the DAG's in its context: `process_params` merges them when the task starts.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow.sdk import DAG, Param

from training.contracts import JsonObject
from training.spec import PipelineSpec, params_schema


def params_of(spec: PipelineSpec) -> dict[str, Param]:
    """Return the parameters of a pipeline's trigger, with the spec's values as defaults."""
    return {name: param_of(schema) for name, schema in params_schema(spec).items()}


def param_of(schema: JsonObject) -> Param:
    """Return the parameter of a JSON Schema with its default."""
    description = schema.get("description")
    rest = {key: value for key, value in schema.items() if key not in ("default", "description")}
    return Param(schema["default"], description=None if description is None else str(description), schema=rest)


def set_params(dag: DAG, params: Mapping[str, Param]) -> None:
    """Give a DAG its params; call it after the DAG has its tasks, so that none of them gets a copy.

    They are put in one by one: a DAG that is given all of them at once checks each schema again, which is four fifths of the time to parse
    a pipeline. The defaults come from a spec that is valid, so there is nothing to find. What a trigger gives instead is checked as ever.
    """
    for name, param in params.items():
        dag.params[name] = param
