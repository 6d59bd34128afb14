"""Every layout trains the same model: compared with one process that accumulates the same micro-batches, 20 steps, fp32.

Each layout is a gang of processes: what they exchange is what could differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from tests.unit.training.engine.parallel.ranks import run_ranks
from tests.unit.training.large.tiny_transformer import PLANS, Trained, alone, stages_of, train
from training.engine.parallel.gang import Gang
from training.large.replicas import minority
from training.models.strategy_choice import strategy_for
from training.spec.layout import Layout

# Three to five times of what was measured: 1.2e-7, 3.1e-7 and 2.4e-7; weights with layers that are divided 1.1e-6.
MAX_LOSS_ERROR = 5e-7
MAX_NORM_ERROR = 1e-6
"""Relative."""
MAX_WEIGHT_ERROR = 1e-6
MAX_WEIGHT_ERROR_OF_DIVIDED_LAYERS = 5e-6


@dataclass(frozen=True)
class Case:
    layout: Layout
    clips: bool = True
    micro_batches: int = 1
    rows: int = 16
    plan: str = "whole"
    schedule: Literal["gpipe", "1f1b"] = "1f1b"

    def __str__(self) -> str:
        plan = f"plan {self.plan}, " if self.layout.tensor > 1 else ""
        plan += f"{self.schedule}, " if self.layout.pipeline > 1 else ""
        clips = "with" if self.clips else "without"
        return f"{self.layout.words()}, {plan}{clips} clipping, {self.micro_batches} micro-batches, {self.rows} rows"


def trained_by(gang: Gang, case: Case) -> Trained:
    strategy = strategy_for(
        gang, precision="fp32", layout=case.layout, tensor_plan=lambda _: PLANS[case.plan], cut=stages_of, schedule=case.schedule
    )
    for_blocks = {"_min_block_bytes": 1024, "_min_alone_bytes": 1024}
    strategy.__dict__.update({name: value for name, value in for_blocks.items() if name in strategy.__dict__})
    return train(strategy, clips=case.clips, micro_batches=case.micro_batches, rows=case.rows)


def compared(case: Case, folder: Path) -> tuple[Trained, list[Trained]]:
    """Return the training of one process, and what each process of the layout has."""
    micro_batches = case.micro_batches * case.layout.num_data_ranks
    expected = alone(micro_batches=micro_batches, clips=case.clips, rows=case.rows)
    found = run_ranks(trained_by, case.layout.world_size, folder, case)
    parts = [case.layout.part(rank) for rank in range(len(found))]
    assert minority([member.part for member in found], parts) == [], "replicas must have the same bits"
    return expected, found


@pytest.mark.parametrize("case", [Case(Layout(data=2)), Case(Layout(data=2), clips=False), Case(Layout(shard=2), clips=False)], ids=str)
def test_two_processes_give_the_bits_of_one(case: Case, tmp_path: Path) -> None:
    expected, found = compared(case, tmp_path)
    assert found[0].losses == pytest.approx(expected.losses, rel=1e-6), "the same numbers, added up in another order"
    assert found[0].digest == expected.digest


PIPELINES = [
    Case(Layout(pipeline=2), micro_batches=4, schedule="gpipe"),
    Case(Layout(pipeline=2), micro_batches=4),
    Case(Layout(pipeline=2), micro_batches=4, rows=15),
    Case(Layout(pipeline=2), micro_batches=1),
    Case(Layout(data=2, pipeline=2), micro_batches=2),
    Case(Layout(data=2, pipeline=2), micro_batches=4, rows=13),
]
CLOSE = [
    Case(Layout(shard=2)),
    Case(Layout(shard=2), micro_batches=2),
    Case(Layout(shard=2), rows=15),
    Case(Layout(data=2, shard=2)),
    Case(Layout(data=2, shard=2), micro_batches=2),
    Case(Layout(shard=4)),
    Case(Layout(data=4)),
    Case(Layout(tensor=2)),
    Case(Layout(tensor=2), micro_batches=2),
    Case(Layout(tensor=2), plan="sequence"),
    Case(Layout(tensor=4), plan="sequence"),
    Case(Layout(data=2, tensor=2)),
    Case(Layout(data=2, tensor=2), plan="sequence", micro_batches=2),
    Case(Layout(shard=2, tensor=2)),
    Case(Layout(shard=2, tensor=2), plan="sequence", rows=15),
    *PIPELINES,
]


@pytest.mark.parametrize("case", CLOSE, ids=str)
def test_layout_trains_the_model_of_one_process_within_the_tolerance(case: Case, tmp_path: Path) -> None:
    expected, found = compared(case, tmp_path)
    assert_close(found[0], expected, MAX_WEIGHT_ERROR if case.layout.tensor == 1 else MAX_WEIGHT_ERROR_OF_DIVIDED_LAYERS)
    assert len({tuple(member.losses) for member in found}) == 1, "every process must know the same losses"
    assert len({tuple(member.norms) for member in found}) == 1, "every process must clip by the same norm"


@pytest.mark.parametrize("rows", [16, 15])
def test_both_schedules_of_a_pipeline_give_the_same_bits(rows: int, tmp_path: Path) -> None:
    found = [
        run_ranks(trained_by, 2, tmp_path / schedule, Case(Layout(pipeline=2), micro_batches=4, rows=rows, schedule=schedule))[0]
        for schedule in ("gpipe", "1f1b")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("rows", [1, 2])
def test_pipeline_with_micro_batches_of_no_rows_trains_the_model_of_one_process(rows: int, tmp_path: Path) -> None:
    expected, found = compared(Case(Layout(data=2, pipeline=2), micro_batches=2, rows=rows), tmp_path)
    assert found[0].losses == pytest.approx(expected.losses, rel=1e-6, abs=MAX_LOSS_ERROR)
    for name, values in found[0].weights.items():
        # With one row a gradient's norm is near 0 after some steps, and Adam divides by it.
        assert values == pytest.approx(expected.weights[name], abs=MAX_WEIGHT_ERROR_OF_DIVIDED_LAYERS, rel=0), name


def assert_close(found: Trained, expected: Trained, max_weight_error: float) -> None:
    assert found.losses == pytest.approx(expected.losses, abs=MAX_LOSS_ERROR, rel=0)
    assert found.norms == pytest.approx(expected.norms, rel=MAX_NORM_ERROR)
    assert found.weights.keys() == expected.weights.keys()
    for name, values in found.weights.items():
        assert values == pytest.approx(expected.weights[name], abs=max_weight_error, rel=0), name


def test_clipping_is_at_work_in_the_compared_trainings() -> None:
    assert max(alone(micro_batches=2).norms) > 1.0
