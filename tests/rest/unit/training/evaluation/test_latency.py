"""Latency of a model's files, in a process of its own and call by call."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.unit.training.evaluation.model_files import FRAME, model_folder
from training.evaluation import latency
from training.evaluation.latency import NUM_CALLS, NUM_UNJUDGED_CALLS, NUM_WARM_UPS, measure, timed_calls
from training.runtime.provenance import CHECKOUT

pytestmark = pytest.mark.slow


class Recorder:
    """Stands for a model: keeps what it was asked, and takes a second of a clock of its own per row."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[pd.DataFrame] = []
        self._now = 0.0
        monkeypatch.setattr(latency.time, "perf_counter", lambda: self._now)
        self.waits: list[float] = []
        """Share of each call that is waiting; the last one holds on."""
        self._delay = 0.0
        monkeypatch.setattr(latency, "run_delay_seconds", lambda: self._delay)

    def predict(self, frame: pd.DataFrame) -> np.ndarray:
        self.asked.append(frame)
        share = self.waits[min(len(self.asked), len(self.waits)) - 1] if self.waits else 0.0
        seconds = len(frame) / 1000
        self._now += seconds / (1 - share)
        self._delay += seconds / (1 - share) - seconds
        return np.zeros(len(frame))


def asked(monkeypatch: pytest.MonkeyPatch, group: str | None, batch: int) -> tuple[dict[str, float], list[pd.DataFrame]]:
    recorder: Any = Recorder(monkeypatch)
    return timed_calls(recorder, FRAME, group, batch), recorder.asked


def test_one_row_is_asked_at_a_time_and_warm_ups_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    found, calls = asked(monkeypatch, None, 1)
    assert len(calls) == NUM_WARM_UPS + NUM_UNJUDGED_CALLS
    assert {len(call) for call in calls} == {1}
    assert calls[0]["value"].tolist() != calls[1]["value"].tolist()
    assert found == pytest.approx({"p50_ms": 1, "p95_ms": 1, "p99_ms": 1, "rows_per_second": 1000, "waited_share": 0})


def test_rankers_are_asked_whole_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = asked(monkeypatch, "search", 1)[1]
    assert {len(call) for call in calls} == {4}
    assert all(call["search"].nunique() == 1 for call in calls)
    assert {len(call) for call in asked(monkeypatch, "search", 256)[1]} == {1024}


def test_slow_models_are_asked_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    found, calls = asked(monkeypatch, None, 256)
    # 0.256 s a call, for 1 s before and 1 s that counts.
    assert len(calls) == 4 + 4
    assert found["rows_per_second"] == pytest.approx(1000)


def test_waiting_for_a_cpu_is_not_in_the_latency_and_its_share_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder: Any = Recorder(monkeypatch)
    recorder.waits = [0.5]
    found = timed_calls(recorder, FRAME, None, 1)
    assert found == pytest.approx({"p50_ms": 1, "p95_ms": 1, "p99_ms": 1, "rows_per_second": 1000, "waited_share": 0.5})


@pytest.mark.parametrize(
    ("limit_ms", "later_share", "num_measurements", "waited_share"),
    [(2, 0.5, 1, 0.5), (0.5, 0.5, 3, 0.5), (0.5, 0.05, 2, 0.05), (0.5, 0.2, 3, 0.2)],
    ids=["the limit is met", "loaded all the time", "calm later", "less loaded later"],
)
def test_a_limit_missed_on_a_loaded_machine_is_measured_again(
    monkeypatch: pytest.MonkeyPatch, limit_ms: float, later_share: float, num_measurements: int, waited_share: float
) -> None:
    recorder: Any = Recorder(monkeypatch)
    recorder.waits = [0.5] * (NUM_WARM_UPS + NUM_CALLS) + [later_share]
    found = timed_calls(recorder, FRAME, None, 1, {"p95_ms": limit_ms})
    assert len(recorder.asked) == NUM_WARM_UPS + num_measurements * NUM_CALLS
    assert found["waited_share"] == pytest.approx(waited_share)


def test_a_process_that_shares_its_cpu_sees_its_run_delay() -> None:
    if not latency.RUN_DELAY.exists():
        pytest.skip("this kernel keeps no schedstat")
    allowed = os.sched_getaffinity(0)
    cpu = min(allowed)
    spins = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spins, str(cpu)], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            os.sched_setaffinity(0, {cpu})
            before = latency.run_delay_seconds()
            # Ends as soon as the kernel has let the other one run for a while.
            while latency.run_delay_seconds() - before < 0.01:
                pass
        finally:
            os.sched_setaffinity(0, allowed)
            other.kill()


def test_model_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    found = measure(model_folder(tmp_path / "model"), FRAME, tmp_path, None)
    assert found is not None
    assert set(found) == {"1", "256"}
    for measured in found.values():
        assert 0 < measured["p50_ms"] <= measured["p95_ms"] <= measured["p99_ms"]
    assert found["256"]["rows_per_second"] > found["1"]["rows_per_second"]


def test_model_that_cannot_be_asked_has_no_latency_and_the_log_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = model_folder(tmp_path / "model")
    with caplog.at_level(logging.WARNING):
        assert measure(folder, FRAME.drop(columns="value"), tmp_path, None) is None
    assert "schema.missing" in caplog.text


def test_model_that_never_answers_has_no_latency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(latency, "TIMEOUT_SECONDS", 0.01)
    assert measure(model_folder(tmp_path / "model"), FRAME, tmp_path, None) is None
    assert "did not answer" in caplog.text


FORKS = """
import json, logging, os, sys, threading
from pathlib import Path
import pandas as pd
from training.evaluation import latency

logging.basicConfig(level=logging.INFO)
folder, family, threads = Path(sys.argv[1]), sys.argv[3], int(sys.argv[4])
stop = threading.Event()
for _ in range(threads):
    threading.Thread(target=stop.wait, daemon=True).start()
latency.fork_measurer(family)
new, pids = latency._new_process, []
latency._new_process = lambda arguments: pids.append("new") or new(arguments)
if (forked := latency._forked) is not None:
    pids.append("forked")
    pids.append(len(os.listdir(f"/proc/{forked.process.pid}/task")))
    if os.environ.get("KILLS"):
        os.kill(forked.process.pid, 9)
frame = pd.read_parquet(sys.argv[2])
found = [latency.measure(folder, frame, folder.parent, None) for _ in range(2)]
print(json.dumps({"found": found, "processes": pids, "is_left": forked is not None and Path(f"/proc/{forked.process.pid}").exists()}))
"""


def forked(tmp_path: Path, *, family: str = "boosted_trees", threads: int = 0, frame: pd.DataFrame = FRAME, **more: str) -> tuple[Any, str]:
    """Measure twice in a process that forks the one that measures; return what it found and its log."""
    folder, path = model_folder(tmp_path / "model"), tmp_path / "frame.parquet"
    frame.to_parquet(path)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), **more}
    command = [sys.executable, "-c", FORKS, str(folder), str(path), family, str(threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_a_process_that_was_forked_before_the_evaluation_measures_once_and_a_new_one_after_it(tmp_path: Path) -> None:
    facts, _ = forked(tmp_path, OMP_NUM_THREADS="1")
    assert facts["processes"] == ["forked", 1, "new"]
    assert [set(found) for found in facts["found"]] == [{"1", "256"}] * 2
    assert facts["found"][0].keys() == facts["found"][1].keys()
    assert not facts["is_left"]


def test_a_forked_process_that_was_killed_before_it_was_asked_is_replaced(tmp_path: Path) -> None:
    """A latency that is missing rejects the candidate."""
    facts, log = forked(tmp_path, OMP_NUM_THREADS="1", KILLS="1")
    assert facts["processes"] == ["forked", 1, "new", "new"]
    assert [set(found or {}) for found in facts["found"]] == [{"1", "256"}] * 2
    assert "killed by signal 9" in log


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threads": 1, "OMP_NUM_THREADS": "1"}, "latency will be measured by a new process"),
        ({"family": "own.models:Ranker", "OMP_NUM_THREADS": "1"}, ""),
        ({"family": "", "OMP_NUM_THREADS": "1"}, ""),
        ({}, ""),
    ],
    ids=["beside a thread", "a user's class", "an unknown family", "no number of threads"],
)
def test_where_a_fork_is_not_safe_or_would_measure_something_else_a_new_process_measures(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    facts, log = forked(tmp_path, **options)
    assert facts["processes"] == ["new", "new"]
    assert all(found is not None for found in facts["found"])
    assert words in log


def test_a_model_that_a_forked_process_cannot_ask_has_no_latency_and_the_log_says_why(tmp_path: Path) -> None:
    facts, log = forked(tmp_path, frame=FRAME.drop(columns="value"), OMP_NUM_THREADS="1")
    assert facts["found"] == [None, None]
    assert log.count("schema.missing") >= 2
