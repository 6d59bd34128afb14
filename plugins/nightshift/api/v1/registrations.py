"""Models from outside: a run of a pipeline imports one, measures it, and its gates decide about it."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Body, Request, Response
from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from nightshift.api.access import Granted
from nightshift.api.problems import MAX_ERRORS, WRITES, responses
from nightshift.api.routing import ApiRoute, IdempotencyKey
from nightshift.api.v1.pipelines import AsOf, Snapshot, started
from nightshift.queries import runs
from nightshift.queries.schemas import Run
from training.contracts import JsonObject
from training.errors import DeniedError, Problem, SpecError, shown
from training.spec.reader.problems import nearest
from training.spec.registration import Registration
from training.spec.scalar_types import NAME_RULE

router = APIRouter(route_class=ApiRoute, tags=["models"])
CANDIDATE: Final = ("candidate", "staging")
"""The one stage in which a model can come, and other registries' name for it."""
OF_THE_RUN: Final = ("pipeline", "stage", "as_of", "snapshot")
_EXAMPLE: JsonDict = {
    "pipeline": "flight_delay",
    "artifact_uri": "${FLIGHTS_URI}/models/17/model.ubj",
    "format": "xgboost_json",
    "version": "17",
    "metrics": {"auc": 0.81},
}


class RegisterModel(Registration):
    """A model that was trained elsewhere, and the pipeline whose data, evaluation and gates judge it."""

    # What is not known is found by the route, which names the nearest key.
    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [_EXAMPLE], "additionalProperties": False})

    pipeline: str = Field(pattern=f"^{NAME_RULE}$", description="Name of the pipeline that judges it.")
    stage: str = Field(
        default="candidate", max_length=40, description="`candidate`, or `staging`, which is the same here; any other answers 409."
    )
    as_of: AsOf = None
    snapshot: Snapshot = None

    def conf(self) -> JsonObject:
        """Return the trigger's conf: only what was given.

        Raises:
            SpecError: `request.invalid`, the first keys that there are not.
        """
        if self.model_extra:
            unknown = list(self.model_extra)[:MAX_ERRORS]
            raise SpecError("request", [_unknown(key) for key in unknown])
        values = self.model_dump(mode="json", exclude_none=True, exclude=set(OF_THE_RUN))
        registration = {key: value for key, value in values.items() if value != {}}
        run = {"as_of": self.as_of, "snapshot": self.snapshot, "registration": registration}
        return {key: value for key, value in run.items() if value is not None}


def _unknown(key: str) -> Problem:
    hint = nearest(key, RegisterModel.model_fields)
    return Problem(code="request.invalid", message=f"unknown key {shown(key)}", hint=hint, field=f"body.{key[:80]}")


@router.post("/models/register", status_code=202, response_model=Run, responses=responses(*WRITES))
def register_model(wanted: Annotated[RegisterModel, Body()], granted: Granted, request: Request, key: IdempotencyKey = None) -> Response:
    """Queue a run that imports a model from outside and decides about it as about any other. `Location` is where to look at the run."""
    pipeline = wanted.pipeline
    granted.require(pipeline, "POST", runs.unknown_pipeline(pipeline), "register models")
    conf = wanted.conf()
    if wanted.stage not in CANDIDATE:
        message = f"a model from outside comes as a candidate, not as {shown(wanted.stage)}"
        hint = "leave `stage` out: the run's gates promote it where it earns it; PUT …/stage makes an earlier champion champion again"
        raise DeniedError("stage.transition", message, hint=hint)
    return started(request, granted, pipeline, conf, key)
