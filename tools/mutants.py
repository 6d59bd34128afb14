"""Mutation test: changes the code in one place at a time and runs the unit tests that should notice.

    python -m tools.mutants [--sample 400] [--seed 17] [--report] [FILE ...]

A seeded sample of all mutants of `TESTS` (or of the files that are named). Nothing is changed on disk: each mutant is the
module of a process of its own, forked from one that has the libraries loaded. Results are kept in .local/mutants/, so an
interrupted run goes on where it stopped. What is known to be killed stays so; survivors run again when their tests change.
Prints the score, and each survivor as file:line with its difference. Exit code 1: a test fails without any mutation.

Why a tool of our own: mutmut 3 mutates neither properties nor the constants of a module, cosmic-ray changes the checkout in place and
imports torch again for every mutant (some seconds each).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.abc
import importlib.util
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final

from tools.mutations import Mutation, mutations_of

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / ".local/mutants/results.jsonl"
ENGINE: Final = "tests/unit/training/engine"
EVALUATION: Final = "tests/unit/training/evaluation"
REGISTRY: Final = "tests/unit/training/registry"
INTERVALS: Final = tuple(f"{EVALUATION}/bootstrap/test_{name}.py" for name in ("paired", "influence", "blocks", "label_blocks"))
OF_METRICS: Final = (*INTERVALS, f"{EVALUATION}/metrics/test_by_task.py", f"{EVALUATION}/test_slices_and_fairness.py")
PLANS: Final = ("auc", "calibration", "regression", "f1", "means", "metric")
"""Modules of metrics that have a plan for resampling."""
TESTS: Final[dict[str, tuple[str, ...]]] = {
    "training/engine/divergence.py": (f"{ENGINE}/test_divergence.py",),
    "training/engine/precision.py": (f"{ENGINE}/test_precision.py", f"{ENGINE}/test_loss_scale.py"),
    "training/engine/loop.py": (
        *(f"{ENGINE}/test_{name}.py" for name in ("schedule", "steps", "epochs", "resume", "divergence", "notice", "loss_scale")),
        *(f"{ENGINE}/test_{name}.py" for name in ("weighted_loss", "throughput")),
        "tests/unit/training/models/test_refit_fit.py",
    ),
    **{
        f"training/engine/checkpoint/{file}.py": tuple(
            f"{ENGINE}/{name}.py"
            for name in (*(f"checkpoint/test_{name}" for name in ("checkpoints", "reader", "chunks", "types")), "test_resume")
        )
        for file in ("format", "writer", "reader")
    },
    "training/engine/checkpoint/tensors.py": tuple(f"{ENGINE}/checkpoint/test_{name}.py" for name in ("buffer", "types", "checkpoints")),
    "training/engine/optim.py": tuple(f"{ENGINE}/test_{name}.py" for name in ("schedule", "steps", "resume", "optimizers")),
    "training/engine/parallel/ddp.py": (f"{ENGINE}/parallel/test_strategy.py", f"{ENGINE}/test_steps.py", f"{ENGINE}/test_epochs.py"),
    "training/engine/parallel/gang.py": (f"{ENGINE}/parallel/test_gang.py", f"{ENGINE}/test_steps.py"),
    "training/engine/tracking/tracker.py": (f"{ENGINE}/tracking/test_tracker.py",),
    **{
        f"training/engine/tracking/{file}.py": (f"{ENGINE}/tracking/test_mlflow_delivery.py",)
        for file in ("mlflow_delivery", "mlflow_journal")
    },
    **{
        f"training/registry/gates/{file}.py": tuple(
            f"{REGISTRY}/gates/test_{name}.py"
            for name in (
                *("judging", "outcomes", "comparisons", "same_weights", "significance", "canary", "naive_baseline", "outside_gate"),
                *("bias", "statistics"),
            )
        )
        for file in ("judging", "absolute", "champion", "bounds", "naive_baseline", "significance", "interface")
    },
    "training/evaluation/bootstrap/paired.py": INTERVALS,
    **{f"training/evaluation/metrics/{name}.py": OF_METRICS for name in PLANS},
    "training/store/leases.py": ("tests/unit/training/store/test_leases.py",),
}
"""File to the tests that concern it, the nearest first; only tests that run in one process see a mutant."""

WITH_SLOW_TESTS: Final = frozenset(file for file, tests in TESTS.items() if tests[: len(INTERVALS)] == INTERVALS)
"""Files of which a test that is marked `slow` sees most: every metric's interval beside a plain bootstrap."""

LIBRARIES: Final = (
    "numpy",
    "pandas",
    "pyarrow",
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "xgboost",
    "sqlalchemy",
    "obstore",
    "pydantic",
    "pytest",
    "_pytest.assertion.rewrite",
)
CPU_FACTOR: Final = 10
CPU_SECONDS: Final = 20
WALL_FACTOR: Final = 60
"""Of the CPU seconds without a mutation: what waits for ever uses no CPU, and a busy machine gives little of it."""

KILLED, SURVIVED, TIMEOUT = "killed", "survived", "timeout"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutation of a file of the checkout."""

    file: str
    source: bytes
    mutation: Mutation

    @property
    def key(self) -> str:
        text = (
            f"{self.file}:{hashlib.sha256(self.source).hexdigest()}:{self.mutation.start}:{self.mutation.stop}:{self.mutation.replacement}"
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class MutatedModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from another source, everything else as ever."""

    def __init__(self, file: str, source: bytes) -> None:
        self._name = file.removesuffix(".py").replace("/", ".")
        self._path = ROOT / file
        self._source = source

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        del path, target
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self) if fullname == self._name else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        del spec
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._source, str(self._path), "exec"), module.__dict__)  # noqa: S102 - the checkout's own code


def main() -> int:
    options = parse(sys.argv[1:])
    sources = {file: (ROOT / file).read_bytes() for file in options.files or TESTS}
    everything = [Mutant(file, source, mutation) for file, source in sources.items() for mutation in mutations_of(source)]
    chosen = random.Random(options.seed).sample(everything, min(options.sample, len(everything)))  # noqa: S311 - a sample, not a secret
    print(f"{len(chosen)} of {len(everything)} mutants, seed {options.seed}")
    results = read_results()
    if not options.report:
        for file in sources:
            mutants = [mutant for mutant in chosen if mutant.file == file]
            if not run_file(file, mutants, results):
                return 1
    print_report(chosen, results)
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help="files to mutate (default: all that have tests here)")
    parser.add_argument("--sample", type=int, default=400, help="how many mutants (default 400)")
    parser.add_argument("--seed", type=int, default=17, help="of the sample (default 17)")
    parser.add_argument("--report", action="store_true", help="only print what is known")
    options = parser.parse_args(arguments)
    if unknown := [file for file in options.files if file not in TESTS]:
        parser.error(f"no tests are named for {', '.join(unknown)}; there are some for: {', '.join(TESTS)}")
    return options


def read_results() -> dict[str, dict[str, str]]:
    """Return the results known, by mutant; a line cut by a kill is left out."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for line in RESULTS.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                result = json.loads(line)
                found[result["key"]] = result
    return found


def run_file(file: str, mutants: list[Mutant], results: dict[str, dict[str, str]]) -> bool:
    """Run what is not known of a file's mutants; False: its tests fail without a mutation, so they say nothing."""
    tests = digest_of(TESTS[file])
    waiting = [mutant for mutant in mutants if not is_known(results.get(mutant.key), tests)]
    if not waiting:
        return True
    outcome, cpu_seconds = run_tests(file, waiting[0].source, limit_seconds=3600)
    if outcome != SURVIVED:
        print(f"{file}: {' '.join(TESTS[file])} fail without a mutation")
        return False
    limit_seconds = int(cpu_seconds * CPU_FACTOR + CPU_SECONDS)
    print(f"{file}: {len(waiting)} to run, the tests take {cpu_seconds:.1f} s of CPU")
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as journal:
        for number, mutant in enumerate(waiting, start=1):
            outcome, cpu_seconds = run_tests(file, mutant.mutation.apply(mutant.source), limit_seconds=limit_seconds)
            results[mutant.key] = {"key": mutant.key, "outcome": outcome, "tests": tests}
            journal.write(json.dumps(results[mutant.key]) + "\n")
            journal.flush()
            print(f"{number}/{len(waiting)} {file}:{mutant.mutation.line} {outcome} ({cpu_seconds:.1f} s)", flush=True)
    return True


def is_known(result: dict[str, str] | None, tests: str) -> bool:
    return result is not None and (result["outcome"] == KILLED or result["tests"] == tests)


def digest_of(files: Sequence[str]) -> str:
    """Return the digest of tests and of what lies beside them: benches and fixtures."""
    folders = sorted({(ROOT / file).parent for file in files})
    beside = [path for folder in folders for path in sorted(folder.glob("*.py")) if not path.name.startswith("test_")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in [*(ROOT / file for file in files), *beside])).hexdigest()[:16]


def run_tests(file: str, source: bytes, *, limit_seconds: int) -> tuple[str, float]:
    """Run a file's tests in a fork that imports `source` in its place.

    Returns:
        The outcome (`survived` where all tests pass), and the CPU seconds used.
    """
    folder = tempfile.mkdtemp(prefix="nightshift-mutant-")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    pid = os.fork()
    if pid == 0:
        run_child(file, source, folder, limit_seconds)
    try:
        outcome = wait_for(pid, limit_seconds * WALL_FACTOR // CPU_FACTOR)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        shutil.rmtree(folder, ignore_errors=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return outcome, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def wait_for(pid: int, wall_seconds: float) -> str:
    deadline = time.monotonic() + wall_seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return SURVIVED if code == 0 else TIMEOUT if code in (-signal.SIGXCPU, -signal.SIGKILL) else KILLED
        time.sleep(0.05)
    return TIMEOUT


def run_child(file: str, source: bytes, folder: str, limit_seconds: int) -> None:
    """Run the tests and end the process, whatever they do."""
    code = 1
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (limit_seconds, limit_seconds + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        with open(os.devnull, "r+b") as nothing:
            for number in range(3):
                os.dup2(nothing.fileno(), number)
        sys.meta_path.insert(0, MutatedModule(file, source))
        import pytest

        marks = "not long" if file in WITH_SLOW_TESTS else "not slow"
        code = int(
            pytest.main(
                ["-x", "-q", "-m", marks, "-p", "no:cacheprovider", "-p", "no:randomly", f"--basetemp={folder}/pytest", *TESTS[file]]
            )
        )
    finally:
        os._exit(code)


def print_report(mutants: list[Mutant], results: dict[str, dict[str, str]]) -> None:
    """Print the score by file, and each survivor."""
    outcomes = {mutant.key: results[mutant.key]["outcome"] if mutant.key in results else "" for mutant in mutants}
    print(f"{'file':42} {'run':>5} {KILLED:>7} {SURVIVED:>9} {TIMEOUT:>8} {'score':>7}")
    for file in [*TESTS, ""]:
        found = [outcomes[mutant.key] for mutant in mutants if file in ("", mutant.file) and outcomes[mutant.key]]
        if not found:
            continue
        counts = [found.count(outcome) for outcome in (KILLED, SURVIVED, TIMEOUT)]
        score = (counts[0] + counts[2]) / len(found)
        print(f"{file or 'all':42} {len(found):5} {counts[0]:7} {counts[1]:9} {counts[2]:8} {score:7.1%}")
    for mutant in sorted(mutants, key=lambda mutant: (mutant.file, mutant.mutation.start)):
        if outcomes[mutant.key] in (SURVIVED, TIMEOUT):
            print(f"{mutant.file}:{mutant.mutation.line} {outcomes[mutant.key]}\n{mutant.mutation.diff(mutant.source)}")


if __name__ == "__main__":
    os.chdir(ROOT)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if "--report" not in sys.argv:
        for library in LIBRARIES:
            importlib.import_module(library)
    # Nothing of the project: a fork imports the mutant before anything else has a reference to the original.
    assert not any(name.split(".")[0] == "training" for name in sys.modules)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here, --report shows what is known")
        sys.exit(130)
