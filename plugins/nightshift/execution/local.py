"""Local placement: a stage is forked from the installation's template, or a child process of its task, and dies with the task.

Airflow ends a task by killing its group. A fork is not in it: the template ends it when the task is gone. A child gets no session of its
own; and what a group cannot reach (torchrun gives its workers sessions) dies by PR_SET_PDEATHSIG, which `training.process.child` sets.
Linux only.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from nightshift.execution import gpus
from nightshift.execution.attempt_end import TEMPLATE_LOST, Action, AttemptEnd, Ended, StageEndedError, judge
from nightshift.execution.backend import Backend, StageTask, keys_set, spec_environment
from nightshift.execution.forked_stage import ForkedStage, fork_stage
from nightshift.execution.relaunch_budget import Relaunches, next_relaunch, resumption
from nightshift.execution.stage_environment import GRACE_SECONDS, stage_environment
from nightshift.settings import Settings
from training.contracts import JsonObject, StageRequest, StageResult
from training.process.scratch import scratch_folder
from training.runtime.attempt_errors import error_of_ended
from training.runtime.available_memory import memory_limit_bytes
from training.spec import PipelineSpec
from training.stage_table import TRAININGS
from training.store.leases import HolderWatch
from training.store.work_folder import new_attempt_id

IGNORED_KEYS: Final = ("memory", "gpus", "accelerator", "shared_memory", "min_nodes", "spot", "topology", "priority")
"""Keys of `train.placement` that place nothing on one machine: its processes use what the machine has. `cpus` sets threads here too,
and `nodes` is a number of processes."""
POLL_SECONDS: Final = 1.0
SAY_EVERY_SECONDS: Final = 15.0
MEBIBYTE: Final = 2**20

MAX_LINE_BYTES: Final = 4096
CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


class LocalBackend(Backend):
    """Runs stages as child processes of their tasks, on this machine."""

    shares_disk = True

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._launcher: LocalLauncher | None = None
        self._stopped = False
        self._may_fork = True

    def check(self, spec: PipelineSpec | None = None) -> None:
        """Nothing of this machine is stated anywhere: there is nothing to check."""

    def ignored_keys(self, spec: PipelineSpec) -> list[str]:
        return [*keys_set(spec.train.placement, IGNORED_KEYS), *(f"resources.{stage}" for stage in spec.resources)]

    def code_version(self, spec: PipelineSpec, stage: str) -> str | None:
        """Return None: the checkout's own files are the code."""
        del spec, stage
        return None

    def device_of(self, spec: PipelineSpec) -> dict[str, str]:
        """A training uses the GPUs that there are."""
        return gpus.device_of(spec, has_gpus=gpus.local_gpus())

    def run(self, task: StageTask, event: JsonObject | None = None) -> StageResult:
        """Find the work's result, or start attempts until there is one or the budget is spent."""
        del event
        found = task.work.folder.result()
        done = Relaunches()
        while found is None:
            takeover_epoch, found = wait_for_others(task)
            if found is not None:
                break
            end = self._attempt(task, takeover_epoch)
            if isinstance(end, StageResult):
                return end
            if self._stopped:
                raise _stopped(f"stopped while it ran: {end.reason}")
            if end.action is Action.AGAIN:
                # The template is not this stage's: it costs no relaunch, and cannot do so twice.
                self._may_fork = False
                task.warn(f"starts again in a process of its own, which uses no relaunch: {end.reason}; {resumption(task.work.folder)}")
            if end.action in (Action.WAIT, Action.AGAIN):
                continue
            relaunch = next_relaunch(end, done, task.resolved.spec, task.work.stage)
            done = done.with_one(relaunch)
            task.warn(f"{relaunch.words}; {resumption(task.work.folder)}")
            time.sleep(relaunch.pause_seconds)
        return found

    def stop(self) -> None:
        """End the attempt, and start no other."""
        self._stopped = True
        if self._launcher is not None:
            self._launcher.stop()

    def _attempt(self, task: StageTask, takeover_epoch: int) -> AttemptEnd | StageResult:
        """Run one attempt; return the result, or how it ended without one."""
        request = task.request(attempt_id=new_attempt_id(), takeover_epoch=takeover_epoch)
        uri = task.work.folder.write_request(request)
        task.say(f"to repeat it by hand: python -m training.stages.{task.work.stage} {uri}")
        launcher = self._launcher = LocalLauncher(self._settings)
        if self._stopped:
            raise _stopped("stopped before it began")
        ended = launcher.launch(uri, request, task.resolved.spec, task.say, may_fork=self._may_fork)
        task.say(f"attempt {request.attempt_id} ended with {ended.exit_code} after {ended.seconds:.1f} s")
        found = task.work.folder.result()
        if found is not None:
            return found
        end = judge(ended, error_of_ended(task.work.folder, request.attempt_id, ended.exit_code))
        return replace(end, reason=f"{end.reason}; {memory_text(ended)}") if end.action is Action.RELAUNCH_ONCE else end


def wait_for_others(task: StageTask) -> tuple[int, StageResult | None]:
    """Wait while an attempt of another run is alive; return (the epoch that may be taken over, a result that appeared)."""
    watch = HolderWatch(task.work.folder, owner=task.run.owner)
    said_at = -SAY_EVERY_SECONDS
    known = 0
    while True:
        holder, takeover_epoch = watch.poll()
        # A result is made after the chain's last record: while none is new and a holder is at work, there is none to look for.
        if watch.known != known or (holder is None and known):
            known = watch.known
            found = task.work.folder.result()
            if found is not None:
                return takeover_epoch, found
        if holder is None:
            return takeover_epoch, None
        if time.monotonic() - said_at >= SAY_EVERY_SECONDS:
            said_at = time.monotonic()
            task.say(f"{holder.owner} is at the same work (attempt {holder.attempt_id}); waiting for its result")
        time.sleep(POLL_SECONDS)


def _stopped(reason: str) -> StageEndedError:
    return StageEndedError(AttemptEnd(action=Action.GIVE_UP, reason=reason, code="stage.stopped"))


def memory_text(ended: Ended) -> str:
    """Describe how much memory an attempt used and could use, as far as it is known."""
    peak = f"peak {ended.peak_bytes / MEBIBYTE:,.0f} MiB" if ended.peak_bytes else "peak not known"
    limit = f"limit {ended.limit_bytes / MEBIBYTE:,.0f} MiB" if ended.limit_bytes else "limit not known"
    return f"{peak} in one process, {limit}"


class LocalLauncher:
    """Starts attempts on this machine."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | ForkedStage | None = None

    def launch(
        self, request_uri: str, request: StageRequest, spec: PipelineSpec, say: Callable[[str], None], *, may_fork: bool = True
    ) -> Ended:
        """Run the attempt; call it from the thread that outlives it, since the kernel ties a child to that thread."""
        program = program_of(request_uri, request, spec)
        environment = {**stage_environment(self._settings, request.stage, spec), **spec_environment(request.stage, spec)}
        # torchrun leaves its logs' folder behind, and killed ranks theirs: all of an attempt's temporary files go with the attempt.
        with scratch_folder() as folder:
            environment["TMPDIR"] = str(folder)
            forked = fork_stage(self._settings.home, program, environment, self._settings.checkout_path, say) if may_fork else None
            if forked is not None:
                return self._follow(forked, say)
            return self.run(child_command(program, parent_pid=os.getpid()), environment, say)

    def run(self, command: list[str], environment: Mapping[str, str], say: Callable[[str], None]) -> Ended:
        """Run a command to its end, handing each line of its output to `say`: whole, or in pieces of 4 KiB."""
        process = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=self._settings.checkout_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return self._follow(process, say)

    def _follow(self, process: subprocess.Popen[bytes] | ForkedStage, say: Callable[[str], None]) -> Ended:
        started_at = time.monotonic()
        oom_kills = count_oom_kills()
        self._process = process
        if process.stdout is not None:
            with process.stdout:
                while piece := process.stdout.readline(MAX_LINE_BYTES):
                    say(printable(piece))
        code = process.wait()
        forked = process if isinstance(process, ForkedStage) else None
        return Ended(
            exit_code=code if code >= 0 else 128 - code,
            seconds=time.monotonic() - started_at,
            oom_killed=count_oom_kills() > oom_kills,
            peak_bytes=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 if forked is None else forked.peak_bytes,
            limit_bytes=memory_limit_bytes(),
            code=TEMPLATE_LOST if forked is not None and forked.is_lost else "",
        )

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL four seconds later: its ranks and helpers follow by PR_SET_PDEATHSIG."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        # A signal's handler runs in the very thread that reads the child's output: waiting here would stop the child at a full pipe.
        killer = threading.Timer(GRACE_SECONDS, process.kill)
        killer.daemon = True
        killer.start()


def printable(piece: bytes) -> str:
    """Return a line of output as one line of a log: UTF-8, control characters escaped (`\\x1b`), so that it cannot forge another."""
    text = piece.decode("utf-8", "replace").rstrip("\r\n")
    return CONTROL_CHARACTERS.sub(lambda found: ascii(found[0])[1:-1], text)


def program_of(request_uri: str, request: StageRequest, spec: PipelineSpec) -> list[str]:
    """Return the module of an attempt and its arguments, as after `python -m`; user values are in the request alone."""
    module = f"training.stages.{request.stage}"
    placement = spec.train.placement
    if request.stage in TRAININGS and placement.world_size > 1:
        torchrun = ["training.runtime.torchrun", "--standalone", f"--nproc-per-node={placement.world_size}", "--max-restarts=0"]
        return [*torchrun, "-m", module, request_uri]
    return [module, request_uri]


def child_command(program: list[str], *, parent_pid: int) -> list[str]:
    """Return the command of a new process that dies with its parent."""
    return [sys.executable, "-m", "training.process.child", "--parent", str(parent_pid), "--", sys.executable, "-m", *program]


def count_oom_kills() -> int:
    """Return how many processes the kernel has killed for memory since boot, 0 where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
