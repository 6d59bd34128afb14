"""Requests to the REST API, answered with the records that the server makes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from nightshift.queries.records import (
    DatasetVersion,
    Decision,
    DecisionSummary,
    Model,
    ModelVersion,
    Page,
    Pipeline,
    Run,
    RunSummary,
    StageOrder,
)
from training.errors import DeniedError, NightshiftError, Problem, SpecError, UnavailableError, shown

PREFIX: Final = "/nightshift/api/v1"
TIMEOUT_SECONDS: Final = 30.0
ATTEMPTS: Final = 5
MAX_PAUSE_SECONDS: Final = 4.0
POLL_SECONDS: Final = 2.0
PAGE_ITEMS: Final = 100
BUSY: Final = frozenset({429, 500, 502, 503, 504})
ENDED: Final = frozenset({"success", "failed"})

Found = TypeVar("Found", bound=BaseModel)


class _BusyError(Exception):
    """The server could not answer now."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(response.status_code)
        self.response = response


class Client:
    """An installation, as its REST API shows it.

    Every request is safe to repeat: one that changes something has an `Idempotency-Key`. So a connection that breaks, or a server that is
    busy, is tried again, at most five times.
    """

    def __init__(self, server: str, token: Callable[[], str], *, is_local: bool = False) -> None:
        """Make a client; it connects with its first call.

        Args:
            server: address of the api-server, `https://airflow.example.com`.
            token: returns a valid token of Airflow; it is asked again when the server refuses the one before.
            is_local: the server is on this machine, whose ports a proxy of the environment cannot reach.
        """
        self.server = server.rstrip("/")
        self._token = token
        self._http = httpx.Client(base_url=self.server, timeout=TIMEOUT_SECONDS, trust_env=not is_local)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def pipelines(self) -> Iterator[Pipeline]:
        """Yield the pipelines, by name."""
        return self._pages("/pipelines", Pipeline, {})

    def pipeline(self, name: str) -> Pipeline:
        """Return a pipeline."""
        return self._get(f"/pipelines/{_quoted(name)}", Pipeline)

    def runs(self, pipeline: str | None = None, *, state: str | None = None) -> Iterator[RunSummary]:
        """Yield runs, the newest first; requests are made as they are needed."""
        return self._pages("/runs", RunSummary, {"pipeline": pipeline, "state": state})

    def run(self, id: str) -> Run:
        """Return a run with its stages.

        Args:
            id: `<pipeline>:<run_id>`.
        """
        return self._get(f"/runs/{_quoted(id)}", Run)

    def start_run(
        self,
        pipeline: str,
        *,
        as_of: str | None = None,
        snapshot: str | None = None,
        force: bool = False,
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        key: str | None = None,
    ) -> Run:
        """Queue a run.

        Args:
            as_of: a day, or a time with an offset; None: the last slot.
            snapshot: dataset version instead of the sources.
            force: do the work of every stage again.
            overrides: section (`train`, `evaluate`, `tune`) to keys and values.
            key: of the request; the same key starts one run, also from another process. None: a new one.
        """
        body = {"as_of": as_of, "snapshot": snapshot, "force": force, **(overrides or {})}
        return self._post(f"/pipelines/{_quoted(pipeline)}/runs", body, Run, key)

    def wait(self, id: str, *, each: Callable[[Run], None] = lambda run: None, poll_seconds: float = POLL_SECONDS) -> Run:
        """Return a run once it has ended.

        Args:
            each: is given the run after each look.
        """
        while True:
            run = self.run(id)
            each(run)
            if run.state in ENDED:
                return run
            time.sleep(poll_seconds)

    def models(self) -> Iterator[Model]:
        """Yield the models, by name."""
        return self._pages("/models", Model, {})

    def model(self, name: str) -> Model:
        """Return a model's standing."""
        return self._get(f"/models/{_quoted(name)}", Model)

    def version(self, model: str, version: str) -> ModelVersion:
        """Return a version with the decisions about it, by its number or its semantic version."""
        return self._get(f"/models/{_quoted(model)}/versions/{_quoted(version)}", ModelVersion)

    def change_stage(self, model: str, version: str, stage: str, *, reason: str) -> StageOrder:
        """Make an earlier champion champion again: the order's run does it.

        Args:
            stage: `champion`; others only where the version has it already.
        """
        path = f"/models/{_quoted(model)}/versions/{_quoted(version)}/stage"
        return self._checked(self._send("PUT", path, json={"stage": stage, "reason": reason}), StageOrder)

    def decisions(self, model: str) -> Iterator[DecisionSummary]:
        """Yield the decisions about a model, the newest first."""
        return self._pages(f"/models/{_quoted(model)}/decisions", DecisionSummary, {})

    def decision(self, model: str, key: str) -> Decision:
        """Return a decision with its evidence."""
        return self._get(f"/models/{_quoted(model)}/decisions/{_quoted(key)}", Decision)

    def datasets(self, pipeline: str | None = None) -> Iterator[DatasetVersion]:
        """Yield the versions of a pipeline's data, the newest first; None: the newest one of each pipeline."""
        return self._pages("/datasets" if pipeline is None else f"/datasets/{_quoted(pipeline)}/versions", DatasetVersion, {})

    def dataset(self, pipeline: str, version: str) -> DatasetVersion:
        """Return one version."""
        return self._get(f"/datasets/{_quoted(pipeline)}/versions/{_quoted(version)}", DatasetVersion)

    def deprecate(self, pipeline: str, version: str, *, reason: str, key: str | None = None) -> DatasetVersion:
        """Mark a version, so that new runs refuse it."""
        path = f"/datasets/{_quoted(pipeline)}/versions/{_quoted(version)}/deprecate"
        return self._post(path, {"reason": reason}, DatasetVersion, key)

    def _pages(self, path: str, kind: type[Found], query: Mapping[str, str | None]) -> Iterator[Found]:
        known = {name: value for name, value in query.items() if value is not None}
        cursor: str | None = None
        while True:
            parameters = {**known, "limit": str(PAGE_ITEMS), **({} if cursor is None else {"cursor": cursor})}
            page = self._checked(self._send("GET", path, params=parameters), Page[kind])  # type: ignore[valid-type]
            yield from page.items
            cursor = page.next
            if cursor is None:
                return

    def _get(self, path: str, kind: type[Found]) -> Found:
        return self._checked(self._send("GET", path), kind)

    def _post(self, path: str, body: Mapping[str, Any], kind: type[Found], key: str | None) -> Found:
        return self._checked(self._send("POST", path, json=dict(body), headers={"Idempotency-Key": key or uuid.uuid4().hex}), kind)

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        retrying = Retrying(
            retry=retry_if_exception_type((httpx.TransportError, _BusyError)),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.2, max=MAX_PAUSE_SECONDS),
            reraise=True,
        )
        try:
            return retrying(self._once, method, path, options)
        except _BusyError as err:
            raise _error_of(err.response) from err
        except httpx.TransportError as err:
            why = str(err) or type(err).__name__
            raise UnavailableError("server.unreachable", f"{self.server}: {why}", hint="check --server, or start the services") from err

    def _once(self, method: str, path: str, options: Mapping[str, Any]) -> httpx.Response:
        if "Authorization" not in self._http.headers:
            self._http.headers["Authorization"] = f"Bearer {self._token()}"
        response = self._http.request(method, PREFIX + path, **options)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            self._http.headers["Authorization"] = f"Bearer {self._token()}"
            response = self._http.request(method, PREFIX + path, **options)
        if response.status_code in BUSY:
            raise _BusyError(response)
        if not response.is_success:
            raise _error_of(response)
        return response

    def _checked(self, response: httpx.Response, kind: type[Found]) -> Found:
        try:
            return kind.model_validate_json(response.content)
        except ValidationError as err:
            message = f"{response.request.url} answered what this version does not know: {err.errors()[0]['loc']}"
            raise NightshiftError("server.newer", message, hint="use the client of the server's version") from err


def _error_of(response: httpx.Response) -> NightshiftError:
    """Return the error that a problem describes."""
    try:
        body = response.json()
        code, detail, hint = str(body["code"]), str(body["detail"]), str(body.get("hint", ""))
        errors = [
            Problem(code=str(each["code"]), message=str(each["message"]), field=str(each["field"])) for each in body.get("errors", [])
        ]
    except (ValueError, KeyError, TypeError):
        where = f"{response.request.method} {response.request.url}"
        message = f"{where} answered {response.status_code}: {shown(response.text)}"
        return NightshiftError("server.refused", message, hint="is this the address of an api-server with Nightshift's plugin?")
    if response.status_code in BUSY:
        return UnavailableError(code, detail, hint=hint)
    if response.status_code == httpx.codes.UNPROCESSABLE_ENTITY and errors:
        return SpecError("request", errors)
    return DeniedError(code, detail, hint=hint)


def _quoted(text: str) -> str:
    return quote(text, safe="")
