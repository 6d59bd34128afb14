"""The transaction around a stage's work."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pytest

from training.code.loaded import LoadedCode
from training.contracts import ExitCode, RunIdentity, StageRequest, StageResult, sha256_hex
from training.errors import DataError, HungError, NightshiftError, PreemptedError, ReplicasDifferError, UnavailableError
from training.process.waiting import database_wait_seconds
from training.runtime import runner
from training.runtime.context import StageContext, StageOutput, StopFlag
from training.runtime.provenance import CHECKOUT
from training.runtime.runner import run
from training.spec import freeze, load_spec
from training.store import Store, WorkFolder
from training.store.leases import Lease, holder_of

WORK_ID = "f" * 64


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def work_folder(store: Store) -> WorkFolder:
    return store.work_folder("search_ranking", "prepare", WORK_ID)


def ask(store: Store, attempt_id: str, *, run_id: str = "r1", takeover_epoch: int = 0, code: str = "") -> str:
    spec_uri = store.put_json(freeze(load_spec(CHECKOUT / "dags/pipelines/search_ranking.yaml")))
    request = StageRequest(
        pipeline="search_ranking",
        stage="prepare",
        work_id=WORK_ID,
        attempt_id=attempt_id,
        store_uri=store.root_uri,
        spec_uri=spec_uri,
        as_of=datetime(2026, 2, 1, 2, tzinfo=UTC),
        inputs={},
        run=RunIdentity(dag_id="search_ranking", run_id=run_id, task_id="prepare"),
        takeover_epoch=takeover_epoch,
        code_version=code,
    )
    return store.work_folder("search_ranking", "prepare", WORK_ID).write_request(request)


def make(content: bytes = b"data") -> Callable[[StageContext], StageOutput]:
    def work(context: StageContext) -> StageOutput:
        uri, manifest = context.store.manifests.put_files("dataset", {"file": content}, {})
        with context.timed("part"):
            context.progress(1, 1, "rows")
        return StageOutput(artifact_uri=uri, digest=manifest.digest, scalars={"rows": 1})

    return work


def test_work_that_opens_the_database_may_wait_for_it(store: Store) -> None:
    allowed: list[float] = []

    def work(context: StageContext) -> StageOutput:
        allowed.append(database_wait_seconds())
        return make()(context)

    assert run(work, ask(store, "a1"), stop=StopFlag()) == ExitCode.DONE
    assert allowed == [180.0]


def fail_with(error: BaseException) -> Callable[[StageContext], StageOutput]:
    def work(context: StageContext) -> StageOutput:
        raise error

    return work


def test_finished_work_leaves_a_result_a_log_and_a_free_lease(store: Store, work_folder: WorkFolder) -> None:
    assert run(make(), ask(store, "a1"), stop=StopFlag()) is ExitCode.DONE
    result = work_folder.result()
    assert result is not None
    assert (result.attempts, result.attempt_id, result.scalars) == (1, "a1", {"rows": 1})
    assert {"part", "total"} <= set(result.timings)
    assert store.manifests.get(result.artifact_uri).digest == result.digest
    holder = holder_of(work_folder.chain())
    assert holder is not None
    assert holder.has_committed
    assert work_folder.error("a1") is None


def test_a_stage_that_ends_before_its_first_heartbeat_leaves_five_files(
    store: Store, work_folder: WorkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.runtime.runner.HEARTBEAT_SECONDS", 3600.0)
    run(make(), ask(store, "a1"), stop=StopFlag())
    folder = Path(work_folder.uri.removeprefix("file://"))
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    ours = {"_RESULT.json", "attempts/a1/_REQUEST.json", "attempts/a1/log.txt"}
    assert names == {*ours, "journal/0000000001.json", "journal/0000000002.json"}


def test_a_stage_beats_until_its_result_is_there(store: Store, work_folder: WorkFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.runtime.runner.HEARTBEAT_SECONDS", 0.01)
    beaten, beat, create = threading.Event(), WorkFolder.write_heartbeat, WorkFolder.create_result

    def write_heartbeat(folder: WorkFolder, *arguments: Any) -> None:
        beat(folder, *arguments)
        beaten.set()

    def create_result(folder: WorkFolder, result: StageResult) -> bool:
        beaten.clear()
        assert beaten.wait(20), "the write hangs, and nothing says that this attempt lives"
        return create(folder, result)

    monkeypatch.setattr(WorkFolder, "write_heartbeat", write_heartbeat)
    monkeypatch.setattr(WorkFolder, "create_result", create_result)
    assert run(make(), ask(store, "a1"), stop=StopFlag()) is ExitCode.DONE
    assert work_folder.result() is not None


@pytest.mark.parametrize("form", ["path", "uri", "uri with blanks"])
def test_request_is_found_by_its_path_and_by_its_uri(form: str, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "my app" / "store"))
    uri = ask(store, "a1")
    given = {"path": unquote(uri.removeprefix("file://")), "uri": uri, "uri with blanks": unquote(uri)}[form]
    assert run(make(), given, stop=StopFlag()) is ExitCode.DONE
    assert store.work_folder("search_ranking", "prepare", WORK_ID).result() is not None


def test_finished_work_is_not_done_again(store: Store, work_folder: WorkFolder) -> None:
    run(make(), ask(store, "a1"), stop=StopFlag())
    assert run(fail_with(RuntimeError("ran again")), ask(store, "a2"), stop=StopFlag()) is ExitCode.DONE
    result = work_folder.result()
    assert result is not None
    assert result.attempt_id == "a1"


@pytest.mark.parametrize(
    ("error", "code", "name"),
    [
        (DataError("schema.missing", "no column x", hint="add it"), ExitCode.BAD_DATA, "schema.missing"),
        (MemoryError("at 3 GB"), ExitCode.OUT_OF_MEMORY, "memory.exhausted"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), ExitCode.OUT_OF_MEMORY, "memory.exhausted"),
        (OSError(28, "No space left on device"), ExitCode.UNAVAILABLE, "storage.full"),
        (OSError(122, "Disk quota exceeded"), ExitCode.UNAVAILABLE, "storage.full"),
        (OSError("Error writing bytes to file. Detail: [errno 28] No space left on device"), ExitCode.UNAVAILABLE, "storage.full"),
        (duckdb.IOException('IO Error: Could not write file ".spill/x": No space left on device'), ExitCode.UNAVAILABLE, "storage.full"),
        (OSError(24, "Too many open files"), ExitCode.UNAVAILABLE, "process.open_files"),
        (duckdb.IOException('IO Error: Cannot open file "x": Too many open files'), ExitCode.UNAVAILABLE, "process.open_files"),
        (duckdb.ConversionException("Could not convert 'No space left on device' to INT32"), ExitCode.UNEXPECTED, "stage.unexpected"),
        (PreemptedError("stage.stopped", "stopped"), ExitCode.PREEMPTED, "stage.stopped"),
        (KeyError("bug"), ExitCode.UNEXPECTED, "stage.unexpected"),
    ],
)
def test_failure_is_classified_written_down_and_leaves_no_result(
    store: Store, work_folder: WorkFolder, error: Exception, code: ExitCode, name: str
) -> None:
    assert run(fail_with(error), ask(store, "a1"), stop=StopFlag()) is code
    record = work_folder.error("a1")
    assert record is not None
    assert (record["code"], record["exit_code"]) == (name, int(code))
    assert work_folder.result() is None


def test_first_error_of_an_attempt_is_kept(store: Store, work_folder: WorkFolder) -> None:
    uri = ask(store, "a1")
    work_folder.write_error("a1", {"code": "data.first"})
    run(fail_with(DataError("peer.lost", "consequence")), uri, stop=StopFlag())
    record = work_folder.error("a1")
    assert record is not None
    assert record["code"] == "data.first"


def test_attempt_that_was_taken_over_commits_nothing(store: Store, work_folder: WorkFolder) -> None:
    def work(context: StageContext) -> StageOutput:
        outcome = make(b"stale")(context)
        Lease.acquire(work_folder, owner=context.request.run.owner, attempt_id="newer")
        return outcome

    assert run(work, ask(store, "a1"), stop=StopFlag()) is ExitCode.PREEMPTED
    record = work_folder.error("a1")
    assert record is not None
    assert record["code"] == "lease.lost"
    assert work_folder.result() is None


def test_fenced_process_ends_at_its_next_heartbeat(store: Store, work_folder: WorkFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    class Ended(Exception):
        pass

    def end(code: int) -> None:
        ended.append(code)
        raise Ended

    monkeypatch.setattr("training.runtime.runner.HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr("training.runtime.runner.os._exit", end)
    monkeypatch.setattr("threading.excepthook", lambda _args: None)

    def work(context: StageContext) -> StageOutput:
        Lease.acquire(work_folder, owner=context.request.run.owner, attempt_id="newer")
        for thread in threading.enumerate():
            if thread.name == "heartbeat":
                thread.join(240)
        raise PreemptedError("test.over", "over")

    run(work, ask(store, "a1"), stop=StopFlag())
    assert ended == [int(ExitCode.PREEMPTED)]
    record = work_folder.error("a1")
    assert record is not None
    assert record["code"] == "lease.lost"


def test_work_of_another_run_that_is_under_way_is_not_started_twice(store: Store, work_folder: WorkFolder) -> None:
    Lease.acquire(work_folder, owner="search_ranking/other/prepare", attempt_id="theirs")
    assert run(fail_with(RuntimeError("started")), ask(store, "a1"), stop=StopFlag()) is ExitCode.PREEMPTED
    record = work_folder.error("a1")
    assert record is not None
    assert record["code"] == "lease.held"


def away(_folder: WorkFolder, _result: StageResult) -> bool:
    raise UnavailableError("storage.unavailable", "no answer")


@pytest.mark.parametrize("run_id", ["r1", "other"], ids=["the same task", "another run"])
def test_work_whose_result_could_not_be_written_after_its_commit_is_not_done_again(
    run_id: str, store: Store, work_folder: WorkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_CODE_VERSION", code := "sha256:1")
    with monkeypatch.context() as storage:
        storage.setattr(WorkFolder, "create_result", away)
        assert run(make(), ask(store, "a1", code=code), stop=StopFlag()) is ExitCode.UNAVAILABLE
        again = ask(store, "a2", run_id=run_id, takeover_epoch=1, code=code)
        assert run(fail_with(RuntimeError("ran again")), again, stop=StopFlag()) is ExitCode.UNAVAILABLE
    assert work_folder.result() is None
    again = ask(store, "a3", run_id=run_id, takeover_epoch=2, code=code)
    assert run(fail_with(RuntimeError("ran again")), again, stop=StopFlag()) is ExitCode.PREEMPTED
    record, result = work_folder.error("a3"), work_folder.result()
    assert record is not None
    assert record["code"] == "attempt.over"
    assert result is not None
    assert (result.attempt_id, result.attempts, result.run.run_id, result.scalars) == ("a1", 1, "r1", {"rows": 1})
    assert result.usage is not None


def test_decision_whose_result_could_not_be_written_is_made_again_in_the_ledger_of_now(
    store: Store, work_folder: WorkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided = set[str]()

    def decide(context: StageContext) -> StageOutput:
        decided.add(context.request.attempt_id)
        return make()(context)

    with monkeypatch.context() as storage:
        storage.setattr(WorkFolder, "create_result", away)
        assert run(decide, ask(store, "a1"), stop=StopFlag()) is ExitCode.UNAVAILABLE
    decided.clear()  # The ledger comes from a backup.
    assert run(decide, ask(store, "a2"), stop=StopFlag()) is ExitCode.DONE
    assert decided == {"a2"}
    assert work_folder.result() is not None


def test_committed_work_without_its_artifact_is_done_again(store: Store, work_folder: WorkFolder) -> None:
    assert run(make(b"lost"), ask(store, "a1"), stop=StopFlag()) is ExitCode.DONE
    first = work_folder.result()
    assert first is not None
    for uri in (first.artifact_uri, f"{work_folder.uri}/_RESULT.json"):
        Path(uri.removeprefix("file://")).unlink()
    assert run(make(b"new"), ask(store, "a2"), stop=StopFlag()) is ExitCode.DONE
    second = work_folder.result()
    assert second is not None
    assert (second.attempt_id, second.attempts) == ("a2", 2)
    assert second.digest != first.digest


@pytest.mark.parametrize("takeover_epoch", [0, 1])
def test_work_that_another_run_finishes_while_an_attempt_begins_is_not_done_twice(
    takeover_epoch: int, store: Store, work_folder: WorkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire = Lease.acquire

    def after_the_other(*arguments: Any, **options: Any) -> Lease:
        monkeypatch.setattr(Lease, "acquire", acquire)
        assert run(make(), ask(store, "theirs", run_id="other"), stop=StopFlag()) is ExitCode.DONE
        return acquire(*arguments, **options)

    monkeypatch.setattr(Lease, "acquire", after_the_other)
    asked = ask(store, "a1", takeover_epoch=takeover_epoch)
    assert run(fail_with(RuntimeError("started")), asked, stop=StopFlag()) is ExitCode.PREEMPTED
    record, result = work_folder.error("a1"), work_folder.result()
    assert record is not None
    assert record["code"] == "attempt.over"
    assert result is not None
    assert result.attempt_id == "theirs"


def test_dead_holder_of_another_run_is_taken_over(store: Store, work_folder: WorkFolder) -> None:
    Lease.acquire(work_folder, owner="search_ranking/other/prepare", attempt_id="theirs")
    assert run(make(), ask(store, "a1", takeover_epoch=1), stop=StopFlag()) is ExitCode.DONE
    result = work_folder.result()
    assert result is not None
    assert result.attempts == 2


def test_termination_stops_a_stage_that_does_not_poll_at_once_and_only_once() -> None:
    stop = StopFlag()
    handle = runner._stop_handler(stop, polls_stop=False)
    with pytest.raises(PreemptedError):
        handle(15, None)
    handle(15, None)
    assert stop.requested


def test_termination_of_a_polling_stage_only_sets_the_flag() -> None:
    stop = StopFlag()
    runner._stop_handler(stop, polls_stop=True)(15, None)
    assert stop.requested


def test_unknown_pipeline_version_of_request_is_an_error_not_a_crash(store: Store, tmp_path: Path) -> None:
    uri = f"{store.root_uri}/stages/p/prepare/{WORK_ID}/attempts/none/_REQUEST.json"
    assert run(make(), uri, stop=StopFlag()) is ExitCode.BAD_DATA


def test_a_process_with_other_code_than_the_work_is_named_after_refuses_it(
    store: Store, work_folder: WorkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(make(), ask(store, "a1", code="0" * 64), stop=StopFlag()) is ExitCode.BAD_SPEC
    error = work_folder.error("a1")
    assert error is not None
    assert error["code"] == "code.mismatch"
    assert work_folder.result() is None
    monkeypatch.setenv("NIGHTSHIFT_CODE_VERSION", "sha256:1")
    assert run(make(), ask(store, "a2", code="sha256:1"), stop=StopFlag()) is ExitCode.DONE


def test_work_that_used_a_file_that_its_name_does_not_cover_is_not_committed(store: Store, work_folder: WorkFolder) -> None:
    def work(context: StageContext) -> StageOutput:
        # This process has loaded all of the tests: each module but those of the request is one too many.
        assert context.code is not None
        context.code = LoadedCode({"training/contracts.py": sha256_hex((CHECKOUT / "training/contracts.py").read_bytes())})
        return make()(context)

    assert run(work, ask(store, "a1"), stop=StopFlag()) is ExitCode.BAD_SPEC
    error = work_folder.error("a1")
    assert error is not None
    assert error["code"] == "code.outside"
    assert "training/__init__.py" in error["message"]
    assert work_folder.result() is None
    assert "commit" not in [entry.value["kind"] for entry in work_folder.chain().history()]


def test_a_process_that_was_submitted_by_one_long_taken_for_dead_does_nothing(store: Store, work_folder: WorkFolder) -> None:
    uri = ask(store, "a1")
    work_folder.write_ended("a1", {"phase": "ended"})
    assert run(make(), uri, stop=StopFlag()) is ExitCode.PREEMPTED
    assert work_folder.result() is None
    assert work_folder.chain().history() == [], "it took no lease"


def test_second_start_of_an_attempt_takes_over_at_once_as_the_next_of_the_chain(store: Store, work_folder: WorkFolder) -> None:
    """A queue that suspends a Job and resumes it starts the same request again."""
    uri = ask(store, "a1")

    def work(context: StageContext) -> StageOutput:
        assert run(make(b"new"), uri, stop=StopFlag()) is ExitCode.DONE
        return make(b"stale")(context)

    # The first start has not ended: its node does not answer, and it goes on.
    assert run(work, uri, stop=StopFlag()) is ExitCode.PREEMPTED
    result = work_folder.result()
    assert result is not None
    assert (result.attempt_id, result.attempts) == ("a1", 2)
    assert result.artifact_uri == store.manifests.put_files("dataset", {"file": b"new"}, {})[0]
    assert work_folder.error("a1") is None, "what the first start says about its end is not the attempt's"


def test_end_of_an_earlier_start_does_not_hide_that_of_the_next_one(store: Store, work_folder: WorkFolder) -> None:
    uri = ask(store, "a1")
    assert run(fail_with(PreemptedError("stage.stopped", "stopped")), uri, stop=StopFlag()) is ExitCode.PREEMPTED
    assert run(fail_with(DataError("schema.missing", "no column x")), uri, stop=StopFlag()) is ExitCode.BAD_DATA
    error = work_folder.error("a1")
    assert error is not None
    assert error["code"] == "schema.missing"


@pytest.mark.parametrize("error", [HungError("stage.hung", "no progress"), ReplicasDifferError("train.replica_diverged", "rank 1")])
def test_why_an_attempt_failed_by_itself_is_kept_when_its_job_starts_it_again(
    store: Store, work_folder: WorkFolder, error: NightshiftError
) -> None:
    """Hung and wrong ranks end with 75, and a Job starts what ends with 75 again, until the task has read why, and deletes it."""
    uri = ask(store, "a1")
    assert run(fail_with(error), uri, stop=StopFlag()) is ExitCode.PREEMPTED
    assert run(fail_with(PreemptedError("stage.stopped", "deleted")), uri, stop=StopFlag()) is ExitCode.PREEMPTED
    found = work_folder.error("a1")
    assert found is not None
    assert found["code"] == error.code
