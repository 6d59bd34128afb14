"""Tensor plans of families: the ranker's, one of a user's own as the guide has it, and a family that has none."""

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
from training.data.dataset.loader import Batch
from training.engine.parallel.gang import Gang
from training.errors import SpecError
from training.large.checkpoint.savers import Savers
from training.large.sharded import ShardedModel
from training.large.tensor_plan import Division, TensorPlan, checked
from training.models.base import FitResult, load_family
from training.models.ranker.module import RankerModule
from training.models.strategy_choice import strategy_for
from training.models.torch_family import TorchArchitecture, TorchFamily
from training.runtime.provenance import CHECKOUT
from training.spec.layout import Layout
from training.store import Store

SETTINGS: dict[str, Any] = {"embedding_dim": 4, "hidden": (8, 6), "dropout": 0.0, "loss": "listwise"}


def ranker(num_ids: int = 3, **settings: object) -> RankerModule:
    features: Any = [{"name": f"id{n}", "dtype": "int32", "cardinality": 7} for n in range(num_ids)]
    features = [{"name": "price", "dtype": "float32", "cardinality": 0}, *features]
    architecture: TorchArchitecture = {"features": features, "bias_features": [], "settings": {**SETTINGS, **settings}}  # type: ignore[typeddict-item]
    return RankerModule(architecture)


def test_ranker_divides_its_tables_and_pairs_of_its_layers() -> None:
    family = load_family("ranker")
    assert isinstance(family, TorchFamily)
    module = ranker(hidden=(8, 6), dropout=0.1)
    plan = family.tensor_plan(module)
    assert plan is not None
    assert {name: division.kind for name, division in checked(module, plan, 2).items()} == {
        **{f"embeddings.{n}": "column" for n in range(3)},
        "perceptron.0": "column",
        "perceptron.2": "features",
        "perceptron.3": "row",
    }
    assert checked(module, plan, 2)["embeddings.0"] == Division("column", "whole", "whole")


def test_last_layer_of_the_ranker_is_the_second_of_a_pair_where_their_number_is_even() -> None:
    family = load_family("ranker")
    assert isinstance(family, TorchFamily)
    plan = family.tensor_plan(ranker(hidden=(8, 6, 4)))
    assert plan is not None
    assert list(plan) == ["embeddings.*", "perceptron.0", "perceptron.2", "perceptron.4", "perceptron.6"]


def test_ranker_without_tables_divides_its_layers_and_has_no_plan_where_there_is_one_layer() -> None:
    family = load_family("ranker")
    assert isinstance(family, TorchFamily)
    module = ranker(num_ids=0, hidden=(8, 6))
    plan = family.tensor_plan(module)
    assert plan is not None
    assert list(checked(module, plan, 2)) == ["perceptron.0", "perceptron.2"]
    assert family.tensor_plan(ranker(num_ids=0, hidden=())) is None


def fitted(gang: Gang, folder: str, layout: Layout, **train: Any) -> FitResult:
    bench = FamilyBench(Path(folder) / f"rows-{gang.rank}-{layout.words()}", "ranking")
    context = bench.fit_context("ranker", epochs=2, batch_size=24, settings=SETTINGS, **train)
    context.checkpoints.close()
    bench.store = Store(str(Path(folder) / f"store-{layout.words()}"))
    stage = bench.context(rank=gang.rank)
    savers = None if layout.is_replicated else Savers.of(gang)
    checkpoints = bench.checkpoints(stage, savers=savers, identity={"world_size": gang.world_size, "dataset": DIGEST})
    try:
        return load_family("ranker").fit(
            replace(context, gang=gang, layout=layout, progress=stage.progress, stop=stage.stop, checkpoints=checkpoints)
        )
    finally:
        checkpoints.close()


def history_of(gang: Gang, folder: str, layout: Layout) -> list[dict[str, float]]:
    return [dict(entry) for entry in fitted(gang, folder, layout).history]


@pytest.mark.parametrize("layout", [Layout(tensor=2), Layout(data=2, tensor=2)], ids=Layout.words)
def test_ranker_learns_the_same_in_divided_layers(layout: Layout, tmp_path: Path) -> None:
    expected = history_of(Gang(0, 1, torch.device("cpu")), str(tmp_path), Layout())
    found = run_ranks(history_of, layout.world_size, tmp_path / "meet", str(tmp_path), layout)
    assert len(expected) == 2
    for member in found:
        # The training loss is that of the first data rank's rows.
        assert [entry["validation_loss"] for entry in member] == pytest.approx([entry["validation_loss"] for entry in expected], rel=1e-5)


def example() -> type[TorchFamily]:
    """Return the class of the guide."""
    text = (CHECKOUT / "docs/large-models.md").read_text(encoding="utf-8")
    (source,) = (code for code in re.findall(r"```python\n(.*?)```", text, re.S) if "def tensor_plan" in code)
    names: dict[str, Any] = {}
    exec(compile(source, "docs/large-models.md", "exec"), names)  # noqa: S102 - a page of this repository
    found = names["Sequences"]
    assert issubclass(found, TorchFamily)
    return found


def with_sequence(plan: TensorPlan) -> TensorPlan:
    """Return the plan of the guide with its changes for parts of the sequence."""
    sequence, whole = Division("row", gives="sequence"), Division("sequence", gives="whole")
    parts = dict.fromkeys(("embedding", "blocks.*.out", "blocks.*.down"), sequence)
    return {**plan, **parts, **dict.fromkeys(("blocks.*.norm", "blocks.*.second_norm", "norm"), whole)}


def losses_of_example(gang: Gang, layout: Layout, has_sequence: bool) -> list[float]:
    family = example()()

    def plan_of(module: nn.Module) -> TensorPlan:
        plan = family.tensor_plan(module)
        assert plan is not None
        return with_sequence(plan) if has_sequence else plan

    torch.manual_seed(2)
    module = family.build({"features": [], "bias_features": [], "settings": {}})
    strategy = strategy_for(gang, precision="fp32", layout=layout, tensor_plan=plan_of)
    parameters = strategy.place(module)
    ids = torch.arange(6 * 16, dtype=torch.int32).reshape(6, 16) % 11
    batch: Batch = {"features_int": ids, "features_float": torch.zeros(6, 0), "label": ids.float().mean(dim=1)}
    losses = []
    for _ in range(3):
        losses.append(float(strategy.backward([batch], family.loss, 6)))
        with torch.no_grad():
            for parameter in parameters.values():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad * 0.01)
                parameter.grad = None
    return losses


@pytest.mark.parametrize("has_sequence", [False, True])
def test_class_of_the_guide_trains_the_same_in_divided_layers(has_sequence: bool, tmp_path: Path) -> None:
    alone = losses_of_example(Gang(0, 1, torch.device("cpu")), Layout(), False)
    assert alone[2] < alone[0]
    for found in run_ranks(losses_of_example, 2, tmp_path, Layout(tensor=2), has_sequence):
        assert found == pytest.approx(alone, rel=1e-5)


class Plain(TorchFamily):
    def build(self, architecture: TorchArchitecture) -> nn.Module:
        return nn.Linear(2, 1)

    def loss(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        return (module(batch["features_float"]).squeeze(1) - batch["label"]).square().sum()


def refusal_without_plan(gang: Gang) -> tuple[str, str]:
    family = Plain()
    strategy = ShardedModel(gang, Layout(tensor=2), tensor_plan=lambda module: family._asked_tensor_plan("shop.models:Plain", module))
    try:
        strategy.place(nn.Linear(2, 1))
    except SpecError as err:
        return err.problems[0].code, err.problems[0].message
    return "", ""


def test_layout_with_divided_layers_is_refused_for_a_class_without_a_plan(tmp_path: Path) -> None:
    message = "parallel.tensor divides layers, and shop.models:Plain does not say how (its tensor_plan returns None)"
    assert run_ranks(refusal_without_plan, 2, tmp_path) == [("parallel.no_tensor_plan", message)] * 2
