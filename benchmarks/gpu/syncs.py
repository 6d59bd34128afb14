"""How often a step of the loop waits for the device, and where: each wait leaves the device without work."""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.gpu.bench import Bench, Figures
from benchmarks.gpu.language_model import LanguageModel, next_token_loss, walks
from benchmarks.gpu.trainings import EnoughError, Training, write_tokens
from training.runtime.provenance import CHECKOUT

SKIPPED_STEPS: Final = 10
COUNTED_STEPS: Final = 20
MESSAGE: Final = "synchronizing CUDA operation"


def measure(device: str) -> Iterator[Figures]:
    bench = Bench(device)
    rows = 8 if bench.is_gpu else 2
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folder = Path(name)
        tokens = {
            "train": walks(bench.shape, 2 * (SKIPPED_STEPS + COUNTED_STEPS) * rows, seed=1),
            "validation": walks(bench.shape, rows, seed=2),
        }
        training = Training(folder=folder, meta=write_tokens(folder, tokens, bench.shape.vocabulary), gang=bench.gang, batch_size=rows)
        with training.attempt(LanguageModel(bench.shape), next_token_loss) as loop:
            parts: Any = loop._parts

            def on_step(number: int) -> None:
                if number == SKIPPED_STEPS:
                    caught.clear()
                if number == SKIPPED_STEPS + COUNTED_STEPS:
                    raise EnoughError

            parts.progress.__self__.on_step = on_step
            if bench.is_gpu:
                torch.cuda.set_sync_debug_mode("warn")
            with suppress(EnoughError):
                loop.train()
    # A CPU has none to count.
    yield counted(caught) if bench.is_gpu else {"syncs_per_step": None}


def counted(caught: list[warnings.WarningMessage]) -> Figures:
    """Return the waits per step, and those of each line of Python that made some."""
    places = Counter(f"{relative(each.filename)}:{each.lineno}" for each in caught if MESSAGE in str(each.message))
    return {
        "syncs_per_step": places.total() / COUNTED_STEPS,
        "places": {place: number / COUNTED_STEPS for place, number in places.most_common(20)},
    }


def relative(path: str) -> str:
    own, package = f"{CHECKOUT}/", "/site-packages/"
    return path.removeprefix(own) if path.startswith(own) else path.rpartition(package)[2]
