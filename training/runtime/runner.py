"""The transaction around a stage's work: request, lease, heartbeat, fence, result or error, exit code.

Files first, `_RESULT.json` last by conditional create; nothing but that file means success.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from types import FrameType
from typing import Final, NoReturn

from training.code.loaded import LoadedCode
from training.contracts import ExitCode, StageRequest, StageResult, Usage, instant_text
from training.errors import LeaseLostError, NightshiftError, PreemptedError, SpecError, shown, spec_error
from training.installation import RANK, STOP_NOTICE, TORCHRUN_ID, WORLD_SIZE
from training.process import liveness
from training.process.child import bind_to_parent
from training.process.scratch import scratch_folder
from training.process.waiting import waiting_for_database
from training.runtime.attempt_errors import MAX_TRACEBACK_CHARS, forget_stop, write_error
from training.runtime.context import StageContext, StageOutput, StopFlag
from training.runtime.exhausted_resources import MAX_MESSAGE_CHARS, machine_limit
from training.runtime.provenance import given_code_version
from training.runtime.resource_usage import UsageMeter, usage_text
from training.sanitizing import masked
from training.spec import PipelineSpec
from training.spec.sections.timeout import Timeout
from training.store import Store, WorkFolder
from training.store.leases import COMMIT, Lease

__all__ = ["StageContext", "StageOutput", "main"]

logger = logging.getLogger("training.stage")

Work = Callable[[StageContext], StageOutput]

HEARTBEAT_SECONDS: Final = 2.0
LOG_UPLOAD_BEATS: Final = 5
MAX_LOG_LINES: Final = 5000
REQUEST_PATTERN: Final = re.compile(r"(?P<root>.+)/stages/([^/]+)/([^/]+)/([0-9a-f]{64})/attempts/([^/]+)/_REQUEST\.json")
QUIET_LOGGERS: Final = ("alembic", "great_expectations", "mlflow", "urllib3", "git", "h5py")


def main(work: Work, *, polls_stop: bool = False) -> NoReturn:
    """Run one attempt of a stage in this process and exit with its code.

    Args:
        work: the stage.
        polls_stop: the work looks at `context.stop` itself and ends after a commit; otherwise SIGTERM raises at once.
    """
    try:
        rank = RANK.read()
        liveness.watch()
    except SpecError as err:
        logger.error("%s", err)
        sys.exit(int(err.exit_code))
    tail = _configure_logging(rank)
    if len(sys.argv) != 2 or not REQUEST_PATTERN.fullmatch(sys.argv[1]):
        logger.error("usage: %s REQUEST_URI (…/stages/<pipeline>/<stage>/<work_id>/attempts/<id>/_REQUEST.json)", sys.argv[0])
        sys.exit(int(ExitCode.BAD_SPEC))
    if TORCHRUN_ID.is_set():
        bind_to_parent()
    stop = StopFlag()
    try:
        signal.signal(signal.SIGTERM, _stop_handler(stop, polls_stop=polls_stop))
    except SpecError as err:
        logger.error("%s", err)
        sys.exit(int(err.exit_code))
    # What the imports have made stays to the end: no collection looks at it again.
    gc.freeze()
    gc.enable()
    code = run(work, sys.argv[1], stop=stop, tail=tail)
    logging.shutdown()
    # Threads of libraries (gloo, MLflow, xgboost) may hang an orderly exit; everything of ours is committed by now.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code))


def run(work: Work, request_uri: str, *, stop: StopFlag, tail: deque[str] | None = None) -> ExitCode:
    """Run one attempt; return how it ended. Everything that a reader needs is in the store by then."""
    match = REQUEST_PATTERN.fullmatch(request_uri)
    if match is None:
        raise ValueError(f"not a request URI: {request_uri!r}")
    started_at = time.monotonic()
    lines = tail if tail is not None else deque(maxlen=MAX_LOG_LINES)
    try:
        store = Store(match["root"], keeps_manifests=True)
    except NightshiftError as err:
        logger.error("%s", err)
        return err.exit_code
    try:
        # As the store names it, of whatever form the root is: a path, or a URI.
        request = store.read_request(store.bucket.uri(request_uri.removeprefix(f"{match['root']}/")))
    except NightshiftError as err:
        # Without the error's record, torchrun's exit code 1 would look like a lost process, and be relaunched.
        _report(store.work_folder(*match.groups()[1:4]), match.groups()[4], err, err)
        return err.exit_code
    work_folder = store.work_folder(request.pipeline, request.stage, request.work_id)
    try:
        with waiting_for_database():
            _attempt(work, store, request, work_folder, stop=stop, lines=lines, started_at=started_at)
    except (Exception, KeyboardInterrupt) as caught:
        error = _classify(caught)
        _report(work_folder, request.attempt_id, error, caught)
        return error.exit_code
    finally:
        with liveness.phase("transfer", "log"):
            _upload_log(work_folder, request.attempt_id, lines)
    return ExitCode.DONE


def _attempt(
    work: Work, store: Store, request: StageRequest, work_folder: WorkFolder, *, stop: StopFlag, lines: deque[str], started_at: float
) -> None:
    rank, world_size = RANK.read(), WORLD_SIZE.read()
    if work_folder.result() is not None:
        logger.info("already done: %s", work_folder.uri)
        return
    code = _check_startable(request, work_folder)
    spec = PipelineSpec.thaw(store.get_json(request.spec_uri))
    liveness.limit(_limits(spec.timeout))
    with liveness.phase("part", request.stage), scratch_folder() as folder:
        context = StageContext(
            store=store, request=request, spec=spec, folder=folder, stop=stop, rank=rank, world_size=world_size, code=code
        )
        if rank != 0:
            work(context)
            return
        lease = Lease.acquire(work_folder, owner=request.run.owner, attempt_id=request.attempt_id, takeover_epoch=request.takeover_epoch)
        context.lease = lease
        if lease.epoch > 1:
            _refuse_finished(work_folder, lease, request)
        if lease.is_restart:
            # A Job starts a member again that ends with 75, whatever the reason, until the launch is deleted, and the reason is read about
            # as late as that: why an attempt failed by itself is kept.
            forget_stop(work_folder, request.attempt_id)
        logger.info("%s of %s, attempt %d, as of %s", request.stage, request.pipeline, lease.epoch, instant_text(request.as_of))
        meter = UsageMeter()
        with _Heartbeat(work_folder, context, lease, lines, meter):
            output = work(context)
            context.check_code()
            context.timings["total"] = round(time.monotonic() - started_at, 3)
            # It beats until the result is there: a write that takes its time looks alive to those who wait.
            _commit(work_folder, request, lease, output, context.timings, meter.usage())


def _limits(timeout: Timeout) -> dict[str, float]:
    """Return the longest time without progress by phase, in seconds; waiting for other ranks (`peers`) has none."""
    limits = {
        "start": timeout.start,
        "transfer": timeout.transfer,
        "part": timeout.part,
        "step": timeout.step,
        "validation": timeout.validation,
        "checkpoint": timeout.checkpoint,
        "mlflow": timeout.mlflow,
    }
    return {kind: longest.total_seconds() for kind, longest in limits.items()}


def _check_startable(request: StageRequest, work_folder: WorkFolder) -> LoadedCode:
    """Refuse to work with other code than the work is named after, and in an attempt that is known to have ended.

    Raises:
        SpecError: `code.mismatch`, `code.outside`.
        LeaseLostError: `attempt.over`, this process was submitted by an attempt that had been taken for dead.
    """
    given = given_code_version()
    if request.code_version and not request.code_files and request.code_version != given:
        message = f"this process runs code {shown(given or 'without a digest')}, the work is that of code {shown(request.code_version)}"
        hint = "build Airflow's image and the stages' from the same commit, or pin the stages' by its digest"
        raise spec_error("request", "code.mismatch", message, hint=hint)
    code = LoadedCode(request.code_files)
    # Before hours of work: what the stage's own module imports is loaded by now.
    code.check()
    if work_folder.ended(request.attempt_id) is not None:
        raise LeaseLostError("attempt.over", f"attempt {request.attempt_id} of {work_folder.uri} was seen to end; a newer one has the work")
    return code


def _refuse_finished(work_folder: WorkFolder, lease: Lease, request: StageRequest) -> None:
    """End an attempt whose work another one has committed, and make the result where that one could not.

    A decision, whose request has no code version, is made again instead: twice has the same effect, and the ledger may have been replaced
    by an earlier one since.

    Raises:
        LeaseLostError: `attempt.over`. An error, not a return: other ranks that have begun would wait for this one.
    """
    if request.code_version and lease.committed is not None:
        result = StageResult.from_mapping(lease.committed)
        if work_folder.has_artifact(result):
            work_folder.create_result(result)
    if work_folder.result() is not None:
        raise LeaseLostError("attempt.over", f"another attempt of {work_folder.uri} has finished it, and {lease.attempt_id} ends")


def _commit(
    work_folder: WorkFolder, request: StageRequest, lease: Lease, output: StageOutput, timings: dict[str, float], usage: Usage
) -> None:
    result = StageResult(
        pipeline=request.pipeline,
        stage=request.stage,
        work_id=request.work_id,
        artifact_uri=output.artifact_uri,
        digest=output.digest,
        run=request.run,
        attempt_id=request.attempt_id,
        attempts=lease.epoch,
        committed_at=datetime.now(UTC).isoformat(timespec="seconds"),
        scalars=output.scalars,
        timings=timings,
        reports=output.reports,
        usage=usage,
    )
    lease.commit(COMMIT, result.to_xcom())
    if work_folder.create_result(result):
        logger.info("committed %s in %.1f s (%s): %s", request.stage, timings["total"], usage_text(usage), output.digest)
    else:
        logger.warning("another attempt committed %s first; its result stands", work_folder.uri)


class _Heartbeat:
    """Beats in a thread: progress and log to the store, and the fence: a process that lost its lease ends at once."""

    def __init__(self, work_folder: WorkFolder, context: StageContext, lease: Lease, lines: deque[str], meter: UsageMeter) -> None:
        self._meter = meter
        self._work_folder = work_folder
        self._context = context
        self._lease = lease
        self._lines = lines
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_exc: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        # It beats while the work hangs: no progress of the work's.
        liveness.in_background()
        beats = 0
        while not self._done.wait(HEARTBEAT_SECONDS):
            beats += 1
            try:
                self._beat(beats)
            except LeaseLostError as err:
                _report(self._work_folder, self._context.request.attempt_id, err, err)
                os._exit(int(err.exit_code))
            except NightshiftError as err:
                logger.warning("heartbeat %d failed: %s", beats, err)

    def _beat(self, number: int) -> None:
        # A measurement: an error in /proc must not affect the lease and the log.
        with contextlib.suppress(Exception):
            self._meter.look()
        attempt_id = self._context.request.attempt_id
        phase = liveness.present()
        doing = {} if phase is None else {"phase": phase.to_json()}
        beat = {"beat": number, "pid": os.getpid(), "progress": self._context.last_progress, **doing}
        self._work_folder.write_heartbeat(attempt_id, beat)
        self._lease.check()
        if number % LOG_UPLOAD_BEATS == 1:
            _upload_log(self._work_folder, attempt_id, self._lines)


def _classify(caught: BaseException) -> NightshiftError:
    """Return what was raised as one of our errors; unknown ones keep exit code 1."""
    if isinstance(caught, NightshiftError):
        return caught
    text = masked(f"{type(caught).__name__}: {caught}")
    if isinstance(caught, KeyboardInterrupt):
        return PreemptedError("stage.stopped", "stopped by a signal")
    found = machine_limit(caught)
    if found is not None:
        return found
    return NightshiftError("stage.unexpected", text[:MAX_MESSAGE_CHARS], hint="the traceback is in the attempt's log")


def _report(work_folder: WorkFolder, attempt_id: str, error: NightshiftError, caught: BaseException) -> None:
    trace = masked("".join(traceback.format_exception(caught)))[-MAX_TRACEBACK_CHARS:]
    if error.exit_code is ExitCode.UNEXPECTED:
        logger.error("%s\n%s", error, trace)
    else:
        logger.error("%s", error)
    if error.details.get("new_attempt_id") == attempt_id:
        # A later start of this attempt has the work, and the attempt's error is for it to write.
        return
    try:
        write_error(work_folder, attempt_id, error, trace, rank=RANK.read())
    except NightshiftError as err:
        logger.warning("could not write _ERROR.json: %s", err)


def _upload_log(work_folder: WorkFolder, attempt_id: str, lines: deque[str]) -> None:
    if RANK.read() != 0:
        return
    try:
        work_folder.write_log(attempt_id, "\n".join(list(lines)) + "\n")
    except NightshiftError as err:
        logger.warning("could not upload the log: %s", err)


def _stop_handler(stop: StopFlag, *, polls_stop: bool) -> Callable[[int, FrameType | None], None]:
    """Return what SIGTERM does.

    Raises:
        SpecError: `settings.number`.
    """
    notice_seconds = STOP_NOTICE.read() if STOP_NOTICE.text() else math.inf

    def handle(_signal: int, _frame: FrameType | None) -> None:
        first = not stop.requested
        stop.request(notice_seconds)
        if first and not polls_stop:
            raise PreemptedError("stage.stopped", "stopped by SIGTERM; the next attempt does the stage again")

    return handle


class _Tail(logging.Handler):
    """Keeps the last lines for the log in the store."""

    def __init__(self, lines: deque[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))


def _configure_logging(rank: int) -> deque[str]:
    lines: deque[str] = deque(maxlen=MAX_LOG_LINES)
    where = f" rank {rank}" if WORLD_SIZE.is_set() else ""
    formatter = logging.Formatter(f"%(asctime)s %(levelname)s{where} %(name)s: %(message)s", datefmt="%H:%M:%S")
    stream, tail = logging.StreamHandler(sys.stdout), _Tail(lines)
    for handler in (stream, tail):
        handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[stream, tail], force=True)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    return lines
