"""kill -9 in the middle of training: the night ends in success, nothing is left over, and the weights have the same bits."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil
import pytest

from tests.chaos.disturbances import Role
from tests.chaos.night_harness import roles_in
from tests.integration.installation import Installation
from training.contracts import StageResult
from training.engine.checkpoint.catalog import requests

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(3600)]

PIPELINE = "search_ranking"
LONG_TRAINING = {"as_of": "2026-02-01T02:00:00+00:00", "force": True, "train": {"epochs": 8, "batch_size": 512}}
RUN_SECONDS = 1500.0
FIRST_EPOCH_STEPS = 200
"""An epoch has about 160."""
ORPHAN_CHECK = "Adopting or resetting orphaned tasks"
RESET = "orphaned TaskInstances"


@pytest.fixture(scope="module")
def undisturbed(installation: Installation) -> str:
    """Digest of the weights of a training that nobody disturbs."""
    run_id = installation.trigger(PIPELINE, LONG_TRAINING)
    task = installation.wait_task(PIPELINE, run_id, "train", "success", "failed", "upstream_failed", timeout_seconds=RUN_SECONDS)
    assert task["state"] == "success", installation.why(PIPELINE, run_id)
    digest = str(installation.result(PIPELINE, run_id, "train").scalars["weights_digest"])
    installation.cancel(PIPELINE, run_id)
    return digest


def kill_rank(installation: Installation, run_id: str) -> None:
    ranks = [p for p in stage_processes(installation, run_id) if p.name() == "rank 1"]
    os.kill(ranks[0].pid, signal.SIGKILL)


def kill_launcher(installation: Installation, run_id: str) -> None:
    os.kill(launcher(installation, run_id).pid, signal.SIGKILL)


def kill_task(installation: Installation, run_id: str) -> None:
    del run_id
    os.kill(roles_in(installation, None)[Role.TASK][0], signal.SIGKILL)


def kill_template(installation: Installation, run_id: str) -> None:
    os.kill(launcher(installation, run_id).ppid(), signal.SIGKILL)


def kill_worker(installation: Installation, run_id: str) -> None:
    """Kill LocalExecutor's process that watches the task: nobody reports its end, and its heartbeats stop."""
    del run_id
    os.kill(roles_in(installation, None)[Role.WORKER][0], signal.SIGKILL)


def kill_scheduler(installation: Installation, run_id: str) -> None:
    """Kill the scheduler; the first check of the next one resets the task: no limit has to run out first."""
    del run_id
    before = len(scheduler_log(installation))
    installation.kill("scheduler")
    killed_at = time.monotonic()
    installation.until(lambda: RESET in scheduler_log(installation)[before:], "the reset of the training")
    logger.info("reset %.1f s after the kill", time.monotonic() - killed_at)
    assert scheduler_log(installation)[before:].partition(RESET)[0].count(ORPHAN_CHECK) == 1


def test_training_survives_the_kill_of_a_rank_the_launcher_the_template_the_task_and_the_scheduler_with_the_same_weights(
    installation: Installation, undisturbed: str
) -> None:
    check_survived(installation, undisturbed, [kill_rank, kill_launcher, kill_task, kill_scheduler, kill_template])


@pytest.mark.long
def test_training_survives_the_kill_of_its_worker_with_the_same_weights(installation: Installation, undisturbed: str) -> None:
    check_survived(installation, undisturbed, [kill_worker])


def check_survived(installation: Installation, undisturbed: str, kills: Sequence[Callable[[Installation, str], None]]) -> None:
    """Run a night whose training is killed in these ways, one after the other; each attempt goes on from a checkpoint of the one before."""
    run_id = installation.trigger(PIPELINE, LONG_TRAINING)
    for number, kill in enumerate(kills):
        committed = committed_checkpoints(installation, run_id)

        # No count of steps: on a fast machine an attempt is further than that of the next kill before it is seen.
        def under_way(attempts: int = number + 1, committed: int = committed) -> bool:
            return len(list(attempts_of(installation, run_id))) == attempts and committed_checkpoints(installation, run_id) > committed

        installation.until(under_way, f"a checkpoint of attempt {number + 1}, before {kill.__name__}", timeout_seconds=RUN_SECONDS)
        before = stage_processes(installation, run_id)
        assert before, f"before {kill.__name__}"
        kill(installation, run_id)
        installation.until(
            lambda before=before: not any(p.is_running() for p in before),
            f"the killed attempt's processes gone after {kill.__name__}",
            timeout_seconds=RUN_SECONDS,
        )

    assert installation.wait(PIPELINE, run_id, timeout_seconds=RUN_SECONDS) == "success", installation.why(PIPELINE, run_id)
    result = installation.result(PIPELINE, run_id, "train")
    assert result.scalars["weights_digest"] == undisturbed
    assert result.attempts == len(kills) + 1
    assert resumed(installation, result)
    saved = saved_steps(installation, result)
    assert saved == sorted(set(saved)), "no attempt did again what an earlier one had committed"
    assert len(saved) > len(kills)
    assert stage_processes(installation, run_id) == []


def scheduler_log(installation: Installation) -> str:
    return (installation.home / "logs" / "scheduler.log").read_text(encoding="utf-8", errors="replace")


def attempts_of(installation: Installation, run_id: str, pipeline: str = PIPELINE) -> Iterator[tuple[str, str]]:
    """Yield (work id, attempt id) of the run's training attempts."""
    store = installation.store
    for work_id in store.bucket.folders(f"stages/{pipeline}/train"):
        for request in requests(store, pipeline, work_id):
            if request.run.run_id == run_id:
                yield work_id, request.attempt_id


def steps_done(installation: Installation, run_id: str, pipeline: str = PIPELINE) -> int:
    found = list(attempts_of(installation, run_id, pipeline))
    if not found:
        return 0
    work_id, attempt_id = found[-1]
    beat = installation.store.work_folder(pipeline, "train", work_id).heartbeat(attempt_id)
    return int(json.loads(beat)["progress"].get("done", 0)) if beat else 0


def resumed(installation: Installation, result: StageResult, pipeline: str = PIPELINE) -> bool:
    """Return whether the attempt that made the result began after a committed step."""
    log = installation.store.bucket.get(f"stages/{pipeline}/train/{result.work_id}/attempts/{result.attempt_id}/log.txt").decode()
    return "resuming after step" in log


def committed_checkpoints(installation: Installation, run_id: str) -> int:
    work_ids = {work_id for work_id, _ in attempts_of(installation, run_id)}
    return sum(len(checkpoint_steps(installation, PIPELINE, work_id)) for work_id in work_ids)


def saved_steps(installation: Installation, result: StageResult) -> list[int]:
    """Return the step of each checkpoint that the attempts committed, oldest first."""
    return checkpoint_steps(installation, result.pipeline, result.work_id)


def checkpoint_steps(installation: Installation, pipeline: str, work_id: str) -> list[int]:
    journal = installation.store.work_folder(pipeline, "train", work_id).chain().history()
    return [int(entry.value["payload"]["step"]) for entry in journal if entry.value["kind"] == "checkpoint"]


def stage_processes(installation: Installation, run_id: str) -> list[psutil.Process]:
    """Return every process of the run's training: launcher and ranks."""
    marks = [f"attempts/{attempt_id}/" for _, attempt_id in attempts_of(installation, run_id)]
    return [process for process, line in commands() if any(mark in line for mark in marks)]


def launcher(installation: Installation, run_id: str) -> psutil.Process:
    processes = [p for p in stage_processes(installation, run_id) if "training.runtime.torchrun" in " ".join(p.cmdline())]
    # A rank is forked by its launcher, whose command line it keeps.
    return next(p for p in processes if not p.name().startswith("rank "))


def commands() -> Iterator[tuple[psutil.Process, Any]]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process, " ".join(process.cmdline())
