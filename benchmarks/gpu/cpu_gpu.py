"""The same small trainings on the CPU and on the card, in fp32: how much their validation losses differ."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import torch
from torch import nn

from benchmarks.gpu import rankers
from benchmarks.gpu.bench import Bench, Figures
from benchmarks.gpu.language_model import TINY, LanguageModel, next_token_loss, walks
from benchmarks.gpu.trainings import Training, write_tokens
from training.data.dataset.shard_format import ShardMeta
from training.engine.parallel.gang import Gang
from training.engine.parallel.strategy import SumLoss

TOLERANCE: Final = 1e-3
"""Of a validation loss, relative: sums in another order, hundreds of steps long. A step in another precision differs by more."""


def measure(device: str) -> Iterator[Figures]:
    bench = Bench(device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield {"tolerance": TOLERANCE}
    rows = (2**15, 2**12) if bench.is_gpu else (2**10, 2**8)

    def ranks(folder: Path) -> ShardMeta:
        return rankers.write(folder, train=rows[0], validation=rows[1])

    def reads(folder: Path) -> ShardMeta:
        tokens = {"train": walks(TINY, rows[0] // 4, seed=1), "validation": walks(TINY, rows[1] // 4, seed=2)}
        return write_tokens(folder, tokens, TINY.vocabulary)

    yield {"ranker": compared(bench, ranks, lambda: rankers.ranker(is_large=False), rankers.loss, batch_size=128)}
    yield {"language_model": compared(bench, reads, lambda: LanguageModel(TINY), next_token_loss, batch_size=32)}


def compared(bench: Bench, write: Callable[[Path], ShardMeta], make: Callable[[], nn.Module], loss: SumLoss, *, batch_size: int) -> Figures:
    """Return the validation losses after two epochs on the CPU and on the device, and their difference relative to the first."""
    losses = []
    for device in (torch.device("cpu"), bench.device):
        with tempfile.TemporaryDirectory() as name:
            gang, meta = Gang(0, 1, device), write(Path(name))
            training = Training(folder=Path(name), meta=meta, gang=gang, batch_size=batch_size, precision="fp32", epochs=2)
            torch.manual_seed(1)
            with training.attempt(make(), loss) as loop:
                loop.train()
                losses.append([epoch["validation_loss"] for epoch in loop.progress.history])
    on_cpu, on_device = (found[-1] for found in losses)
    return {"cpu": on_cpu, "device": on_device, "difference": abs(on_device - on_cpu) / on_cpu, "falls": losses[0][-1] < losses[0][0]}
