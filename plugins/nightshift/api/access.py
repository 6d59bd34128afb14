"""Who may see and do what: each route asks Airflow's auth manager about the pipeline that a record belongs to.

Airflow's `requires_access_dag` reads only a parameter named `dag_id`, and otherwise asks for a general right. What a user may not read
answers as what is not there.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Collection
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import get_user
from airflow.configuration import conf
from airflow.models import DagModel
from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from nightshift.api import rate_limit
from nightshift.api.problems import RETRY_AFTER
from nightshift.queries.runs import has_pipeline, unknown_run
from training.errors import DeniedError

Action = Literal["GET", "POST", "PUT"]
_BEARER_HINT: Final = "send a token of Airflow's /auth/token as `Authorization: Bearer …`"
BEARER: Final = HTTPBearer(auto_error=False, description="A token of /auth/token.")


class Access:
    """The rights of one request's user; asked once per pipeline and action."""

    def __init__(self, user: Any, expires_at: float = math.inf) -> None:
        self.user = user
        self.expires_at = expires_at
        """When the token ends, in seconds since the epoch; infinite where it does not say."""
        self._known: dict[tuple[str, Action], bool] = {}

    @property
    def name(self) -> str:
        return str(self.user.get_name())

    def may_read(self, pipeline: str) -> bool:
        """Return whether the user may see a pipeline's runs, and with them its models and data."""
        return self._may(pipeline, "GET")

    def readable_among(self, pipelines: Collection[str]) -> set[str]:
        """Return those pipelines whose runs, models and data the user may see."""
        self._look_up(pipelines, "GET")
        return {pipeline for pipeline in pipelines if self._known[pipeline, "GET"]}

    def may_start(self, dag_id: str) -> bool:
        """Return whether the user may start runs of a DAG."""
        return self._may(dag_id, "POST")

    def may_answer(self, dag_id: str) -> bool:
        """Return whether the user may answer the questions of a DAG's tasks, as Airflow's own page asks."""
        details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
        entity = DagAccessEntity.HITL_DETAIL
        return bool(get_auth_manager().is_authorized_dag(method="PUT", access_entity=entity, details=details, user=self.user))

    def readable(self) -> set[str]:
        """Return the ids of all DAGs that the user may see."""
        return set(get_auth_manager().get_authorized_dag_ids(user=self.user, method="GET"))

    def require_read(self, pipeline: str, unknown: DeniedError) -> None:
        """Raise `unknown`, which an id that does not exist gets too, where the user may not see the pipeline."""
        if not self.may_read(pipeline):
            raise unknown

    def run_of(self, id: str) -> tuple[str, str]:
        """Return pipeline and Airflow's id of a run, `<pipeline>:<run_id>`.

        Raises:
            DeniedError: `run.unknown`, the user may not see the pipeline.
        """
        pipeline, _, run_id = id.partition(":")
        self.require_read(pipeline, unknown_run(pipeline, run_id))
        return pipeline, run_id

    def require(self, pipeline: str, action: Action, unknown: DeniedError, what: str) -> None:
        """Refuse what the user may not do.

        Args:
            action: POST starts runs, PUT changes what belongs to the pipeline.
            what: in words, `start runs`.

        Raises:
            DeniedError: `unknown`, the user may not even see the pipeline, or there is none to start; `access.denied`.
        """
        self.require_read(pipeline, unknown)
        if action == "POST" and not has_pipeline(pipeline):
            # Before anything else is judged: an auth manager may permit every name but some, and those must answer as this one.
            raise unknown
        if not self._may(pipeline, action):
            message = f"{self.name} may not {what} of pipeline {pipeline}"
            raise DeniedError("access.denied", message, hint="ask an administrator of Airflow for the right")

    def _may(self, pipeline: str, action: Action) -> bool:
        self._look_up([pipeline], action)
        return self._known[pipeline, action]

    def _look_up(self, pipelines: Collection[str], action: Action) -> None:
        """Ask the auth manager about those that were not asked about yet; their teams are one query."""
        wanted = [pipeline for pipeline in pipelines if (pipeline, action) not in self._known]
        if not wanted:
            return
        teams, entity = DagModel.get_dag_id_to_team_name_mapping(wanted), None if action == "PUT" else DagAccessEntity.RUN
        for pipeline in wanted:
            details = DagDetails(id=pipeline, team_name=teams.get(pipeline))
            self._known[pipeline, action] = bool(
                get_auth_manager().is_authorized_dag(method=action, access_entity=entity, details=details, user=self.user)
            )


async def authenticated(request: Request) -> Access:
    """Return the rights of a request's user.

    Raises:
        DeniedError: `access.unauthenticated`, there is no valid token; `request.rate`, the user has sent too many requests;
            `request.origin`, the token came by cookie, and a page of another server may have sent it.
    """
    bearer = await BEARER(request)
    try:
        user = await get_user(request, None, bearer)
    except HTTPException as err:
        # A token that is not valid is as good as none.
        raise DeniedError("access.unauthenticated", "the request has no valid token", hint=_BEARER_HINT) from err
    token = bearer.credentials if bearer is not None else request.cookies.get(COOKIE_NAME_JWT_TOKEN, "")
    found = Access(user, _expiry(token))
    if not rate_limit.RATES.take(found.name, per_minute := rate_limit.RATE.read()):
        message = f"{found.name} has sent more than {per_minute:,} requests in a minute"
        hint = "wait as long as Retry-After says; NIGHTSHIFT_API_RATE sets the limit"
        raise DeniedError("request.rate", message, hint=hint, details={RETRY_AFTER: rate_limit.RATES.wait_seconds(per_minute)})
    if bearer is None and request.method != "GET" and not _is_of_own_page(request):
        message = "a page of another server may have sent the request with a browser's cookie"
        raise DeniedError("request.origin", message, hint=_BEARER_HINT)
    return found


def _is_of_own_page(request: Request) -> bool:
    """Return whether the browser says that a page of this server sent the request. A page cannot set any of these headers."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    # A proxy may give the server another name than browsers know.
    own = {request.headers.get("host", ""), urlsplit(conf.get("api", "base_url", fallback="") or "").netloc}
    if origin is not None and origin.partition("://")[2] not in own - {""}:
        return False
    return site == "same-origin" if site is not None else origin is not None


async def access(request: Request, _bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]) -> Access:
    """Return the rights that `ApiRoute` has looked up, before the body was read; a parameter, so that openapi.json shows the token."""
    found: Access = request.state.access
    return found


def _expiry(token: str) -> float:
    """Return when a token ends that Airflow has found to be valid."""
    try:
        payload = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"])
    except (IndexError, KeyError, ValueError, TypeError):
        return math.inf


Granted = Annotated[Access, Depends(access)]
