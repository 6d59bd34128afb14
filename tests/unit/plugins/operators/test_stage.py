"""The operator of all stages: what it finds, what it starts, and what it makes of an attempt's end."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from nightshift.airflow_ext.links import AttemptLogLink, ReportLink, ReusedFromLink, SnapshotLink, mlflow_url
from nightshift.execution import local, relaunch_budget
from nightshift.execution.attempt_end import TEMPLATE_LOST, Ended
from nightshift.execution.retries import InfrastructureError
from nightshift.operators.resolve import ResolveOperator
from nightshift.operators.stage import StageFailedError, StageOperator
from training.code.closure import Code
from training.contracts import RunIdentity, StageRequest, StageResult
from training.errors import UnavailableError
from training.runtime.attempt_errors import HUNG
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec
from training.store import Store
from training.store.leases import COMMIT, HolderWatch, Lease
from training.store.work_folder import StoreUri

SPEC_PATH = CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"
Context = Callable[..., Any]
Execute = Callable[[BaseOperator, Any], Any]
Step = Callable[[StageRequest], Ended]
REPORT = "file:///store/objects/sha256/ab/" + "ab" * 32
TASK_PAGE = "http://airflow.test:8080/dags/search_ranking/runs/{}/tasks/ingest?try_number={}"


class Scripted:
    """A launcher whose attempts do as told, one step each; the last step is repeated."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.steps: list[Step] = []
        self.requests: list[StageRequest] = []
        self.forks: list[bool] = []
        """Whether each attempt might be forked from the template."""
        self.stops = 0

    def launch(
        self, request_uri: str, request: StageRequest, spec: PipelineSpec, say: Callable[[str], None], *, may_fork: bool = True
    ) -> Ended:
        assert self.store.read_request(request_uri) == request
        self.requests.append(request)
        self.forks.append(may_fork)
        say("a line of the stage")
        return self.steps[min(len(self.requests), len(self.steps)) - 1](request)

    def stop(self) -> None:
        self.stops += 1

    def succeed(self, request: StageRequest) -> Ended:
        commit(self.store, request)
        return Ended(exit_code=0, seconds=1.0)

    def fail(self, exit_code: int, code: str, **details: str) -> Step:
        def step(request: StageRequest) -> Ended:
            error = {"exit_code": exit_code, "code": code, "message": "what went wrong", "hint": "mend it", "details": details}
            address_of(self.store, request).write_error(request.attempt_id, error)
            return Ended(exit_code=1, seconds=1.0, peak_bytes=3 * 2**30, limit_bytes=4 * 2**30)

        return step


def address_of(store: Store, request: StageRequest) -> Any:
    return store.work_folder(request.pipeline, request.stage, request.work_id)


def commit(store: Store, request: StageRequest, **more: Any) -> None:
    work_folder = address_of(store, request)
    lease = Lease.acquire(work_folder, owner=request.run.owner, attempt_id=request.attempt_id, takeover_epoch=request.takeover_epoch)
    assert work_folder.create_result(
        StageResult(
            pipeline=request.pipeline,
            stage=request.stage,
            work_id=request.work_id,
            artifact_uri="file:///store/artifact",
            digest="d" * 64,
            run=request.run,
            attempt_id=request.attempt_id,
            attempts=lease.epoch,
            committed_at="2026-02-01T02:00:05+00:00",
            timings={"total": 1.0},
            **more,
        )
    )
    lease.commit(COMMIT, {})


def killed(_request: StageRequest) -> Ended:
    return Ended(exit_code=137, seconds=1.0)


@pytest.fixture
def scripted(store: Store, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    launcher = Scripted(store)
    launcher.steps = [launcher.succeed]
    monkeypatch.setattr(local, "LocalLauncher", lambda settings: launcher)
    monkeypatch.setattr(relaunch_budget, "PAUSE_STEP_SECONDS", 0.0)
    return launcher


@pytest.fixture
def resolve(shop: Path, context_of: Context, execute: Execute) -> Callable[..., dict[str, Any]]:
    """Return `resolve(force=…)`: gives what the first task of a run settles."""
    return lambda **conf: execute(ResolveOperator(task_id="resolve", spec_path=str(SPEC_PATH)), context_of("resolve", conf=conf))


@pytest.fixture
def run_ingest(
    resolve: Callable[..., dict[str, Any]], context_of: Context, execute: Execute
) -> Callable[..., tuple[StageOperator, dict[str, Any]]]:
    """Return `run_ingest(run_id=…, force=…)`: resolve and ingest of one run; gives the operator and its XCom."""

    def call(
        *,
        run_id: str = "r1",
        try_number: int = 1,
        operator: StageOperator | None = None,
        resolved: dict[str, Any] | None = None,
        **conf: Any,
    ) -> Any:
        resolved = resolved or resolve(**conf)
        operator = operator or StageOperator(task_id="ingest", stage="ingest")
        return operator, execute(operator, context_of("ingest", run_id=run_id, try_number=try_number, results={"resolve": resolved}))

    return call


def links(operator: StageOperator) -> tuple[str, str, str]:
    key: Any = None
    reused, report, log = (kind().get_link(operator, ti_key=key) for kind in (ReusedFromLink, ReportLink, AttemptLogLink))
    return reused, report, log


def test_an_attempt_that_commits_is_the_result(scripted: Scripted, run_ingest: Any) -> None:
    operator, values = run_ingest()
    (request,) = scripted.requests
    assert request.run == RunIdentity(dag_id="search_ranking", run_id="r1", task_id="ingest", try_number=1)
    assert len(request.parameters["listing"]["clicks"]) == 30
    assert request.as_of == datetime(2026, 2, 1, 2, tzinfo=UTC)
    assert StageResult.from_mapping(values).reused_from is None
    assert links(operator) == ("", "", TASK_PAGE.format("r1", 1))


def test_an_attempt_is_held_to_the_code_that_its_work_is_named_after(
    scripted: Scripted, run_ingest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_ingest()
    monkeypatch.setenv("NIGHTSHIFT_CODE_VERSION", "sha256:1")
    run_ingest(run_id="r2")
    by_files, by_image = scripted.requests
    assert by_files.code_version == Code.of(by_files.code_files).version
    assert "training/stages/ingest.py" in by_files.code_files
    assert "training/stages/train.py" not in by_files.code_files
    assert (by_image.code_version, by_image.code_files) == ("sha256:1", {})


def test_the_files_that_a_request_names_are_in_the_store_before_the_attempt_starts(
    scripted: Scripted,
    run_ingest: Any,
    resolve: Any,
    context_of: Context,
    execute: Execute,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suite = tmp_path / "expectations" / "search_ranking" / "clicks.json"
    suite.parent.mkdir(parents=True)
    suite.write_text('{"expectations": []}', encoding="utf-8")
    monkeypatch.setenv("NIGHTSHIFT_EXPECTATIONS", str(tmp_path / "expectations"))
    seen = []

    def read_suites(request: StageRequest) -> Ended:
        seen.extend(scripted.store.objects.get_bytes(StoreUri(uri).digest) for uri in request.parameters["suites"].values())
        return scripted.succeed(request)

    resolved = resolve()
    _, ingested = run_ingest(resolved=resolved)
    scripted.steps = [read_suites]
    results = {"resolve": resolved, "ingest": ingested}
    execute(StageOperator(task_id="validate", stage="validate"), context_of("validate", results=results))
    assert seen == [suite.read_bytes()]


def test_another_run_finds_the_work_done_and_starts_nothing(scripted: Scripted, run_ingest: Any) -> None:
    run_ingest()
    operator, values = run_ingest(run_id="r2")
    assert len(scripted.requests) == 1
    found = StageResult.from_mapping(values)
    assert found.reused_from == found.run == RunIdentity(dag_id="search_ranking", run_id="r1", task_id="ingest", try_number=1)
    assert links(operator) == (TASK_PAGE.format("r1", 1), "", TASK_PAGE.format("r1", 1))


def test_task_that_is_done_sends_airflow_only_the_links_that_lead_somewhere(scripted: Scripted, run_ingest: Any) -> None:
    made, _ = run_ingest()
    reused, _ = run_ingest(run_id="r2")
    assert [link.name for link in made.operator_extra_links] == [SnapshotLink.name, AttemptLogLink.name]
    assert [link.name for link in reused.operator_extra_links] == [ReusedFromLink.name, SnapshotLink.name, AttemptLogLink.name]
    assert {link.name for link in StageOperator(task_id="train", stage="train").operator_extra_links} >= {ReportLink.name}


def test_a_later_try_finds_what_the_earlier_one_made(scripted: Scripted, run_ingest: Any) -> None:
    run_ingest()
    _, values = run_ingest(try_number=2)
    assert len(scripted.requests) == 1
    assert StageResult.from_mapping(values).reused_from == RunIdentity(dag_id="search_ranking", run_id="r1", task_id="ingest")


def test_a_forced_run_does_its_work_again_but_its_retry_does_not(scripted: Scripted, run_ingest: Any, resolve: Any) -> None:
    run_ingest()
    forced = resolve(force=True)
    run_ingest(run_id="r2", resolved=forced)
    run_ingest(run_id="r2", try_number=2, resolved=forced)
    run_ingest(run_id="r3", force=True)
    assert [request.run.run_id for request in scripted.requests] == ["r1", "r2", "r3"]
    assert len({request.work_id for request in scripted.requests}) == 3


def test_a_forced_run_with_the_id_of_an_earlier_one_does_its_work_again(scripted: Scripted, run_ingest: Any) -> None:
    run_ingest(run_id="r1", force=True)
    _, values = run_ingest(run_id="r1", force=True)
    first, second = scripted.requests
    assert first.work_id != second.work_id
    assert StageResult.from_mapping(values).work_id == second.work_id


def test_a_killed_attempt_is_started_again(scripted: Scripted, run_ingest: Any, capfd: pytest.CaptureFixture[str]) -> None:
    def killed_after_a_checkpoint(request: StageRequest) -> Ended:
        lease = Lease.acquire(address_of(scripted.store, request), owner=request.run.owner, attempt_id=request.attempt_id)
        lease.commit("checkpoint", {"uri": "file:///store/checkpoint", "step": 1200, "epoch": 1})
        return killed(request)

    scripted.steps = [killed, killed_after_a_checkpoint, scripted.succeed]
    _, values = run_ingest()
    log = capfd.readouterr().out
    assert len({request.attempt_id for request in scripted.requests}) == 3
    assert len({request.work_id for request in scripted.requests}) == 1
    # The first one died before it had the lease.
    assert StageResult.from_mapping(values).attempts == 2
    assert "relaunch 1 of 8: killed by SIGKILL; starting from the beginning" in log
    assert "relaunch 2 of 8: killed by SIGKILL; resuming from step 1200" in log


def test_attempt_whose_process_hung_is_relaunched_and_its_error_has_the_phase_of_the_last_heartbeat(
    scripted: Scripted, run_ingest: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    def hang(request: StageRequest) -> Ended:
        did = {"kind": "transfer", "name": "read part-1", "limit_seconds": 900.0}
        address_of(scripted.store, request).write_heartbeat(request.attempt_id, {"beat": 7, "phase": did})
        return Ended(exit_code=HUNG, seconds=1.0)

    scripted.steps = [hang, scripted.succeed]
    run_ingest()
    hung = scripted.requests[0]
    assert address_of(scripted.store, hung).error(hung.attempt_id)["code"] == "stage.hung"
    words = "[stage.hung] rank 0: no progress in transfer (read part-1) within the limit of 900 s"
    assert f"relaunch 1 of 8: {words}" in capfd.readouterr().out


def test_the_infrastructure_budget_ends(scripted: Scripted, run_ingest: Any) -> None:
    scripted.steps = [killed]
    with pytest.raises(AirflowFailException, match=r"killed by SIGKILL; relaunched 8 times already \(retries\.infrastructure\)"):
        run_ingest()
    assert len(scripted.requests) == 1 + 8


def test_a_killed_template_costs_no_relaunch_and_the_next_attempt_has_a_process_of_its_own(
    scripted: Scripted, run_ingest: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    lost = Ended(exit_code=137, seconds=1.0, code=TEMPLATE_LOST)
    scripted.steps = [lambda request: lost, *[killed] * 8, scripted.succeed]
    run_ingest()
    assert scripted.forks == [True] + [False] * 9
    log = capfd.readouterr().out
    assert "starts again in a process of its own, which uses no relaunch: the process that stages are forked from was killed" in log
    assert "relaunch 8 of 8: killed by SIGKILL" in log


def test_a_lost_member_of_a_gang_is_no_failure_of_the_users(scripted: Scripted, run_ingest: Any) -> None:
    # torchrun's own exit, when kill -9 hit a rank: there is no error file.
    scripted.steps = [lambda request: Ended(exit_code=1, seconds=1.0), scripted.succeed]
    run_ingest()
    assert len(scripted.requests) == 2


@pytest.mark.parametrize("exit_code", [64, 65, 70, 76, 77])
def test_what_would_happen_again_fails_at_once(exit_code: int, scripted: Scripted, run_ingest: Any) -> None:
    scripted.steps = [scripted.fail(exit_code, "some.code")]
    with pytest.raises(AirflowFailException, match=r"^\[some\.code\] what went wrong \(mend it\)$"):
        run_ingest()
    assert len(scripted.requests) == 1


def test_a_failed_check_links_to_its_report(scripted: Scripted, run_ingest: Any) -> None:
    scripted.steps = [scripted.fail(65, "checks.failed", report_uri=REPORT)]
    operator = StageOperator(task_id="ingest", stage="ingest")
    with pytest.raises(AirflowFailException):
        run_ingest(operator=operator)
    assert links(operator) == ("", f"http://airflow.test:8080/nightshift/reports/search_ranking/{'ab' * 32}", "")


@pytest.mark.parametrize("exit_code", [1, 74])
def test_what_may_pass_is_airflows_to_try_again(exit_code: int, scripted: Scripted, run_ingest: Any) -> None:
    scripted.steps = [scripted.fail(exit_code, "storage.unavailable")]
    with pytest.raises(StageFailedError, match=r"storage\.unavailable"):
        run_ingest()
    assert len(scripted.requests) == 1


def test_out_of_memory_is_tried_once_more_and_then_explained(scripted: Scripted, run_ingest: Any) -> None:
    scripted.steps = [scripted.fail(71, "memory.exhausted")]
    with pytest.raises(AirflowFailException) as caught:
        run_ingest()
    assert len(scripted.requests) == 2
    assert str(caught.value) == (
        "[memory.exhausted] what went wrong (mend it); peak 3,072 MiB in one process, limit 4,096 MiB; twice, so it is not retried "
        "(use a shorter data.source.window, or a machine with more memory)"
    )


def test_a_lost_lease_ends_the_try_and_spares_the_users_budget(scripted: Scripted, run_ingest: Any) -> None:
    scripted.steps = [scripted.fail(75, "lease.lost")]
    with pytest.raises(InfrastructureError, match=r"lease\.lost"):
        run_ingest()
    assert len(scripted.requests) == 1


def test_a_stopped_task_starts_no_further_attempt(scripted: Scripted, run_ingest: Any) -> None:
    operator = StageOperator(task_id="ingest", stage="ingest")

    def stopped_meanwhile(_request: StageRequest) -> Ended:
        operator.on_kill()
        return Ended(exit_code=143, seconds=1.0)

    scripted.steps = [stopped_meanwhile]
    with pytest.raises(InfrastructureError, match="stopped while it ran: killed by SIGTERM"):
        run_ingest(operator=operator)
    assert (len(scripted.requests), scripted.stops) == (1, 1)


def test_a_result_counts_even_if_its_process_was_killed_afterwards(scripted: Scripted, run_ingest: Any) -> None:
    def commits_and_dies(request: StageRequest) -> Ended:
        commit(scripted.store, request)
        return killed(request)

    scripted.steps = [commits_and_dies]
    run_ingest()
    assert len(scripted.requests) == 1


def test_success_without_a_result_is_none(scripted: Scripted, run_ingest: Any) -> None:
    scripted.steps = [lambda request: Ended(exit_code=0, seconds=1.0), scripted.succeed]
    run_ingest()
    assert len(scripted.requests) == 2


def foreign_request(scripted: Scripted, run_ingest: Any) -> StageRequest:
    """Return what another run would ask for: the very same work."""
    scripted.steps = [scripted.fail(65, "some.code")]
    with pytest.raises(AirflowFailException):
        run_ingest(run_id="other")
    scripted.steps = [scripted.succeed]
    return scripted.requests.pop()


def test_the_second_run_at_the_same_work_waits_and_reuses(
    scripted: Scripted, run_ingest: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    other = foreign_request(scripted, run_ingest)
    lease = Lease.acquire(address_of(scripted.store, other), owner=other.run.owner, attempt_id=other.attempt_id)

    def meanwhile(_seconds: float) -> None:
        lease.commit(COMMIT, {})
        commit(scripted.store, other)

    # The backend's own clock: threads and `subprocess` sleep too, and would end the work before it was seen.
    monkeypatch.setattr(local, "time", SimpleNamespace(sleep=meanwhile, monotonic=time.monotonic))
    _, values = run_ingest()
    log = capfd.readouterr().out
    assert scripted.requests == []
    assert StageResult.from_mapping(values).reused_from == other.run
    assert "search_ranking/other/ingest is at the same work" in log


def test_a_dead_holders_work_is_taken_over(scripted: Scripted, run_ingest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    other = foreign_request(scripted, run_ingest)
    Lease.acquire(address_of(scripted.store, other), owner=other.run.owner, attempt_id=other.attempt_id)
    monkeypatch.setattr(local, "HolderWatch", partial(HolderWatch, ttl_seconds=0))
    _, values = run_ingest()
    (request,) = scripted.requests
    assert request.takeover_epoch == 1
    assert StageResult.from_mapping(values).attempts == 2


def test_a_lease_that_was_held_after_all_is_waited_for(scripted: Scripted, run_ingest: Any) -> None:
    scripted.steps = [scripted.fail(75, "lease.held"), scripted.succeed]
    run_ingest()
    assert len(scripted.requests) == 2


def test_an_upstream_task_without_a_result_is_named(shop: Path, scripted: Scripted, context_of: Context, execute: Execute) -> None:
    resolved = execute(ResolveOperator(task_id="resolve", spec_path=str(SPEC_PATH)), context_of("resolve"))
    with pytest.raises(AirflowFailException, match="stage 'ingest' left no result"):
        execute(StageOperator(task_id="validate", stage="validate"), context_of("validate", results={"resolve": resolved}))
    with pytest.raises(AirflowFailException, match="task 'resolve' left no result"):
        execute(StageOperator(task_id="validate", stage="validate"), context_of("validate"))
    assert scripted.requests == []


def test_a_store_that_does_not_answer_may_answer_later(scripted: Scripted, run_ingest: Any) -> None:
    def gone(_request: StageRequest) -> Ended:
        raise UnavailableError("storage.unavailable", "could not read")

    scripted.steps = [gone]
    with pytest.raises(StageFailedError, match=r"\[storage\.unavailable\] could not read"):
        run_ingest()


def test_reports_of_a_reused_stage_are_its_makers(scripted: Scripted, run_ingest: Any) -> None:
    def with_a_report(request: StageRequest) -> Ended:
        commit(scripted.store, request, reports={"validation": REPORT})
        return Ended(exit_code=0, seconds=1.0)

    scripted.steps = [with_a_report]
    for run_id in ("r1", "r2"):
        operator, _ = run_ingest(run_id=run_id)
        assert links(operator)[1] == f"http://airflow.test:8080/nightshift/reports/search_ranking/{'ab' * 32}"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("http://mlflow:5000/", ("http://mlflow:5000/#/models/a%20model/versions/7", "http://mlflow:5000/#/runs/r1")),
        ("sqlite:///mlflow.db", ("", "")),
    ],
)
def test_mlflow_is_linked_where_it_is_a_server(uri: str, expected: tuple[str, str]) -> None:
    assert (mlflow_url(uri, model="a model", version="7"), mlflow_url(uri, model="", run_id="r1")) == expected
    assert mlflow_url(uri, model="a model") == ""
