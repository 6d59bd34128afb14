"""The loop of a strategy whose ranks save their parts: resumed bit by bit, and from the checkpoint before where a block is altered."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

from tests.unit.training.engine.loop_bench import Line, LoopBench, outcome
from training.engine.loop import Loop
from training.engine.parallel.ddp import ReplicatedModel
from training.engine.parallel.gang import Gang
from training.errors import NoUsableCheckpointError
from training.large.checkpoint.savers import Savers


class Parts(ReplicatedModel):
    """One process, which saves as the ranks of a sharded training do."""

    @property
    def is_sharded(self) -> bool:
        return True

    @property
    def saves(self) -> bool:
        return True


def trained(bench: LoopBench, **changes: Any) -> Loop:
    context = bench.context()
    checkpoints = bench.checkpoints(context, savers=Savers(0, 1, HashStore()))
    strategy = Parts(Gang(0, 1, torch.device("cpu")))
    return bench.train(stage=context, checkpoints=checkpoints, strategy=strategy, **changes)


def damage(bench: LoopBench, number: int) -> None:
    """Change a bit of each block of a checkpoint that the one before does not have."""
    files = [{entry.digest for entry in bench.store.manifests.get(saved["uri"]).files.values()} for saved in bench.saved]
    for digest in files[number] - set().union(*files[:number]):
        path = Path(bench.store.root_uri.removeprefix("file://")) / bench.store.objects.key(digest)
        data = bytearray(path.read_bytes())
        data[0] ^= 1
        path.write_bytes(data)


def test_training_that_is_resumed_in_its_middle_is_the_undisturbed_one(bench: LoopBench) -> None:
    undisturbed = outcome(trained(bench, epochs=3))
    assert bench.store.manifests.get(bench.saved[-1]["uri"]).meta["format"] == 2
    lease = bench.context().lease
    assert lease is not None
    # The newest checkpoint is the one after the first epoch now.
    lease.commit("checkpoint", bench.saved[0])
    assert outcome(trained(bench, epochs=3)) == undisturbed


class Partly(Line):
    """Has a frozen parameter, and one that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.line.bias.requires_grad_(False)
        self.unused = nn.Linear(1, 1)
        nn.init.constant_(self.unused.weight, 2.0)
        nn.init.constant_(self.unused.bias, 3.0)


def test_training_with_frozen_and_unused_parameters_is_resumed(bench: LoopBench) -> None:
    undisturbed = outcome(trained(bench, module=Partly(), epochs=3))
    lease = bench.context().lease
    assert lease is not None
    lease.commit("checkpoint", bench.saved[0])
    again = trained(bench, module=Partly(), epochs=3)
    assert outcome(again) == undisturbed
    assert set(again._optimizer.state()) == {f"{key}/line.weight" for key in ("step", "exp_avg", "exp_avg_sq")}


def test_altered_block_lets_the_training_resume_from_the_checkpoint_before(bench: LoopBench, caplog: pytest.LogCaptureFixture) -> None:
    undisturbed = outcome(trained(bench, epochs=3))
    damage(bench, 2)
    with caplog.at_level(logging.INFO):
        again = trained(bench, epochs=3)
    assert "a checkpoint cannot be restored on rank 0, trying the one before" in caplog.text
    assert "resuming after step 8" in caplog.text
    assert outcome(again) == undisturbed


def test_training_whose_checkpoints_are_all_altered_does_not_start_from_zero(bench: LoopBench) -> None:
    trained(bench, epochs=2)
    for number in (1, 0):
        damage(bench, number)
    with pytest.raises(NoUsableCheckpointError, match="it could not be restored"):
        trained(bench, epochs=2)
