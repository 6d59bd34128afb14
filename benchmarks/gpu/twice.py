"""Whether a training ends in the same weights when it is repeated, and when it is killed in the middle and resumed.

A training is a process: python -m benchmarks.gpu.twice cuda|cpu eager|compiled FOLDER … It prints a line after each step, and
the digest of its weights at its end.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.gpu.bench import Bench, Figures
from benchmarks.gpu.language_model import LanguageModel, compiled, next_token_loss, walks
from benchmarks.gpu.trainings import Training, digest_of, write_tokens
from training.engine.checkpoint.writer import Saves
from training.errors import NightshiftError

STEPS: Final = 20
SAVED_EVERY: Final = 4
ROWS: Final = 8
KILLED: Final = "killed"
"""Folder of the training that saves more often."""


def train(device: str, kind: str, *folders: str) -> None:
    """Train in the store below each folder, from its newest checkpoint on."""
    bench = Bench(device)
    shape = bench.small_shape
    tokens = {"train": walks(shape, STEPS * ROWS, seed=1), "validation": walks(shape, ROWS, seed=2)}
    for folder in map(Path, folders):
        every_steps = SAVED_EVERY if folder.name == KILLED else None
        meta = write_tokens(folder, tokens, shape.vocabulary)
        training = Training(folder=folder, meta=meta, gang=bench.gang, batch_size=ROWS, every_steps=every_steps)
        torch.manual_seed(1)
        module = LanguageModel(shape)
        if kind == "compiled":
            compiled(module, bench.device)
        with training.attempt(module, next_token_loss, attempt_id=f"a{time.time_ns()}") as loop:
            parts: Any = loop._parts
            parts.progress.__self__.on_step = functools.partial(say_step, parts.checkpoints._writer.saves)
            loop.train()
        print(json.dumps({"digest": digest_of(module), "loss": loop.progress.history[-1]["validation_loss"]}), flush=True)


def say_step(saves: Saves, number: int) -> None:
    # The saves that are done are settled, without a wait for one that is not.
    saves.wait(seconds=0.0)
    print(json.dumps({"step": number, "committed": saves.committed_step}), flush=True)


def process_of(device: str, kind: str, *folders: Path) -> subprocess.Popen[str]:
    for folder in folders:
        folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu.twice", device, kind, *map(str, folders)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def outcomes(device: str, kind: str, *folders: Path) -> list[Figures]:
    """Train to the end in one process; return of each training the digest, the loss, and how many steps it did."""
    output, _ = process_of(device, kind, *folders).communicate()
    found, steps = list[Figures](), 0
    for line in map(json.loads, filter(lambda text: text.startswith("{"), output.splitlines())):
        if "digest" in line:
            found.append({**line, "steps": steps})
        steps = 0 if "digest" in line else steps + 1
    if len(found) < len(folders):
        raise RuntimeError(f"a training in {folders[len(found)].name} did not end: its log says why")
    return found


def killed(device: str, kind: str, folder: Path) -> int:
    """Kill a training as soon as it has committed a checkpoint; return the step after which it was."""
    step = 0
    with process_of(device, kind, folder) as process:
        for line in process.stdout or ():
            found = json.loads(line) if line.startswith("{") else {}
            step = found.get("step", step)
            if found.get("committed"):
                break
        process.kill()
    return step


def measure(device: str) -> Iterator[Figures]:
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        first = outcomes(device, "eager", base / "first")[0]
        yield {"loss": first["loss"], "steps": first["steps"]}
        yield {"equal_after_kill": is_equal_after_kill(device, base / KILLED, first)}
        yield {"equal_twice": outcomes(device, "eager", base / "second")[0]["digest"] == first["digest"]}
        third, fourth = outcomes(device, "compiled", base / "third", base / "fourth")
        yield {"equal_twice_compiled": third["digest"] == fourth["digest"]}


def is_equal_after_kill(device: str, folder: Path, undisturbed: Figures) -> bool:
    """Return whether a training that is killed and resumed ends as the undisturbed one.

    Raises:
        RuntimeError: it was not killed in the middle, or did not resume.
    """
    step = killed(device, "eager", folder)
    resumed = outcomes(device, "eager", folder)[0]
    if not 0 < step < STEPS or not 0 < resumed["steps"] < STEPS:
        raise RuntimeError(f"killed after step {step}; the next attempt did {resumed['steps']} steps of {STEPS}")
    return bool(resumed["digest"] == undisturbed["digest"])


if __name__ == "__main__":
    try:
        train(*sys.argv[1:])
    except NightshiftError as err:
        sys.exit(str(err))
