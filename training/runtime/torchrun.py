"""torchrun whose ranks share one import of torch and of the stage.

    python -m training.runtime.torchrun [OPTIONS of torchrun] -m MODULE ARGUMENTS

Arguments, rendezvous, environment of the ranks, signals and sessions are torchrun's own. It differs in three points.

torchrun starts each rank as a new interpreter, which imports torch and the stage. Here this process imports both, or torch alone where it
is built for GPUs and CUDA_VISIBLE_DEVICES is not empty, and forks the ranks before torchrun begins: before its store, its sockets and its
threads exist. A forked rank waits in its own session until torchrun starts it, then takes the environment that torchrun gives it, and runs
the module as `python -m` does. Of a run of search_ranking with two ranks that saves more than a tenth of the CPU (docs/performance.md).

torchrun ends with 1 whatever happened. Here this process ends with 128 + the number of the signal that asked it to stop, and with 75 where
all ranks that failed were asked to stop or lost another one: by that a Job tells members that its queue stopped from those that failed.

A rank that hangs is ended by its timer and cannot write its error (`training.process.liveness`). This process has the other ranks of the
node write their stacks, and writes the error of the attempt.

A fork is safe where the process has one thread and has not touched a GPU. Otherwise all is as torchrun does it.

/proc/PID/environ and the command line of a rank stay those of this process; its name (`ps -o comm`) is `rank 0`, `rank 1`, …, and `rank ?`
until torchrun starts it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from training.contracts import ExitCode
from training.errors import NightshiftError, SpecError
from training.installation import GPUS, RANK
from training.process.child import ForkedProcess, bind_to_parent, name_this_process, other_threads
from training.process.liveness import RANK_ERROR_FILE, STACKS_SIGNAL, START_LIMIT, Phase, limited, note_of

if TYPE_CHECKING:
    from argparse import Namespace

GPU_BUILDS: Final = ("cuda", "hip", "xpu")
HANDLER: Final = "get_subprocess_handler"
"""What torchrun calls to start a rank."""
READY: Final = b"r"
REPORT_SECONDS: Final = 90.0
"""How long writing the error of a rank that hung may take."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """In a forked rank: what it runs."""

    module: str
    arguments: list[str]

    def run(self) -> None:
        sys.argv = [self.module, *self.arguments]
        sys.orig_argv = [sys.executable, "-u", "-m", self.module, *self.arguments]
        try:
            runpy.run_module(self.module, run_name="__main__", alter_sys=True)
        finally:
            # Libraries check at the interpreter's end that nothing of theirs is left.
            gc.unfreeze()


@dataclass(frozen=True, slots=True)
class ForkedRank:
    """A forked rank that waits for its environment."""

    process: ForkedProcess
    pipe: int

    def start(self, environment: dict[str, str]) -> ForkedProcess:
        with contextlib.suppress(BrokenPipeError), os.fdopen(self.pipe, "wb") as pipe:
            # A rank that is dead by now: torchrun sees its exit code.
            pipe.write(json.dumps(environment).encode())
        return self.process


@dataclass(frozen=True, slots=True)
class Started:
    """A rank that torchrun has started."""

    number: int
    """Among all ranks of the training."""
    process: Any
    note_path: str
    """Of the file in which it says what it does."""

    @property
    def hung(self) -> bool:
        """Whether its timer ended it."""
        return bool(self.process.poll() == -signal.SIGALRM)


def main() -> None:
    # torchrun sets it for its ranks, too late for libraries that are loaded by then.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Imports make no garbage.
    gc.disable()
    waiting: list[ForkedRank] = []
    with limited(start_limit_seconds()):
        from torch.distributed import run as torchrun

        options = torchrun.get_args_parser().parse_args(sys.argv[1:])
        if may_import_stage():
            import_only(options.training_script)
    if others := other_threads():
        say(f"ranks are not forked: {', '.join(others)} runs in addition to the main thread")
    elif isinstance(forked := fork_ranks(options), Rank):
        gc.enable()
        forked.run()
        return
    else:
        waiting = forked
    gc.enable()
    started: list[Started] = []
    with stops_by_exit_code(options.training_script_args[-1], started), started_by(waiting, started):
        torchrun.main(sys.argv[1:])


def start_limit_seconds() -> float:
    try:
        return START_LIMIT.read()
    except SpecError:
        # A rank reports it.
        return START_LIMIT.seconds


def may_import_stage() -> bool:
    """Return whether the stage may be imported before the ranks are forked: no GPU can be in use.

    Drivers of GPUs do not survive a fork. torch touches none when it is imported; what the stage imports may be a user's.
    """
    import torch

    is_for_gpus = any(getattr(torch.version, name, None) for name in GPU_BUILDS)
    return not is_for_gpus or (GPUS.is_set() and not GPUS.text())


def import_only(module: str) -> None:
    """Import what a program imports, so that only its own file is left to run."""
    importlib.import_module(module)
    del sys.modules[module]
    package, _, name = module.rpartition(".")
    if package:
        delattr(sys.modules[package], name)


def fork_ranks(options: Namespace) -> list[ForkedRank] | Rank:
    """Fork a process for each rank of this node; return them, or in a rank what to run.

    Raises:
        OSError: the system refuses a process.
    """
    pipes = [os.pipe() for _ in range(int(options.nproc_per_node))]
    ready, is_ready = os.pipe()
    parent_pid, waiting = os.getpid(), []
    sys.stdout.flush()
    sys.stderr.flush()
    # Imported objects are never collected, and stay shared memory where no collection writes to it.
    gc.freeze()
    for number, (reader, writer) in enumerate(pipes):
        pid = os.fork()
        if pid == 0:
            # The earlier ranks' readers are closed.
            for descriptor in {ready, *(end for pipe in pipes[number:] for end in pipe), *(w for _, w in pipes)} - {reader}:
                os.close(descriptor)
            _await_start(parent_pid, reader, is_ready)
            return Rank(module=options.training_script, arguments=list(options.training_script_args))
        os.close(reader)
        waiting.append(ForkedRank(ForkedProcess(pid), writer))
    gc.unfreeze()
    os.close(is_ready)
    with os.fdopen(ready, "rb") as stream:
        # torchrun signals a rank's group, which is there once it is ready.
        stream.read(len(pipes))
    return waiting


def _await_start(parent_pid: int, reader: int, is_ready: int) -> None:
    """Be a process as torchrun starts it; return when it starts this one."""
    os.setsid()
    bind_to_parent(parent_pid)
    name_this_process("rank ?")
    os.write(is_ready, READY)
    os.close(is_ready)
    with os.fdopen(reader, "rb") as stream:
        given = stream.read()
    if not given:
        # torchrun has ended.
        os._exit(1)
    # torchrun handles these, so that a new interpreter has their defaults, even if the shell had them ignored.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(json.loads(given))
    name_this_process(f"rank {RANK.text()}")
    # As `python -u`.
    for stream_ in (sys.stdout, sys.stderr):
        if hasattr(stream_, "reconfigure"):
            stream_.reconfigure(line_buffering=True, write_through=True)
    if "numpy" in sys.modules:
        # Python's own generator is seeded by a fork, numpy's old global one would be the same in all ranks.
        sys.modules["numpy"].random.seed()


@contextlib.contextmanager
def started_by(waiting: list[ForkedRank], started: list[Started]) -> Iterator[None]:
    """Have torchrun start the waiting processes in this block, new ones where there are none, and log the stacks of a gang that hangs."""
    from torch.distributed.elastic.multiprocessing import api
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    class Handler(SubprocessHandler):
        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
            process = waiting[self.local_rank_id].start(env) if waiting else super()._popen(args, env)
            started.append(Started(RANK.read(env), process, note_of(RANK_ERROR_FILE.text(env))))
            return process

        def close(self, death_sig: signal.Signals | None = None) -> None:
            # The rank that was ended may only have waited for this one.
            if any(rank.hung for rank in started):
                os.kill(self.proc.pid, STACKS_SIGNAL)
            super().close(death_sig)

    original = getattr(api, HANDLER)
    setattr(api, HANDLER, Handler)
    try:
        yield
    finally:
        setattr(api, HANDLER, original)


@contextlib.contextmanager
def stops_by_exit_code(request_uri: str, started: list[Started]) -> Iterator[None]:
    """End this process with the exit code of what was asked to stop in this block; write the error of a rank that hung in it."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        yield
    except SignalException as err:
        say(str(err))
        sys.exit(128 + int(err.sigval))
    except ChildFailedError as err:
        write_hang_of(started, request_uri)
        # torchrun ends the ranks that are left by SIGTERM.
        if any(failure.exitcode not in (int(ExitCode.PREEMPTED), -signal.SIGTERM) for failure in err.failures.values()):
            raise
        say(str(err))
        sys.exit(int(ExitCode.PREEMPTED))


def write_hang_of(started: list[Started], request_uri: str) -> None:
    """Write the error of an attempt that ended because a rank of this node hung."""
    rank = next((rank for rank in started if rank.hung), None)
    if rank is None:
        return
    # The store may be what hangs.
    with limited(REPORT_SECONDS):
        from training.runtime.attempt_errors import write_hang
        from training.runtime.runner import REQUEST_PATTERN
        from training.store import Store

        match = REQUEST_PATTERN.fullmatch(request_uri)
        if match is None:
            raise ValueError(f"not a request URI: {request_uri!r}")
        did = Phase(**json.loads(Path(rank.note_path).read_bytes().splitlines()[0]))
        try:
            write_hang(Store(match["root"]).work_folder(*match.groups()[1:4]), match.groups()[4], did, rank=rank.number)
        except NightshiftError as err:
            say(f"the error of rank {rank.number}, which hung, could not be written: {err}")


def say(text: str) -> None:
    sys.stderr.write(f"training.runtime.torchrun: {text}\n")


if __name__ == "__main__":
    main()
