"""The seam of parallel training: what the loop asks of a strategy, and that no other package knows how processes share a model."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.unit.training.engine.loop_bench import Line, LoopBench, Normalized, outcome, recorded_steps, squares
from tests.unit.training.models.family_bench import FamilyBench
from training.data.dataset.loader import Batch, Loader
from training.engine.parallel.ddp import ReplicatedModel
from training.engine.parallel.gang import Gang
from training.engine.parallel.strategy import Strategy, SumLoss
from training.errors import PeerLostError
from training.models import strategy_choice
from training.models.base import load_family
from training.runtime.provenance import CHECKOUT

CPU = torch.device("cpu")
SETTINGS = {"embedding_dim": 4, "hidden": (8,), "dropout": 0.0, "loss": "listwise"}
LAUNCHER = "training/runtime/torchrun.py"
"""Starts the processes; it holds no tensor."""


def distributed_names(tree: ast.Module) -> Iterator[str]:
    """Yield what a file names of torch's parts for several processes."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        yield from (name for name in names if name.startswith(("torch.distributed", "torch.nn.parallel")))


def test_only_strategies_and_checkpoints_name_torchs_parts_for_several_processes() -> None:
    files = [path for room in ("training", "plugins", "devstack", "dags") for path in sorted((CHECKOUT / room).rglob("*.py"))]
    users = {path.relative_to(CHECKOUT).as_posix() for path in files if any(distributed_names(ast.parse(path.read_text(encoding="utf-8"))))}
    others = {
        path for path in users if not path.startswith(("training/engine/parallel/", "training/engine/checkpoint/", "training/large/"))
    }
    assert others == {LAUNCHER}


@pytest.mark.parametrize(
    "text",
    [
        "import torch.distributed as dist",
        "from torch import distributed",
        "from torch.distributed.tensor import DTensor",
        "from torch.nn.parallel import DistributedDataParallel",
        "import torch\ntorch.distributed.barrier()",
        "def f():\n    from torch.distributed.fsdp import fully_shard",
    ],
)
def test_each_way_to_name_them_is_found(text: str) -> None:
    assert any(distributed_names(ast.parse(text)))


def test_every_process_of_replication_is_a_data_rank_and_the_first_one_saves() -> None:
    members = [ReplicatedModel(Gang(rank, 3, CPU)) for rank in range(3)]
    assert [(member.data_rank, member.num_data_ranks, member.saves) for member in members] == [(0, 3, True), (1, 3, False), (2, 3, False)]


def test_first_process_of_replication_can_rescue_a_model_without_buffers() -> None:
    def can_rescue(rank: int, module: nn.Module) -> bool:
        member = ReplicatedModel(Gang(rank, 1, CPU))
        member.place(module)
        return member.can_rescue

    assert [can_rescue(0, Line()), can_rescue(1, Line()), can_rescue(0, Normalized())] == [True, False, False]


def test_process_that_is_lost_while_the_model_is_placed_is_a_lost_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(module: nn.Module, **options: object) -> nn.Module:
        raise RuntimeError("[gloo] Connection closed by peer")

    monkeypatch.setattr("training.engine.parallel.ddp.GradientReducer", lose)
    with pytest.raises(PeerLostError):
        ReplicatedModel(Gang(0, 2, CPU)).place(Line())


def test_share_that_is_cut_into_micro_batches_gives_the_gradients_of_the_whole_batch(bench: LoopBench) -> None:
    sizes: list[int] = []

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        if module.training:
            sizes.append(len(batch["label"]))
        return squares(module, batch)

    with recorded_steps() as whole:
        expected = bench.train()
    other = LoopBench(bench.folder / "accumulating")
    with recorded_steps() as accumulated:
        loop = other.train(loss=loss, loader=other.loader("train", micro_batch_size=5))
    assert sizes == [4, 4, 4] * 12
    assert [step["grad_norm"] for step in accumulated] == pytest.approx([step["grad_norm"] for step in whole], rel=1e-5)
    assert loop.progress.history[-1] == pytest.approx(expected.progress.history[-1], rel=1e-5)


class Replacing(ReplicatedModel):
    """Replaces the module's parameters when it is placed, as a strategy that shards them does."""

    def place(self, module: nn.Module) -> Mapping[str, nn.Parameter]:
        super().place(module)
        for layer in module.modules():
            for name, parameter in list(layer.named_parameters(recurse=False)):
                setattr(layer, name, nn.Parameter(parameter.detach().clone()))
        self._parameters = dict(module.named_parameters())
        return self._parameters


def test_optimizer_is_made_of_the_parameters_that_a_strategy_puts_in_place(bench: LoopBench) -> None:
    expected = outcome(bench.train())
    replaced = LoopBench(bench.folder / "replaced").train(strategy=Replacing(Gang(0, 1, CPU)))
    assert outcome(replaced) == expected


def test_checkpoint_is_restored_after_the_parameters_are_replaced(bench: LoopBench) -> None:
    expected = outcome(LoopBench(bench.folder / "undisturbed").train())
    first = LoopBench(bench.folder / "stopped")
    with pytest.raises(KeyboardInterrupt):
        first.train(loss=interrupted_at(7), strategy=Replacing(Gang(0, 1, CPU)), every_seconds=0)
    assert first.saved[-1]["step"] >= 4
    assert outcome(first.train(strategy=Replacing(Gang(0, 1, CPU)))) == expected


def interrupted_at(step: int) -> SumLoss:
    calls: list[int] = []

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        calls.append(1)
        if len(calls) == step:
            raise KeyboardInterrupt
        return squares(module, batch)

    return loss


class TwoPerReplica(ReplicatedModel):
    """Two processes hold the parts of one replica: the second gang member has the first one's share of each batch."""

    @property
    def data_rank(self) -> int:
        return self.gang.rank // 2

    @property
    def num_data_ranks(self) -> int:
        return 3


def test_processes_of_one_replica_draw_the_same_random_numbers(bench: LoopBench) -> None:
    def drawn(strategy: Strategy) -> list[float]:
        numbers: list[float] = []

        def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
            numbers.append(float(torch.rand(1)))
            return squares(module, batch)

        LoopBench(bench.folder / str(strategy.gang.rank)).train(rank=strategy.gang.rank, loss=loss, strategy=strategy, epochs=1)
        return numbers[:4]

    drawn_by = [drawn(TwoPerReplica(Gang(rank, 1, CPU))) for rank in (0, 1, 2)]
    assert drawn_by[0] == drawn_by[1] != drawn_by[2]


def test_torch_family_divides_batches_among_the_data_ranks_and_not_the_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[object, object]] = []
    init = Loader.__init__

    def record(self: Loader, *arguments: object, **options: object) -> None:
        made.append((options["rank"], options["world_size"]))
        init(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Loader, "__init__", record)
    monkeypatch.setattr(strategy_choice, "strategy_for", lambda gang, **_: TwoPerReplica(Gang(3, 1, CPU)))
    context = FamilyBench(tmp_path, "ranking").fit_context("ranker", epochs=1, batch_size=24, settings=SETTINGS)
    load_family("ranker").fit(context)
    context.checkpoints.close()
    assert made == [(1, 3), (1, 3)]
