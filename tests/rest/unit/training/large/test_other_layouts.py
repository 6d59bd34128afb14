"""A training that is saved in one layout goes on in another one, with its optimizer: the losses of one process, in twelve pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.training.engine.loop_bench import LoopBench
from tests.unit.training.engine.parallel.ranks import run_ranks
from tests.unit.training.large.tiny_transformer import SEQUENCE_PLAN, TinyTransformer, alone, global_batch, squares, stages_of
from training.data.dataset.loader import cut
from training.engine.optim import MAX_GRAD_NORM, Schedule, ScheduledOptimizer
from training.engine.optimizers import OptimizerSettings
from training.engine.parallel.gang import Gang
from training.engine.parallel.strategy import Strategy
from training.large.checkpoint.savers import Savers
from training.models.strategy_choice import strategy_for
from training.spec.layout import Layout
from training.store import Store


def continued(gang: Gang, folder: str, layout: Layout, source: str | None, saved: str) -> list[float]:
    """Train three steps from a checkpoint, or five from the start; save; return the losses of three more steps."""
    strategy = strategy_for(gang, precision="fp32", layout=layout, cut=stages_of, tensor_plan=lambda _: SEQUENCE_PLAN)
    torch.manual_seed(5)
    parameters = strategy.place(TinyTransformer())
    optimizer = ScheduledOptimizer(parameters, Schedule(learning_rate=0.01, total_steps=20), OptimizerSettings(weight_decay=0.01))
    first = 0

    def state() -> dict[str, torch.Tensor]:
        sections = {"module": strategy.state(), "optimizer": optimizer.state()}
        return {f"{section}/{name}": tensor for section, tensors in sections.items() for name, tensor in tensors.items()}

    def opened(name: str, *, together: bool) -> Any:
        bench = object.__new__(LoopBench)
        bench.folder, bench.store, bench.num_attempts = Path(folder) / name, Store(str(Path(folder) / name / "store")), gang.rank + 1
        return bench.checkpoints(bench.context(rank=gang.rank, elastic=True), savers=Savers.of(gang) if together else None)

    if source is not None:
        optimizer.allocate()
        checkpoints = opened(source, together=False)
        first = checkpoints.restore_into(checkpoints.newest_entry(), state()).meta["step"]
        checkpoints.close()
    for step in range(first, first + 5):
        stepped(strategy, optimizer, step)
    checkpoints = opened(saved, together=True)
    checkpoints.save(state(), {"step": first + 5, "epoch": 1, "history": []}, name="epoch_1")
    checkpoints.wait()
    checkpoints.close()
    return [stepped(strategy, optimizer, step) for step in range(first + 5, first + 8)]


def stepped(strategy: Strategy, optimizer: ScheduledOptimizer, step: int) -> float:
    share = cut(global_batch(step), strategy.num_data_ranks)[strategy.data_rank]
    optimizer.clear_gradients()
    total = strategy.backward(cut(share, 4), squares, 16)
    strategy.clip(MAX_GRAD_NORM)
    optimizer.step(step)
    world_size = strategy.gang.world_size
    return strategy.gang.sum(float(total))[0] / 16 * strategy.num_data_ranks / world_size


LAYOUTS = {
    "one": Layout(),
    "fsdp": Layout(shard=2),
    "tensor": Layout(tensor=2),
    "fsdp and tensor": Layout(shard=2, tensor=2),
    "replicas of tensor": Layout(data=2, tensor=2),
    "pipeline": Layout(pipeline=2),
    "replicas of pipelines": Layout(data=2, pipeline=2),
}
PAIRS = [
    ("tensor", "one"),
    ("one", "tensor"),
    ("tensor", "fsdp"),
    ("fsdp", "fsdp and tensor"),
    ("fsdp and tensor", "tensor"),
    ("replicas of tensor", "one"),
    ("pipeline", "one"),
    ("pipeline", "fsdp"),
    ("fsdp", "pipeline"),
    ("pipeline", "replicas of pipelines"),
    ("replicas of pipelines", "tensor"),
    ("one", "pipeline"),
]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_training_goes_on_in_another_layout_with_the_losses_of_one_process(source: str, target: str, tmp_path: Path) -> None:
    expected = alone(micro_batches=4, steps=20).losses
    first, second = LAYOUTS[source], LAYOUTS[target]
    before = run_ranks(continued, first.world_size, tmp_path / "a", str(tmp_path), first, None, "first")
    after = run_ranks(continued, second.world_size, tmp_path / "b", str(tmp_path), second, "first", "second")
    assert before[0] == pytest.approx(expected[5:8], abs=5e-7)
    assert after[0] == pytest.approx(expected[10:13], abs=5e-7)
