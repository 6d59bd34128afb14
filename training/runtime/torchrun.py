"""torchrun whose ranks share one import of torch and of the stage.

    python -m training.runtime.torchrun [OPTIONS of torchrun] -m MODULE ARGUMENTS

Arguments, rendezvous, environment of the ranks, signals and sessions are torchrun's own. It differs in two points.

torchrun starts each rank as a new interpreter, which imports torch for 2 CPU seconds and the stage for one more. Here this process imports
both, and forks the ranks before torchrun begins: before its store, its sockets and its threads exist. A forked rank waits in its own
session until torchrun starts it, then takes the environment that torchrun gives it, and runs the module as `python -m` does.

torchrun ends with 1 whatever happened. Here this process ends with 128 + the number of the signal that asked it to stop, and with 75 where
all ranks that failed were asked to stop or lost another one: by that a Job tells members that its queue stopped from those that failed.

A fork is safe where the process has one thread and has not touched a GPU. Otherwise, and with a torch that is built for GPUs unless
CUDA_VISIBLE_DEVICES is empty, all is as torchrun does it.

/proc/PID/environ and the command line of a rank stay those of this process; its name (`ps -o comm`) is `rank 0`, `rank 1`, …, and `rank ?`
until torchrun starts it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import runpy
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from training.contracts import ExitCode
from training.errors import SpecError
from training.installation import GPUS, RANK
from training.process.liveness import START_LIMIT
from training.runtime.processes import ForkedProcess, bind_to_parent, name_this_process, other_threads

if TYPE_CHECKING:
    from argparse import Namespace

GPU_BUILDS: Final = ("cuda", "hip", "xpu")
HANDLER: Final = "get_subprocess_handler"
"""What torchrun calls to start a rank."""
READY: Final = b"r"


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
class Waiting:
    """A forked rank that waits for its environment."""

    process: ForkedProcess
    pipe: int

    def start(self, environment: dict[str, str]) -> ForkedProcess:
        with contextlib.suppress(BrokenPipeError), os.fdopen(self.pipe, "wb") as pipe:
            # A rank that is dead by now: torchrun sees its exit code.
            pipe.write(json.dumps(environment).encode())
        return self.process


def main() -> None:
    # torchrun sets it for its ranks, too late for libraries that are loaded by then.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Imports make no garbage.
    gc.disable()
    waiting: list[Waiting] = []
    with limited_start():
        from torch.distributed import run as torchrun

        options = torchrun.get_args_parser().parse_args(sys.argv[1:])
        may_be_forked = is_plain(options) and may_fork()
        if may_be_forked:
            import_only(options.training_script)
    if may_be_forked:
        if others := other_threads():
            say(f"ranks are not forked: {', '.join(others)} runs in addition to the main thread")
        elif isinstance(forked := fork_ranks(options), Rank):
            gc.enable()
            forked.run()
            return
        else:
            waiting = forked
    gc.enable()
    with stops_by_exit_code(), started_by(options, waiting) if waiting else contextlib.nullcontext():
        torchrun.main(sys.argv[1:])


@contextlib.contextmanager
def limited_start() -> Iterator[None]:
    """End this process, its stack in the log, if the block takes longer than a stage may take to start: each rank has a guard, later.

    The kernel's timer ends a process that holds the interpreter's lock, too, and needs no thread.
    """
    try:
        limit_seconds = START_LIMIT.read()
    except SpecError:
        # A rank reports it.
        limit_seconds = START_LIMIT.seconds
    faulthandler.register(signal.SIGALRM, file=2, chain=True)
    signal.setitimer(signal.ITIMER_REAL, limit_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.unregister(signal.SIGALRM)


def is_plain(options: Namespace) -> bool:
    """Return whether torchrun's options are those of a stage: a number of processes that run a module and write to this one's output."""
    is_redirected = (options.redirects, options.tee, options.local_ranks_filter) != ("0", "0", "")
    # With a range of nodes torchrun starts ranks a second time when one joins.
    is_fixed = options.max_restarts == 0 and len(set(options.nnodes.split(":"))) == 1
    return options.module and options.nproc_per_node.isdecimal() and is_fixed and not is_redirected


def may_fork() -> bool:
    """Return whether no GPU can be in use: drivers of GPUs do not survive a fork, and whether they were touched is not ours to know."""
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


def fork_ranks(options: Namespace) -> list[Waiting] | Rank:
    """Fork a process for each rank of this node; return them, or in a rank what to run. Nothing is forked where the system refuses."""
    pipes = [os.pipe() for _ in range(int(options.nproc_per_node))]
    ready, is_ready = os.pipe()
    parent_pid, waiting = os.getpid(), []
    sys.stdout.flush()
    sys.stderr.flush()
    # Imported objects are never collected, and stay shared memory where no collection writes to it.
    gc.freeze()
    for number, (reader, writer) in enumerate(pipes):
        try:
            pid = os.fork()
        except OSError as err:
            say(f"ranks are not forked: {err}")
            break
        if pid == 0:
            for descriptor in {ready, *(end for pipe in pipes[number:] for end in pipe), *(w for _, w in pipes)} - {reader}:
                _close(descriptor)
            _await_start(parent_pid, reader, is_ready)
            return Rank(module=options.training_script, arguments=list(options.training_script_args))
        os.close(reader)
        waiting.append(Waiting(ForkedProcess(pid), writer))
    gc.unfreeze()
    os.close(is_ready)
    with os.fdopen(ready, "rb") as stream:
        # torchrun signals a rank's group, which is there once it is ready.
        if len(stream.read(len(pipes))) == len(pipes):
            return waiting
    for rank in waiting:
        os.close(rank.pipe)
        rank.process.wait()
    return []


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


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
        # torchrun has ended, or starts its ranks itself.
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
def started_by(options: Namespace, waiting: list[Waiting]) -> Iterator[None]:
    """Have torchrun start the waiting processes in this block, where it would start new ones."""
    from torch.distributed.elastic.multiprocessing import api
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    program = (sys.executable, "-u", "-m", options.training_script, *options.training_script_args)

    class Handler(SubprocessHandler):
        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
            rank = waiting[self.local_rank_id]
            if args == program:
                return rank.start(env)
            # As with another interpreter in PYTHON_EXEC.
            os.close(rank.pipe)
            return super()._popen(args, env)

    original = getattr(api, HANDLER)
    setattr(api, HANDLER, Handler)
    try:
        yield
    finally:
        setattr(api, HANDLER, original)


@contextlib.contextmanager
def stops_by_exit_code() -> Iterator[None]:
    """End this process with the exit code of what was asked to stop in this block."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        yield
    except SignalException as err:
        say(str(err))
        sys.exit(128 + int(err.sigval))
    except ChildFailedError as err:
        # torchrun ends the ranks that are left by SIGTERM.
        if any(failure.exitcode not in (int(ExitCode.PREEMPTED), -signal.SIGTERM) for failure in err.failures.values()):
            raise
        say(str(err))
        sys.exit(int(ExitCode.PREEMPTED))


def say(text: str) -> None:
    sys.stderr.write(f"training.runtime.torchrun: {text}\n")


if __name__ == "__main__":
    main()
