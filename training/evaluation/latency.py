"""The latency of a registered model, measured in a separate process without the evaluation's caches and threads.

It has one thread (for what heeds OMP_NUM_THREADS, unless that is set): several on a busy machine wait for each other, and the
figure would be the neighbours'. The time that a call is ready to run and waits for a CPU (Linux's run delay, proc(5), `schedstat`) is not
the model's: it is taken off the call's time, and its share is recorded. Where it is large and a limit is missed, the measurement is
repeated.

Importing what a model needs costs up to 3 CPU seconds. An evaluation that knows the model's family when it starts imports it first, and
forks the process that will measure (`fork_measurer`): before it has read anything, and while it has one thread. Otherwise it is a new one:

python -m training.evaluation.latency MODEL_FOLDER FRAME.parquet [GROUP_COLUMN] [--limits JSON]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from training.installation import PYTHON_PATH, THREADS, Variable
from training.models.base import load_family
from training.models.predictor import Predictor, load_predictor
from training.process.child import ForkedProcess, bind_to_parent, name_this_process, other_threads
from training.spec.descriptors.families import FAMILIES

logger = logging.getLogger(__name__)

BATCHES: Final = (1, 256)
"""Rows of a call; groups, for rankers."""
NUM_CALLS: Final = 200
"""Where a gate judges the figures. They are the largest cost of a small run: without a limit there are fewer."""
NUM_UNJUDGED_CALLS: Final = 50
NUM_WARM_UPS: Final = 10
SECONDS: Final = {1: 3.0, 256: 1.0}
"""Batch size to the limit of its calls; with slower models there are fewer. The gate judges batch 1."""
WARM_UP_SECONDS: Final = 1.0
"""The same for the calls before, which are not counted."""
TIMEOUT_SECONDS: Final = 600.0
"""Imports and loading included: on an overloaded machine they alone take a minute, and a latency that is missing rejects."""
MAX_MEASUREMENTS: Final = 3
CALM_SHARE: Final = 0.1
"""Share of waiting for a CPU up to which a measurement is not repeated."""
PROGRAM: Final = "training.evaluation.latency"
FAMILY: Final = Variable(
    name="NIGHTSHIFT_MODEL_FAMILY", set_by="Nightshift", meaning="the candidate's model family, for the process that measures latency"
)
"""Set by what starts an evaluation: the family of the spec's model, so that its libraries are imported before there are threads."""
RUN_DELAY: Final = Path("/proc/thread-self/schedstat")


def measure(
    folder: Path, frame: pd.DataFrame, scratch: Path, group: str | None, limits: Mapping[str, float] | None = None
) -> dict[str, dict[str, float]] | None:
    """Measure in a new process the model whose files are in `folder`; None where it could not be measured, which is logged.

    Args:
        folder: the model's files, as registered.
        frame: raw rows to predict, some thousands are enough.
        scratch: an empty place for a file.
        group: column whose rows are predicted together.
        limits: figures of batch 1 to their limits, `{"p95_ms": 20}`: what the gate will judge.

    Returns:
        `{"1": {"p50_ms", "p95_ms", "p99_ms", "rows_per_second", "waited_share"}, "256": ...}`, of calls from a raw frame to scores.
    """
    path = scratch / "latency.parquet"
    frame.to_parquet(path)
    arguments = [str(folder), str(path), *([group] if group else []), "--limits", json.dumps(dict(limits or {}))]
    global _forked
    forked, _forked = _forked, None
    try:
        text = _answer(forked, arguments)
    except subprocess.TimeoutExpired:
        logger.warning("latency is not known: the model did not answer within %.0f s", TIMEOUT_SECONDS)
        return None
    except subprocess.CalledProcessError as err:
        logger.warning("latency is not known: the measuring process ended with %s: %s", err.returncode, err.stderr[-2000:])
        return None
    measured: dict[str, dict[str, float]] = json.loads(text.splitlines()[-1])
    return measured


def _answer(forked: ForkedMeasurer | None, arguments: list[str]) -> str:
    """Return this program's output; a forked process that was killed, perhaps long before it was used, is replaced by a new one."""
    if forked is not None:
        try:
            return forked.ask(arguments)
        except subprocess.CalledProcessError as err:
            if err.returncode >= 0:
                raise
            logger.warning("the measuring process was killed by signal %d; a new one measures", -err.returncode)
    return _new_process(arguments)


def _new_process(arguments: list[str]) -> str:
    """Return the output of this program.

    Raises:
        subprocess.TimeoutExpired, subprocess.CalledProcessError
    """
    # It must not outlive this process, however this one ends.
    bound = [
        sys.executable,
        "-m",
        "training.process.child",
        "--parent",
        str(os.getpid()),
        "--",
        sys.executable,
        "-m",
        PROGRAM,
        *arguments,
    ]
    root = str(Path(__file__).resolve().parents[2])
    environment = {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "PYTHONPATH": os.pathsep.join([root, *filter(None, [PYTHON_PATH.value()])]),
    }
    return subprocess.run(bound, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True).stdout


@dataclass(frozen=True, kw_only=True, slots=True)
class ForkedMeasurer:
    """A process that waits for the arguments of this program, with a family's libraries imported."""

    process: ForkedProcess
    requests: int
    """Where its arguments are written."""
    answers: int
    """Where its output is read, standard output up to the end."""
    errors: int
    """File of its standard error."""

    def ask(self, arguments: list[str]) -> str:
        """Return the output of this program.

        Raises:
            subprocess.TimeoutExpired, subprocess.CalledProcessError
        """
        with contextlib.suppress(BrokenPipeError), os.fdopen(self.requests, "w") as stream:
            json.dump(arguments, stream)
        chunks: list[str] = []
        reader = threading.Thread(target=lambda: chunks.append(_read(self.answers)), name="latency", daemon=True)
        reader.start()
        reader.join(TIMEOUT_SECONDS)
        try:
            code = self.process.wait(TIMEOUT_SECONDS if chunks else 0.0)
        except subprocess.TimeoutExpired:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise
        if code:
            os.lseek(self.errors, 0, os.SEEK_SET)
            raise subprocess.CalledProcessError(code, PROGRAM, stderr=_read(self.errors))
        return chunks[0]


_forked: ForkedMeasurer | None = None


def fork_measurer(family: str) -> None:
    """Fork the process that `measure` will use, if that is safe; call it first, while this process has one thread.

    Args:
        family: name of a family of training/models/; nothing is forked for another one, whose import may start threads or open devices.
    """
    global _forked
    # A library reads the number of its threads when it is loaded, and a new process would have one.
    if family not in FAMILIES.built_in or not THREADS.is_set():
        return
    load_family(family)
    if others := other_threads():
        logger.warning("latency will be measured by a new process: thread %s exists besides the main thread", ", ".join(others))
        return
    (request_reader, requests), (answers, answer_writer) = os.pipe(), os.pipe()
    with tempfile.TemporaryFile() as file:
        errors = os.dup(file.fileno())
    sys.stdout.flush()
    sys.stderr.flush()
    parent_pid, pid = os.getpid(), os.fork()
    if pid == 0:
        os.close(requests)
        os.close(answers)
        _serve(parent_pid, request_reader, answer_writer, errors)
    os.close(request_reader)
    os.close(answer_writer)
    _forked = ForkedMeasurer(process=ForkedProcess(pid), requests=requests, answers=answers, errors=errors)


def _serve(parent_pid: int, requests: int, answers: int, errors: int) -> NoReturn:
    """Be this program, once its arguments are known."""
    bind_to_parent(parent_pid)
    name_this_process("latency")
    # An evaluation collects none while it imports.
    gc.enable()
    os.dup2(answers, 1)
    os.dup2(errors, 2)
    os.close(answers)
    os.close(errors)
    given = _read(requests)
    if not given:
        os._exit(0)
    code = 1
    try:
        sys.argv = [PROGRAM, *json.loads(given)]
        sys.orig_argv = [sys.executable, "-m", *sys.argv]
        main()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _read(descriptor: int) -> str:
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as stream:
        return stream.read()


def timed_calls(
    predictor: Predictor, frame: pd.DataFrame, group: str | None, batch: int, limits: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return the percentiles of calls of `batch` rows (groups) in milliseconds, the rows of a second, and the share of waiting for a CPU.

    A measurement that misses one of `limits`, and of which more than `CALM_SHARE` was waiting, is repeated, until one meets them all; else
    the calmest one counts.
    """
    parts = _batches(frame, group, batch)
    _called(predictor, parts, NUM_WARM_UPS, WARM_UP_SECONDS)
    num_calls = NUM_CALLS if limits else NUM_UNJUDGED_CALLS
    found: list[dict[str, float]] = []
    while len(found) < MAX_MEASUREMENTS:
        found.append(_figures(_called(predictor, parts, num_calls, SECONDS[batch])))
        is_met = all(found[-1][name] <= limit for name, limit in (limits or {}).items())
        if is_met or found[-1]["waited_share"] <= CALM_SHARE:
            return found[-1]
    return min(found, key=lambda figures: figures["waited_share"])


@dataclass(kw_only=True)
class _Calls:
    """Calls one after the other."""

    seconds: list[float] = field(default_factory=list)
    """Of each call, without its waiting for a CPU."""
    waited_seconds: float = 0.0
    num_rows: int = 0

    @property
    def waited_share(self) -> float:
        """Share of the calls' time that was waiting for a CPU, 0 to 1."""
        return self.waited_seconds / (self.waited_seconds + sum(self.seconds))


def _figures(calls: _Calls) -> dict[str, float]:
    p50, p95, p99 = (float(value) for value in np.percentile(calls.seconds, [50, 95, 99]) * 1000)
    rows_per_second = calls.num_rows / sum(calls.seconds)
    return {"p50_ms": p50, "p95_ms": p95, "p99_ms": p99, "rows_per_second": rows_per_second, "waited_share": calls.waited_share}


def _called(predictor: Predictor, parts: Iterator[pd.DataFrame], num_calls: int, limit_seconds: float) -> _Calls:
    """Time calls, at least one."""
    calls = _Calls()
    began_at = time.perf_counter()
    while len(calls.seconds) < num_calls and (not calls.seconds or time.perf_counter() - began_at < limit_seconds):
        part = next(parts)
        delay_before, started_at = run_delay_seconds(), time.perf_counter()
        predictor.predict(part)
        wall_seconds = time.perf_counter() - started_at
        waited = min(max(run_delay_seconds() - delay_before, 0.0), 0.99 * wall_seconds)
        calls.seconds.append(wall_seconds - waited)
        calls.waited_seconds += waited
        calls.num_rows += len(part)
    return calls


def run_delay_seconds() -> float:
    """Return how long this thread has been ready to run without a CPU since it began; 0 where the kernel does not say."""
    try:
        return int(RUN_DELAY.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _batches(frame: pd.DataFrame, group: str | None, batch: int) -> Iterator[pd.DataFrame]:
    """Yield frames of `batch` rows (groups), round and round."""
    units = [np.array([row]) for row in range(len(frame))]
    if group is not None:
        numbers = pd.factorize(frame[group])[0]
        order = np.argsort(numbers, kind="stable")
        units = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
    start = 0
    while True:
        chosen = np.concatenate([units[(start + step) % len(units)] for step in range(batch)])
        start = (start + batch) % len(units)
        yield frame.iloc[chosen].reset_index(drop=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.evaluation.latency", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the model's files")
    parser.add_argument("frame", type=Path, help="raw rows")
    parser.add_argument("group", nargs="?", help="column whose rows are predicted together")
    parser.add_argument("--limits", type=json.loads, default={}, help="JSON of the figures of batch 1 that have a limit, and the limits")
    arguments = parser.parse_args()
    frame = pq.read_table(arguments.frame).to_pandas()
    predictor = load_predictor(arguments.folder)
    limits = {1: arguments.limits}
    found = {str(batch): timed_calls(predictor, frame, arguments.group, batch, limits.get(batch)) for batch in BATCHES}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
