"""Requests to the REST API, answered with the records that the server makes."""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from nightshift.client.answered_errors import AIRFLOW_PREFIX, BUSY, error_of
from nightshift.client.metric_stream import EVENTS, SILENT_SECONDS, StreamRefusedError, points_of
from nightshift.queries.schemas import (
    ApprovalAnswer,
    DatasetDetails,
    DatasetVersion,
    DecisionDetails,
    DecisionSummary,
    FailedHelper,
    MetricPage,
    MetricPoint,
    Model,
    ModelDetails,
    ModelVersion,
    Page,
    Pipeline,
    PipelineWithRun,
    Run,
    RunSummary,
    SavedCheckpoint,
    SideBySide,
    StageOrder,
    Study,
)
from training.contracts import JsonObject
from training.errors import DeniedError, NightshiftError, UnavailableError

PREFIX: Final = "/nightshift/api/v1"
TIMEOUT_SECONDS: Final = 30.0
ATTEMPTS: Final = 5
MAX_PAUSE_SECONDS: Final = 4.0
POLL_SECONDS: Final = 2.0
PAGE_ITEMS: Final = 100
ENDED: Final = frozenset({"success", "failed"})

Found = TypeVar("Found", bound=BaseModel)


class _BusyError(Exception):
    """The server could not answer now."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(response.status_code)
        self.response = response


class Client:
    """An installation, as its REST API shows it.

    Every request is safe to repeat: one that starts a run has an `Idempotency-Key`, and any other change that is made twice is one. So a
    connection that breaks, or a server that is busy, is tried again, at most five times.
    """

    def __init__(self, server: str, token: Callable[[], str], *, is_local: bool = False) -> None:
        """Make a client; it connects with its first call.

        Args:
            server: address of the api-server, `https://airflow.example.com`.
            token: returns a valid token of Airflow; it is asked again when the server refuses the one before.
            is_local: the server is on this machine, whose ports a proxy of the environment cannot reach.
        """
        self.server = server.rstrip("/")
        self.is_local = is_local
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

    def pipelines_with_runs(self) -> Iterator[PipelineWithRun]:
        """Yield the pipelines with their newest runs, by name."""
        return self._pages("/pipelines", PipelineWithRun, {"with": "last_run"})

    def failed_helpers(self) -> Iterator[FailedHelper]:
        """Yield the helper DAGs whose newest run that has ended failed, by name."""
        return self._pages("/failed-helpers", FailedHelper, {})

    def pipeline(self, name: str) -> Pipeline:
        """Return a pipeline."""
        return self._get(f"/pipelines/{_quoted(name)}", Pipeline)

    def require_on(self, name: str, *, option: str = "") -> Pipeline:
        """Return a pipeline that is not paused, whose runs can start; `option`: what else helps, for the hint.

        Raises:
            DeniedError: `pipeline.unknown`; `pipeline.paused`, its runs would wait.
        """
        found = self.pipeline(name)
        if found.is_paused:
            message = f"{name} is paused in Airflow: its runs would wait, so none was queued"
            raise DeniedError("pipeline.paused", message, hint=f"{option}nightshift schedule on {name}")
        return found

    def switch(self, name: str, *, on: bool) -> Pipeline:
        """Let a pipeline's schedule and its runs that wait start, or pause it; return it as it is then.

        Raises:
            DeniedError: `pipeline.unknown`; `airflow.refused`, the user may not.
        """
        # Airflow's own route takes any DAG.
        self.pipeline(name)
        self.airflow("PATCH", f"/dags/{_quoted(name)}", json={"is_paused": not on})
        return self.pipeline(name)

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
        promote: bool = True,
        overrides: Mapping[str, JsonObject] | None = None,
        key: str | None = None,
    ) -> Run:
        """Queue a run.

        Args:
            as_of: a day, or a time with an offset; None: the last slot.
            snapshot: dataset version instead of the sources.
            force: do the work of every stage again.
            promote: decide about the model; otherwise the run ends with its evaluation.
            overrides: section (`data`, `train`, `evaluate`, `tune`) to keys and values.
            key: of the request; the same key starts one run, also from another process. None: a new one.
        """
        body = {"as_of": as_of, "snapshot": snapshot, "force": force, "promote": promote, **(overrides or {})}
        return self._ordered(f"/pipelines/{_quoted(pipeline)}/runs", body, Run, key)

    def register(self, pipeline: str, artifact_uri: str, format: str, *, key: str | None = None, **body: Any) -> Run:
        """Queue a run that judges a model from outside.

        Args:
            pipeline: whose data, evaluation and gates judge it.
            artifact_uri: of the file, as the server sees it: below a variable that the pipeline's YAML names for its data, or in a bucket.
            format: `safetensors`, `xgboost_json` or `onnx`.
            key: as in `start_run`.
            body: the other keys of `POST /models/register`: `transforms_uri`, `sha256`, `version`, `metrics`, `as_of`, ….
        """
        return self._ordered("/models/register", {"pipeline": pipeline, "artifact_uri": artifact_uri, "format": format, **body}, Run, key)

    def start_study(self, pipeline: str, *, key: str | None = None, **body: Any) -> Study:
        """Queue a study of a pipeline.

        Args:
            key: as in `start_run`.
            body: `space`, `objective`, `trials`, `tune`, `train`, `as_of`, `snapshot`, as `POST /hpo/studies` has them.
        """
        return self._ordered("/hpo/studies", {"pipeline": pipeline, **body}, Study, key)

    def study(self, id: str) -> Study:
        """Return a study with its finished trials, by the id of its run."""
        return self._get(f"/hpo/studies/{_quoted(id)}", Study)

    def checkpoints(self, id: str) -> Iterator[SavedCheckpoint]:
        """Yield the checkpoints of a run's training, the oldest first.

        Args:
            id: `<pipeline>:<run_id>`.
        """
        return self._pages(f"/training-runs/{_quoted(id)}/checkpoints", SavedCheckpoint, {})

    def restore(self, id: str, checkpoint: str, *, overrides: Mapping[str, JsonObject] | None = None, key: str | None = None) -> Run:
        """Queue a run whose training begins at a checkpoint of an earlier run, over the same data.

        Args:
            id: of the run that saved it, `<pipeline>:<run_id>`.
            checkpoint: `epoch_3` or `3`, `step_400`, `best`, `newest`.
            overrides: section (`train`, `evaluate`, `tune`) to keys and values that the new run has instead.
            key: as in `start_run`.
        """
        return self._ordered(f"/training-runs/{_quoted(id)}/checkpoints/{_quoted(checkpoint)}/restore", dict(overrides or {}), Run, key)

    def metrics(self, id: str, *, after: str | None = None, follow: bool = False, refit: bool = False) -> Iterator[MetricPoint]:
        """Yield the metrics of a run's training, each point once and in order, also where the server restarts in the meantime.

        Args:
            id: `<pipeline>:<run_id>`.
            after: `id` of a point; only those that follow it.
            follow: until the training has ended; otherwise those that there are.
            refit: of the refit that followed the training.
        """
        return self._metrics(f"/training-runs/{_quoted(id)}{'/refit' if refit else ''}/metrics", after, follow=follow)

    def trial_metrics(self, id: str, number: int, *, after: str | None = None, follow: bool = False) -> Iterator[MetricPoint]:
        """Yield the metrics of a trial, as `metrics` does those of a run.

        Args:
            id: of the study's run, `<pipeline>:<run_id>`.
            number: of the trial, from 0.
        """
        return self._metrics(f"/hpo/studies/{_quoted(id)}/trials/{number}/metrics", after, follow=follow)

    def _metrics(self, path: str, after: str | None, *, follow: bool) -> Iterator[MetricPoint]:
        def page(last: str | None) -> MetricPage:
            return self._checked(self._send("GET", path, params={} if last is None else {"after": last}), MetricPage)

        if follow:
            yield from points_of(page, functools.partial(self._event_lines, path), after)
            return
        while found := page(after):
            yield from found.items
            after = found.last
            if found.is_complete or not found.items:
                return

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

    def model(self, name: str) -> ModelDetails:
        """Return a model's standing."""
        return self._get(f"/models/{_quoted(name)}", ModelDetails)

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

    def answer(self, model: str, version: str, answer: str, *, note: str = "") -> ApprovalAnswer:
        """Answer the request for approval of a version.

        Args:
            answer: `approve` or `decline`.
            note: reason, stored in the ledger.
        """
        path = f"/models/{_quoted(model)}/versions/{_quoted(version)}/approval"
        return self._checked(self._send("PUT", path, json={"answer": answer, "note": note}), ApprovalAnswer)

    def compare(self, a: str, b: str) -> SideBySide:
        """Return two versions or runs side by side.

        Args:
            a: `<model>@<version>`, or a run: `<pipeline>:<run_id>`.
            b: likewise.
        """
        return self._checked(self._send("GET", "/compare", params={"a": a, "b": b}), SideBySide)

    def decisions(self, model: str) -> Iterator[DecisionSummary]:
        """Yield the decisions about a model, the newest first."""
        return self._pages(f"/models/{_quoted(model)}/decisions", DecisionSummary, {})

    def decision(self, model: str, key: str) -> DecisionDetails:
        """Return a decision with its evidence."""
        return self._get(f"/models/{_quoted(model)}/decisions/{_quoted(key)}", DecisionDetails)

    def datasets(self, pipeline: str | None = None) -> Iterator[DatasetVersion]:
        """Yield the versions of a pipeline's data, the newest first; None: the newest one of each pipeline."""
        return self._pages("/datasets" if pipeline is None else f"/datasets/{_quoted(pipeline)}/versions", DatasetVersion, {})

    def dataset(self, pipeline: str, version: str) -> DatasetDetails:
        """Return one version, with its columns."""
        return self._get(f"/datasets/{_quoted(pipeline)}/versions/{_quoted(version)}", DatasetDetails)

    def deprecate(self, pipeline: str, version: str, *, reason: str) -> DatasetVersion:
        """Mark a version, so that new runs refuse it."""
        path = f"/datasets/{_quoted(pipeline)}/versions/{_quoted(version)}/deprecate"
        return self._checked(self._send("POST", path, json={"reason": reason}), DatasetVersion)

    def airflow(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request to Airflow's own API, with the same login; `path` begins behind `/api/v2`.

        Args:
            options: of httpx, `params` and `json`.
        """
        return self._send(method, path, prefix=AIRFLOW_PREFIX, **options)

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

    def _ordered(self, path: str, body: JsonObject, kind: type[Found], key: str | None) -> Found:
        return self._checked(self._send("POST", path, json=dict(body), headers={"Idempotency-Key": key or uuid.uuid4().hex}), kind)

    def _send(self, method: str, path: str, *, prefix: str = PREFIX, **options: Any) -> httpx.Response:
        retrying = Retrying(
            retry=retry_if_exception_type((httpx.TransportError, _BusyError)),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.2, max=MAX_PAUSE_SECONDS),
            reraise=True,
        )
        try:
            return retrying(self._once, method, prefix + path, options)
        except _BusyError as err:
            raise error_of(err.response) from err
        except httpx.TransportError as err:
            why = str(err) or type(err).__name__
            raise UnavailableError("server.unreachable", f"{self.server}: {why}", hint="check --server, or start the services") from err

    def _event_lines(self, path: str, last: str | None) -> Iterator[str]:
        headers = {"Accept": EVENTS, **({} if last is None else {"Last-Event-ID": last})}
        if "Authorization" not in self._http.headers:
            self._http.headers["Authorization"] = f"Bearer {self._token()}"
        timeout = httpx.Timeout(TIMEOUT_SECONDS, read=SILENT_SECONDS)
        with self._http.stream("GET", PREFIX + path, headers=headers, timeout=timeout) as response:
            if not response.headers.get("Content-Type", "").startswith(EVENTS):
                # The request for a page shows what is wrong, and gets a new token.
                raise StreamRefusedError
            yield from response.iter_lines()

    def _once(self, method: str, path: str, options: Mapping[str, Any]) -> httpx.Response:
        if "Authorization" not in self._http.headers:
            self._http.headers["Authorization"] = f"Bearer {self._token()}"
        response = self._http.request(method, path, **options)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            self._http.headers["Authorization"] = f"Bearer {self._token()}"
            response = self._http.request(method, path, **options)
        if response.status_code in BUSY:
            raise _BusyError(response)
        if not response.is_success:
            raise error_of(response)
        return response

    def _checked(self, response: httpx.Response, kind: type[Found]) -> Found:
        try:
            return kind.model_validate_json(response.content)
        except ValidationError as err:
            message = f"{response.request.url} answered what this version does not know: {err.errors()[0]['loc']}"
            raise NightshiftError("server.newer", message, hint="use the client of the server's version") from err


def airflow_path(id: str) -> str:
    """Return the path of the run `<pipeline>:<run_id>` in Airflow's own API."""
    dag_id, _, run_id = id.partition(":")
    return f"/dags/{_quoted(dag_id)}/dagRuns/{_quoted(run_id)}"


def _quoted(text: str) -> str:
    return quote(text, safe="")
