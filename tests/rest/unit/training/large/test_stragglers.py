"""A rank that works longer than the others is named with its node and step, and nothing else is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.unit.training.engine.loop_bench import RecordingTracker
from tests.unit.training.engine.parallel.ranks import run_ranks
from tests.unit.training.large.slow_ranks import NUM_STEPS, Seen, Slow, loaded_cores, trained
from training.large.local_step_time import UNKNOWN, Measured
from training.large.stragglers import (
    LONG_WINDOW_SECONDS,
    LongWindow,
    StepComparison,
    Straggler,
    StragglerCheck,
    as_computed,
    ratios,
    with_waits_of_nodes,
)
from training.spec.layout import Layout

RATIO = 1.5
LATEST_STEP = 50


def run(folder: Path, layout: Layout, slow: Slow | None, ratio: float | None = RATIO, every_steps: int | None = None) -> list[Seen]:
    return run_ranks(trained, layout.world_size, folder / "meeting", str(folder), layout, slow, ratio, every_steps)


@pytest.mark.parametrize(
    ("layout", "slow"),
    [
        (Layout(data=2), Slow(1)),
        (Layout(data=2), Slow(0, "sleep")),
        (Layout(data=3), Slow(0)),
        (Layout(shard=2), Slow(0)),
        (Layout(shard=2), Slow(1, "data")),
        (Layout(tensor=2), Slow(1)),
        (Layout(data=2, pipeline=2), Slow(1)),
        (Layout(data=2, pipeline=2), Slow(2)),
    ],
    ids=str,
)
def test_slow_rank_is_named_within_50_steps(tmp_path: Path, layout: Layout, slow: Slow) -> None:
    rank = slow.rank
    found = run(tmp_path, layout, slow)
    assert {tuple(seen.named) for seen in found} == {(rank,)}, "on all ranks"
    step, ratio = found[0].named[rank]
    assert step <= LATEST_STEP
    assert ratio >= RATIO
    assert found[0].scalars["stragglers"] == f"rank {rank} (node node-{rank}): {ratio:.1f} times, step {step}"
    assert (step, {"straggler_rank": float(rank), "straggler_ratio": ratio}) in found[0].logged
    (noted,) = found[0].noted
    assert (noted["rank"], noted["node"], noted["step"]) == (rank, f"node-{rank}", step)
    assert noted["words"].startswith(f"rank {rank} (node node-{rank}) is a straggler: its own part of a step takes ")
    assert ("s of it waiting for data" in noted["words"]) == (slow.how == "data")


@pytest.mark.parametrize("is_loaded", [False, True], ids=["idle", "loaded"])
@pytest.mark.parametrize("layout", [Layout(data=2), Layout(data=3), Layout(shard=2), Layout(data=2, pipeline=2)], ids=str)
def test_undisturbed_training_names_nobody_also_where_other_processes_use_the_cores(
    tmp_path: Path, layout: Layout, is_loaded: bool
) -> None:
    with loaded_cores() if is_loaded else nullcontext():
        found = run(tmp_path, layout, None)
    assert [seen.named for seen in found] == [{}] * layout.world_size
    assert found[0].scalars == {}
    assert [metrics["slowest_rank_ratio"] for _, metrics in found[0].logged], "it was compared"


@pytest.mark.parametrize("layout", [Layout(data=2), Layout(shard=2)], ids=str)
def test_training_that_saves_after_each_step_names_nobody(tmp_path: Path, layout: Layout) -> None:
    assert [seen.named for seen in run(tmp_path, layout, None, every_steps=1)] == [{}] * 2


@pytest.mark.parametrize(("layout", "ratio"), [(Layout(data=2), None), (Layout(pipeline=2), RATIO)], ids=["no ratio", "no replica"])
def test_nothing_is_compared_where_it_is_off_or_a_stage_has_no_replica(tmp_path: Path, layout: Layout, ratio: float | None) -> None:
    found = run(tmp_path, layout, Slow(1), ratio)
    assert [seen.named for seen in found] == [{}] * 2
    assert found[0].logged == []


# --- The rule, without processes


def table(*own: float, step: float = 1.0) -> list[Measured]:
    """Return measurements that say nothing but how long each process computes."""
    return [UNKNOWN if math.isnan(one) else Measured(step, one, 0.0, 0.0) for one in own]


def named_after(windows: Sequence[Sequence[float]], stages: Sequence[int] = (), step: float = 1.0) -> list[list[int]]:
    """Return who is named after each window."""
    comparison = StepComparison(stages or [0] * len(windows[0]), RATIO)
    return [[rank for rank, _, _ in comparison.add(table(*own, step=step))] for own in windows]


def test_rank_is_named_after_three_slow_windows_in_a_row() -> None:
    assert named_after([(1, 2)] * 4) == [[], [], [1], [1]]
    assert named_after([(1, 2), (1, 2), (1, 1), (1, 2), (1, 2)]) == [[]] * 5


def test_window_without_a_measurement_does_not_end_a_row() -> None:
    assert named_after([(1, 2), (1, 2), (1, math.nan), (1, 2)]) == [[], [], [], [1]]


def test_rank_below_the_ratio_is_not_named() -> None:
    assert named_after([(1, 1.49, 1)] * 4) == [[]] * 4
    assert named_after([(1, 1.5, 1)] * 3)[-1] == [1]


def test_slow_rank_that_costs_less_than_a_tenth_of_a_step_is_not_named() -> None:
    assert named_after([(0.01, 0.09)] * 4) == [[]] * 4
    assert named_after([(0.01, 0.12)] * 3)[-1] == [1]


def test_stages_of_a_pipeline_are_compared_with_their_replicas_alone() -> None:
    assert named_after([(1, 1, 5, 5)] * 4, stages=[0, 0, 1, 1]) == [[]] * 4
    assert named_after([(1, 1, 5, 9)] * 3, stages=[0, 0, 1, 1])[-1] == [3]


def test_ratio_is_to_the_median_of_the_others() -> None:
    assert ratios([1, 2, 3, 8], [0] * 4) == {0: (1 / 3, 3), 1: (2 / 3, 3), 2: (1.5, 2), 3: (4, 2)}
    assert ratios([1, math.nan], [0, 0]) == {}


def test_probe_of_a_gpu_divides_the_time_that_the_slowest_one_computes() -> None:
    measured = [Measured(1.0, 0.002, 0.1, 0.0), Measured(1.0, 0.004, 0.2, 0.0), UNKNOWN]
    found = as_computed(measured)
    assert [one.computing for one in found[:2]] == pytest.approx([0.4, 0.8])
    assert math.isnan(found[2].own)
    assert as_computed([UNKNOWN])[0] is UNKNOWN


def test_wait_for_a_core_is_that_of_the_node_and_counts_between_nodes_alone() -> None:
    measured = [Measured(1.0, 0.1, 0.0, ready) for ready in (0.1, 0.3, 0.8)]
    assert [one.ready for one in with_waits_of_nodes(measured, ["a", "a", "b"])] == pytest.approx([0.2, 0.2, 0.8])
    assert [one.ready for one in with_waits_of_nodes(measured, ["a", "a", "a"])] == [0.0] * 3


def test_long_window_is_the_mean_of_its_steps_once_it_is_long_enough() -> None:
    window = LongWindow()
    short, rest = LONG_WINDOW_SECONDS / 4, LONG_WINDOW_SECONDS * 3 / 4
    assert window.add(table(1.0, 2.0, step=short), 1) is None
    assert window.add([*table(1.0), UNKNOWN], 1000) is None, "one rank is not known"
    assert window.add(table(1.0, 4.0, step=rest / 3), 3) == [Measured(LONG_WINDOW_SECONDS / 4, 1.0, 0.0, 0.0), Measured(2.5, 3.5, 0.0, 0.0)]
    assert window.add(table(1.0, 2.0, step=short), 1) is None, "the next one begins"


class Measurements:
    """A gang of two whose processes always measure the same; steps of a second."""

    world_size, is_first, device = 2, True, torch.device("cpu")

    def __init__(self, nodes: Sequence[str], *measured: Measured) -> None:
        self.nodes = nodes
        self.measured = measured

    def gather_row(self, *_own: float) -> list[list[float]]:
        return [list(one) for one in self.measured]

    def node_of(self, rank: int) -> str:
        return self.nodes[rank]

    def place_of(self, rank: int) -> str:
        return f"rank {rank} (node {self.nodes[rank]})"


def found_by(gang: Measurements, num_steps: int) -> tuple[list[Straggler], list[tuple[int, float]]]:
    """Return the stragglers, and the step and ratio of each comparison."""
    strategy: Any = SimpleNamespace(gang=gang, stage_number=lambda rank: 0, is_sharded=False)
    checkpoints: Any = SimpleNamespace(is_saving=False)
    tracker = RecordingTracker()
    noted: list[int] = []
    check = StragglerCheck(strategy, ratio=RATIO, checkpoints=checkpoints, tracker=tracker, note=lambda rank, _: noted.append(rank))
    for step in range(1, num_steps + 1):
        with check.step():
            pass
        check.between_steps(step, dict, is_kept=False)
        check.between_steps(step, dict, is_kept=True)
    check.close()
    found = list(check.named.values())
    assert noted == [straggler.rank for straggler in found], "each once"
    return found, [(step, metrics["slowest_rank_ratio"]) for step, metrics in tracker.logged if "slowest_rank_ratio" in metrics]


FAST, SLOW = Measured(1.0, 0.2, 0.0, 0.0), Measured(1.0, 0.3, 0.1, 0.0)


def test_straggler_is_named_once_after_the_first_window_and_three_more() -> None:
    found, compared = found_by(Measurements(["a", "b"], FAST, SLOW), 100)
    assert [(one.rank, one.node, one.step) for one in found] == [(1, "b", 40)]
    assert found[0].words() == (
        "rank 1 (node b) is a straggler: its own part of a step takes 0.4 s, 0.1 s of it waiting for data, "
        "2.0 times that of the others (0.2 s)"
    )
    assert [step for step, _ in compared] == list(range(20, 101, 10)), "every ten steps, but for the first ten"


def test_nobody_is_named_where_all_are_alike() -> None:
    found, compared = found_by(Measurements(["a", "b"], FAST, FAST), 100)
    assert found == []
    assert {ratio for _, ratio in compared} == {1.0}


@pytest.mark.parametrize(("nodes", "named"), [(["a", "a"], []), (["a", "b"], [1])], ids=["one node", "two nodes"])
def test_wait_for_a_core_makes_a_straggler_between_nodes_alone(nodes: list[str], named: list[int]) -> None:
    found, compared = found_by(Measurements(nodes, FAST, FAST._replace(ready=0.4)), 100)
    assert [one.rank for one in found] == named
    assert {ratio for _, ratio in compared} == {1.0}, "it is no part of the short windows"
    if found:
        assert "0.4 s of it waiting for a core" in found[0].words()


def test_windows_of_short_steps_have_more_of_them() -> None:
    short = [one._replace(step=0.005) for one in (FAST, FAST)]
    _, compared = found_by(Measurements(["a", "b"], *short), 120)
    assert [step for step, _ in compared] == [60, 110], "0.25 s each"


def test_tests_train_long_enough_to_name_a_rank() -> None:
    assert NUM_STEPS > LATEST_STEP
