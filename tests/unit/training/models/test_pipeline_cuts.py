"""Families that are cut into stages: the ranker, one of a user's own as the guide has it, and a family that is not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.training.engine.loop_bench import DIGEST
from tests.unit.training.engine.parallel.ranks import run_ranks
from tests.unit.training.models.family_bench import FamilyBench
from training.data.dataset.loader import Batch, cut
from training.engine.parallel.gang import Gang
from training.errors import SpecError
from training.large.checkpoint.savers import Savers
from training.large.pipeline import PipelinedModel
from training.large.pipeline_cut import names_of_stages
from training.models.base import load_family
from training.models.ranker.module import RankerModule
from training.models.strategy_choice import strategy_for
from training.models.torch_family import TorchFamily
from training.runtime.provenance import CHECKOUT
from training.spec.layout import Layout
from training.store import Store

SETTINGS: dict[str, Any] = {"embedding_dim": 4, "hidden": (8, 6), "dropout": 0.0, "loss": "listwise"}
ALONE = Gang(0, 1, torch.device("cpu"))


def ranker_of(num_stages: int) -> tuple[nn.Module, list[nn.Module] | None]:
    family = load_family("ranker")
    assert isinstance(family, TorchFamily)
    features: Any = [{"name": f"id{n}", "dtype": "int32", "cardinality": 7} for n in range(3)]
    module = RankerModule({"features": features, "bias_features": [], "settings": SETTINGS})
    stages = family.pipeline_stages(module, num_stages)
    return module, None if stages is None else list(stages)


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_ranker_is_cut_into_its_tables_and_parts_of_its_perceptron(num_stages: int) -> None:
    module, stages = ranker_of(num_stages)
    assert stages is not None
    assert all(names_of_stages(module, stages, num_stages))
    ids = torch.arange(15, dtype=torch.int32).reshape(5, 3) % 7
    batch: Batch = {"features_float": torch.zeros(5, 0), "features_int": ids}
    states: Any = batch
    for stage in stages:
        states = stage(states)
    assert states.tolist() == pytest.approx(module(batch).tolist(), abs=1e-6)


def test_ranker_has_no_more_stages_than_layers_and_tables() -> None:
    assert ranker_of(5)[1] is None


def history_of(gang: Gang, folder: str, layout: Layout) -> tuple[list[dict[str, float]], dict[str, list[int]]]:
    """Return what a training tells, and what its weights file holds."""
    bench = FamilyBench(Path(folder) / f"rows-{gang.rank}-{layout.words()}", "ranking")
    context = bench.fit_context("ranker", epochs=2, batch_size=24, micro_batch_size=4, settings=SETTINGS)
    context.checkpoints.close()
    bench.store = Store(str(Path(folder) / f"store-{layout.words()}"))
    stage = bench.context(rank=gang.rank)
    savers = None if layout.is_replicated else Savers.of(gang)
    checkpoints = bench.checkpoints(stage, savers=savers, identity={"world_size": gang.world_size, "dataset": DIGEST})
    try:
        fitted = load_family("ranker").fit(
            replace(context, gang=gang, layout=layout, progress=stage.progress, stop=stage.stop, checkpoints=checkpoints)
        )
    finally:
        checkpoints.close()
    from safetensors.torch import load

    return [dict(entry) for entry in fitted.history], {name: list(tensor.shape) for name, tensor in load(fitted.weights).items()}


@pytest.mark.parametrize("layout", [Layout(pipeline=2), Layout(pipeline=4), Layout(data=2, pipeline=2)], ids=Layout.words)
def test_ranker_learns_the_same_in_stages_from_groups_of_different_sizes(layout: Layout, tmp_path: Path) -> None:
    expected, weights = history_of(ALONE, str(tmp_path), Layout())
    found = run_ranks(history_of, layout.world_size, tmp_path / "meet", str(tmp_path), layout)
    assert len(expected) == 2
    assert found[0][1] == weights
    for member, _ in found:
        # The training loss is that of the first data rank's rows.
        assert [entry["validation_loss"] for entry in member] == pytest.approx([entry["validation_loss"] for entry in expected], rel=1e-5)


def example() -> type[TorchFamily]:
    """Return the class of the guide with its method of another block."""
    text = (CHECKOUT / "docs/large-models.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    names: dict[str, Any] = {}
    for word in ("def tensor_plan", "def pipeline_stages"):
        (source,) = (code for code in blocks if word in code)
        exec(compile(source, "docs/large-models.md", "exec"), names)  # noqa: S102 - a page of this repository
    found = names["StagedSequences"]
    assert issubclass(found, TorchFamily)
    return found


def losses_of_example(gang: Gang, layout: Layout) -> list[float]:
    family = example()()
    torch.manual_seed(2)
    module = family.build({"features": [], "bias_features": [], "settings": {}})
    strategy = strategy_for(
        gang, precision="fp32", layout=layout, cut=lambda module, number: family._asked_stages("shop.models:S", module, number)
    )
    parameters = strategy.place(module)
    ids = torch.arange(6 * 16, dtype=torch.int32).reshape(6, 16) % 11
    batch: Batch = {"features_int": ids, "features_float": torch.zeros(6, 0), "label": ids.float().mean(dim=1)}
    losses = []
    for _ in range(3):
        losses.append(float(strategy.backward(cut(batch, 3), family.loss, 6)))
        with torch.no_grad():
            for parameter in parameters.values():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad * 0.01)
                parameter.grad = None
    return losses


def test_class_of_the_guide_trains_the_same_in_stages(tmp_path: Path) -> None:
    alone = losses_of_example(ALONE, Layout())
    assert alone[2] < alone[0]
    for found in run_ranks(losses_of_example, 2, tmp_path, Layout(pipeline=2)):
        assert found == pytest.approx(alone, rel=1e-5)


def refusal_without_cut(gang: Gang) -> tuple[str, str]:
    family = load_family("ranker")
    assert isinstance(family, TorchFamily)
    strategy = PipelinedModel(
        gang, Layout(pipeline=2), cut=lambda module, number: TorchFamily._asked_stages(Uncut(), "shop.models:Uncut", module, number)
    )
    try:
        strategy.place(nn.Linear(2, 1))
    except SpecError as err:
        return err.problems[0].code, err.problems[0].message
    return "", ""


class Uncut(TorchFamily):
    def build(self, architecture: object) -> nn.Module:
        return nn.Linear(2, 1)

    def loss(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        return (module(batch["features_float"]).squeeze(1) - batch["label"]).square().sum()


def test_pipeline_is_refused_for_a_class_that_is_not_cut(tmp_path: Path) -> None:
    message = "shop.models:Uncut is not cut into 2 stages (its pipeline_stages returns None)"
    assert run_ranks(refusal_without_cut, 2, tmp_path) == [("parallel.no_pipeline_cut", message)] * 2
