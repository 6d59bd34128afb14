"""Studies: searches for settings."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from nightshift.api.access import Granted
from nightshift.api.path_parameters import RunKey
from nightshift.api.problems import WRITES, responses
from nightshift.api.routing import ApiRoute, IdempotencyKey, accepted, ordered_run_id
from nightshift.api.v1.pipelines import AsOf, Snapshot, check_instant
from nightshift.queries import runs, studies
from nightshift.queries.datasets import check_usable
from nightshift.queries.schemas import Study
from nightshift.settings import Settings
from training.contracts import JsonObject
from training.errors import DeniedError
from training.spec.scalar_types import NAME_RULE, Line

router = APIRouter(route_class=ApiRoute, tags=["studies"])
_EXAMPLE: JsonDict = {"pipeline": "search_ranking", "space": {"learning_rate": {"float": [1e-5, 1e-2], "log": True}}, "trials": 20}


class StartStudy(BaseModel):
    """A study of a pipeline; all that is left out is as in the `tune` of its YAML."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [_EXAMPLE]})

    pipeline: str = Field(pattern=f"^{NAME_RULE}$", description="Name of the pipeline.")
    space: dict[str, Any] | None = Field(default=None, min_length=1, description="Parameter to what is searched: docs/tuning.md.")
    objective: Line | None = Field(default=None, max_length=100, description="`validation_loss`, or a metric on the validation rows.")
    trials: int | None = Field(default=None, ge=1, le=10_000, description="How many at most.")
    tune: dict[str, Any] = Field(default_factory=dict, description="Further keys of `tune`: sampler, pruner, parallel.")
    train: dict[str, Any] = Field(default_factory=dict, description="Keys of `train` that all trials have.")
    as_of: AsOf = None
    snapshot: Snapshot = None

    def conf(self) -> JsonObject:
        """Return the trigger's conf: only what was given."""
        own = {name: value for name in ("space", "objective", "trials") if (value := getattr(self, name)) is not None}
        conf = {"tune": {**self.tune, **own}, "train": self.train, "as_of": self.as_of, "snapshot": self.snapshot}
        return {name: value for name, value in conf.items() if value not in (None, {})}


@router.post("/hpo/studies", status_code=202, response_model=Study, responses=responses(*WRITES))
def start_study(wanted: StartStudy, granted: Granted, request: Request, key: IdempotencyKey = None) -> Response:
    """Queue a study, which trains no candidate. `Location` is where to look at it."""
    pipeline, conf = wanted.pipeline, wanted.conf()
    granted.require(pipeline, "POST", runs.unknown_pipeline(pipeline), "start studies")
    if not granted.may_start(studies.tune_dag_id(pipeline)):
        # What Airflow's page refuses, this does too.
        message = f"{granted.name} may not start runs of the DAG {studies.tune_dag_id(pipeline)}"
        raise DeniedError("access.denied", message, hint="ask an administrator of Airflow for the right")
    if wanted.as_of is not None:
        check_instant(wanted.as_of)

    settings, run_id = Settings.from_environment(), ordered_run_id(request, granted.name, key)
    store = settings.store()
    if runs.is_ordered(studies.tune_dag_id(pipeline), run_id, conf):
        return accepted(request, "/hpo/studies", studies.study(store, pipeline, run_id))
    if wanted.snapshot is not None:
        check_usable(settings.database(), pipeline, wanted.snapshot)
    return accepted(request, "/hpo/studies", studies.start_study(store, pipeline, run_id, conf, by=granted.name))


@router.get("/hpo/studies/{id}", responses=responses(404, 422))
def study(id: RunKey, granted: Granted) -> Study:
    """Show a study: state, space, finished trials, the best one. `id` is that of its run."""
    return studies.study(Settings.from_environment().store(), *granted.run_of(id))
