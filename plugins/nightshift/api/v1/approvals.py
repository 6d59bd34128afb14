"""Answers to requests for approval."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from nightshift.api.access import Granted
from nightshift.api.path_parameters import ModelName, VersionName
from nightshift.api.problems import WRITES, responses
from nightshift.api.routing import ApiRoute
from nightshift.queries import approvals
from nightshift.queries.schemas import ApprovalAnswer
from nightshift.settings import Settings
from training.errors import DeniedError
from training.spec.scalar_types import FreeText

router = APIRouter(route_class=ApiRoute, tags=["models"])


class AnswerBody(BaseModel):
    """An answer to the request about a version, and why."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"answer": "approve", "note": "seen with Eve"}]})

    answer: Literal["approve", "decline"]
    note: FreeText = Field(default="", max_length=1000, description="Reason, stored in the ledger.")


@router.put("/models/{model}/versions/{version}/approval", status_code=202, responses=responses(*WRITES))
def answer_request(model: ModelName, version: VersionName, given: AnswerBody, granted: Granted) -> ApprovalAnswer:
    """Approve or decline a candidate that waits for a person. The DAG `<pipeline>.approval` judges who may, and records it."""
    ledger = Settings.from_environment().ledger()
    request = approvals.request_about(ledger, model, version, granted.may_read)
    dag_id = approvals.asking_dag(request)
    if not granted.may_answer(dag_id):
        raise DeniedError("access.denied", f"{granted.name} may not answer questions of {dag_id}", hint="ask an administrator of Airflow")
    return approvals.answer(ledger, request, given.answer, note=given.note.strip(), user=granted.user)
