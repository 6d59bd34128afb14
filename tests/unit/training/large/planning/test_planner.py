"""The layout that is chosen: twelve pairs of a model and devices, with what an expert would take."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from tests.unit.training.large.planning.models import GPT_7B, GPT_13B, GPT_70B, GPT_125M, GPT_175B, GPT_1300M, TINY, Size, facts
from training.errors import SpecError
from training.large.planning.costs import Line, Mode, ModelSize, StepWork
from training.large.planning.devices import KINDS, parse_devices
from training.large.planning.planner import Plan, candidates, check_fits, plan
from training.spec.layout import Layout


@functools.cache
def known(size: Size, has_plans: bool = False) -> ModelSize:
    return replace(facts(size, has_plans=has_plans), stage_shares={})


def planned(size: Size, devices: str, *, mode: Mode = "none", batch_size: int = 1024, has_plans: bool = False) -> Plan:
    parsed = parse_devices(devices)
    return plan(
        known(size, has_plans),
        StepWork(
            batch_size=batch_size,
            micro_batch_size=1,
            mode=mode,
            precision="fp32" if parsed.kind.is_cpu else "bf16" if parsed.kind.has_bf16 else "fp16",
        ),
        parsed,
    )


@pytest.mark.parametrize(
    ("size", "devices", "mode", "expected"),
    [
        pytest.param(TINY, "1xT4", "none", Layout(), id="4M parameters: one device is enough"),
        pytest.param(GPT_125M, "1xV100-16GB", "none", Layout(), id="125M: 2.5 GB of state fit a small GPU"),
        pytest.param(GPT_125M, "8xA100-40GB", "none", Layout(data=8), id="125M on eight: replicas, gathering would only cost"),
        pytest.param(GPT_1300M, "8xA100-80GB", "none", Layout(data=8), id="1.3B: 23 GB of state and 3 GB of activations fit one"),
        pytest.param(GPT_1300M, "8xV100-16GB", "full", Layout(shard=8), id="1.3B: 23 GB of state do not fit 16 GB: ZeRO-3"),
        pytest.param(GPT_7B, "8xA100-80GB", "none", Layout(shard=8), id="7B: 110 GB of state over one node"),
        pytest.param(GPT_7B, "32xA100-80GB", "none", Layout(data=4, shard=8), id="7B on four nodes: gather within a node, average across"),
        pytest.param(GPT_7B, "16xA100-40GB", "full", Layout(data=2, shard=8), id="7B: 14 GB of state each leave room in 40 GB"),
        pytest.param(GPT_13B, "8xH100-80GB", "none", Layout(shard=8), id="13B: 210 GB of state over one node"),
        pytest.param(GPT_70B, "32xA100-80GB", "full", Layout(shard=32), id="70B: 1 TB of state needs all four nodes"),
        pytest.param(GPT_70B, "64xH100-80GB", "full", Layout(data=2, shard=32), id="70B on eight nodes: two replicas of four nodes"),
        pytest.param(GPT_175B, "512xH100-80GB", "full", Layout(data=4, shard=128), id="175B: 2.8 TB of state over sixteen nodes"),
    ],
)
def test_layout_is_the_one_that_an_expert_takes(size: Size, devices: str, mode: Mode, expected: Layout) -> None:
    found = planned(size, devices, mode=mode)
    assert found.fits, found.reasons()
    assert found.layout == expected, found.reasons()


@pytest.mark.parametrize(
    ("size", "devices", "mode", "batch_size", "expected"),
    [
        pytest.param(GPT_7B, "8xA100-80GB", "none", 4, Layout(data=4, tensor=2), id="7B, fewer rows than devices: two compute each row"),
        pytest.param(
            *(GPT_70B, "64xH100-80GB", "full", 32, Layout(data=2, shard=16, tensor=2)), id="70B, a batch of half as many rows as devices"
        ),
        pytest.param(GPT_7B, "8xA100-80GB", "none", 1024, Layout(shard=8), id="7B: FSDP2 where it fits, which sends less often"),
    ],
)
def test_layers_are_divided_where_a_batch_has_fewer_rows_than_there_are_devices(
    size: Size, devices: str, mode: Mode, batch_size: int, expected: Layout
) -> None:
    found = planned(size, devices, mode=mode, batch_size=batch_size, has_plans=True)
    assert found.fits, found.reasons()
    assert found.layout == expected, found.reasons()
    assert not planned(size, devices, mode=mode, batch_size=batch_size).fits or expected.tensor == 1


def test_layers_are_divided_only_as_far_as_the_plan_allows() -> None:
    devices = parse_devices("8xA100-80GB")
    six_heads = Size(width=96, depth=2, heads=6, vocabulary=2000, length=16)
    assert {layout.tensor for layout in candidates(known(six_heads, True), devices)} == {1, 2}
    assert {layout.tensor for layout in candidates(known(six_heads), devices)} == {1}


FOUR_WIDE_BLOCKS = Size(width=6144, depth=4, heads=32, vocabulary=1000, length=64)


def planned_stages(devices: str, *, micro_batch_size: int | None = 8) -> Plan:
    known_stages = replace(facts(FOUR_WIDE_BLOCKS, has_plans=True), tensor_parts=1)
    work = StepWork(batch_size=1024, micro_batch_size=micro_batch_size, mode="none", precision="fp16")
    return plan(known_stages, work, parse_devices(devices))


def test_model_is_cut_into_stages_where_a_device_cannot_gather_its_blocks() -> None:
    found = planned_stages("4xT4")
    assert found.fits, found.reasons()
    assert found.layout == Layout(pipeline=4)
    assert any("data 1 x shard 4: needs" in candidate.words() and "of it buffers" in candidate.words() for candidate in found.rejected)


def test_pipeline_without_enough_micro_batches_is_rejected() -> None:
    found = planned_stages("4xT4", micro_batch_size=None)
    assert not found.fits
    words = {candidate.layout: candidate.problem for candidate in [found.chosen, *found.rejected]}
    assert words[Layout(pipeline=4)] == "1 micro-batches for 4 stages"


def test_stages_are_combined_with_replicas_alone_and_only_in_numbers_that_the_model_is_cut_into() -> None:
    found = [layout for layout in candidates(facts(FOUR_WIDE_BLOCKS, has_plans=True), parse_devices("16xT4")) if layout.pipeline > 1]
    assert found == [Layout(data=8, pipeline=2), Layout(data=4, pipeline=4)]


def test_rejected_layouts_are_given_with_what_fills_the_memory() -> None:
    found = planned(GPT_7B, "32xA100-80GB")
    (rejected,) = found.rejected
    assert rejected.layout == Layout(data=32)
    assert "needs 124.3 GiB, of it optimizer 51.1 GiB; 71.2 GiB can be planned for" in rejected.words()
    assert found.reasons()[0].startswith(f"layout {Layout(data=4, shard=8).words()}: 27.1 GiB per process")


def test_activation_checkpointing_is_advised_where_it_spares_a_larger_layout() -> None:
    found = planned(GPT_70B, "64xH100-80GB")
    assert found.layout == Layout(shard=64)
    assert found.advice == [f"with activation_checkpointing: selective, {Layout(data=2, shard=32).words()} would fit (68.5 GiB)"]


def test_smaller_micro_batches_are_advised_where_activations_fill_the_memory() -> None:
    devices = parse_devices("1xA100-80GB")
    found = plan(known(GPT_125M), StepWork(batch_size=256, micro_batch_size=None, mode="full", precision="bf16"), devices)
    assert not found.fits
    assert any(advice.startswith("with micro_batch_size: 128, ") for advice in found.advice)
    with pytest.raises(SpecError, match="micro_batch_size: 128") as caught:
        check_fits(found)
    assert [problem.code for problem in caught.value.problems] == ["parallel.memory"]


def test_batch_of_fewer_rows_than_data_ranks_fits_no_layout_of_replicas() -> None:
    found = planned(TINY, "32xT4", batch_size=16)
    assert not found.fits
    assert all(candidate.problem == "32 shares of a batch of 16 rows" for candidate in [found.chosen, *found.rejected])


def test_choice_is_the_same_for_the_same_devices() -> None:
    assert planned(GPT_13B, "32xA100-40GB").reasons() == planned(GPT_13B, "32xA100-40GB").reasons()


def test_replicas_fill_a_node_before_they_span_nodes() -> None:
    devices = replace(parse_devices("12xA100-80GB", per_node=4), kind=KINDS["A100-80GB"])
    assert list(candidates(known(TINY), devices))[:3] == [Layout(data=12), Layout(data=3, shard=4), Layout(shard=12)]


def test_growth_with_the_rows_of_a_micro_batch_is_a_line() -> None:
    assert Line(fixed=10, per_row=2).at(5) == 20
    kept = known(GPT_125M).activations
    assert kept["full"].per_row < kept["selective"].per_row < kept["none"].per_row
