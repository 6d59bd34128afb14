"""A replica whose bits are not those of the others is named, and what was saved since then is not used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.unit.training.engine.loop_bench import WORK_ID
from tests.unit.training.engine.parallel.ranks import run_ranks
from tests.unit.training.large.flipped_bits import Attempt, Flip, attempt, flip_lowest_bit
from training.large.replicas import WORDS_AT_A_TIME, digest_of, minority
from training.spec.layout import Layout
from training.store import Store
from training.store.checkpoint_records import standing

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_digest_changes_with_each_single_number_and_does_not_depend_on_how_the_tensor_lies(dtype: torch.dtype) -> None:
    tensor = torch.arange(12).reshape(3, 4).to(dtype)
    digest = digest_of([tensor], CPU)
    assert digest == digest_of([tensor.clone()], CPU) == digest_of([tensor.t().contiguous().t()], CPU)
    assert 0 <= digest < 2**63
    for place in range(12):
        other = tensor.clone()
        other.view(-1)[place] = other.view(-1)[place] == 0
        assert digest_of([other], CPU) != digest


@pytest.mark.parametrize("place", [0, WORDS_AT_A_TIME - 1, WORDS_AT_A_TIME, 2 * WORDS_AT_A_TIME + 4])
def test_digest_covers_a_large_tensor_to_its_end(place: int) -> None:
    tensor = torch.zeros(2 * WORDS_AT_A_TIME + 5)
    other = tensor.clone()
    other[place] = -0.0
    assert digest_of([tensor], CPU) != digest_of([other], CPU)


def test_digest_finds_two_numbers_that_changed_places_and_takes_no_tensors() -> None:
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
    assert digest_of([one], CPU) != digest_of([two], CPU)
    assert digest_of([one, two], CPU) != digest_of([two, one], CPU)
    assert digest_of([], CPU) == 0


@pytest.mark.parametrize(
    ("digests", "parts", "named"),
    [
        ([7, 7, 7, 7], [0, 0, 0, 0], []),
        ([7, 7, 8, 7], [0, 0, 0, 0], [2]),
        ([7, 8], [0, 0], [0, 1]),
        ([7, 7, 8, 8], [0, 0, 0, 0], [0, 1, 2, 3]),
        ([7, 8, 9, 7, 7], [0, 0, 0, 0, 0], [1, 2]),
        ([7, 8, 7, 8], [0, 1, 0, 1], []),
        ([7, 8, 7, 8, 6, 8], [0, 1, 0, 1, 0, 1], [4]),
    ],
)
def test_ranks_that_differ_from_most_replicas_of_their_part_are_named(digests: list[int], parts: list[int], named: list[int]) -> None:
    assert minority(digests, parts) == named


@pytest.mark.parametrize(
    ("layout", "parts"),
    [
        (Layout(data=2), [0, 0]),
        (Layout(shard=2), [0, 1]),
        (Layout(data=2, shard=2), [0, 1, 0, 1]),
        (Layout(data=2, tensor=2), [0, 1, 0, 1]),
        (Layout(pipeline=2, data=2), [0, 0, 1, 1]),
        (Layout(pipeline=2, data=2, shard=2), [0, 1, 0, 1, 2, 3, 2, 3]),
    ],
)
def test_processes_of_different_replicas_have_the_same_part(layout: Layout, parts: list[int]) -> None:
    assert [layout.part(rank) for rank in range(layout.world_size)] == parts


def test_flip_of_a_test_changes_one_bit() -> None:
    tensor = torch.ones(3)
    flip_lowest_bit(tensor)
    assert (tensor != 1).tolist() == [False, True, False]


def run(folder: Path, layout: Layout, number: int, flip: Flip | None, every_steps: int) -> list[Attempt]:
    return run_ranks(attempt, layout.world_size, folder / f"meet-{number}", str(folder), layout, number, flip, every_steps)


def saved_steps(folder: Path) -> tuple[list[int], list[int]]:
    """Return the steps of all checkpoints, and of those that stand."""
    history = Store(str(folder / "store")).work_folder("p", "train", WORK_ID).chain().history()
    made = [entry.value["payload"]["step"] for entry in history if entry.value["kind"] == "checkpoint"]
    return made, [entry.value["payload"]["step"] for entry in standing(history, lambda entry: entry.value)]


@pytest.mark.parametrize(
    ("layout", "flip", "named"),
    [
        (Layout(data=2), Flip(rank=0, after_step=7), (0, 1)),
        (Layout(data=2), Flip(rank=1, after_step=7, of="optimizer"), (0, 1)),
        (Layout(data=3), Flip(rank=1, after_step=7), (1,)),
        (Layout(data=2, shard=2), Flip(rank=3, after_step=7), (1, 3)),
    ],
    ids=str,
)
def test_flipped_bit_is_found_within_the_interval_and_the_next_attempt_has_the_undisturbed_weights(
    tmp_path: Path, layout: Layout, flip: Flip, named: tuple[int, ...]
) -> None:
    undisturbed = run(tmp_path / "undisturbed", layout, 1, None, 3)[0]
    assert undisturbed.digest
    found = run(tmp_path / "flipped", layout, 1, flip, 3)
    assert {(one.code, one.ranks) for one in found} == {("train.replica_diverged", named)}
    for rank in named:
        assert f"rank {rank}" in found[0].message
    made, kept = saved_steps(tmp_path / "flipped")
    assert max(kept) < flip.after_step
    if layout.is_replicated:
        # Epochs have four steps: compared after 3, 4, 7.
        assert found[0].message.startswith("step 7: ")
        assert (max(made), max(kept)) == (6, 4)
    again = run(tmp_path / "flipped", layout, 2, None, 3)[0]
    assert again.first_step == max(kept)
    assert again.digest == undisturbed.digest


def test_checkpoints_with_the_flipped_bit_are_not_resumed_from(tmp_path: Path) -> None:
    layout = Layout(data=2)
    undisturbed = run(tmp_path / "undisturbed", layout, 1, None, 0)[0]
    # Compared at the end of each epoch alone; rank 0 saves after each step.
    run(tmp_path / "flipped", layout, 1, Flip(rank=0, after_step=5), 1000)
    made, kept = saved_steps(tmp_path / "flipped")
    assert {5, 6, 7} <= set(made), "they have the flipped bit"
    assert max(kept) == 4
    again = run(tmp_path / "flipped", layout, 2, None, 1000)[0]
    assert (again.first_step, again.digest) == (4, undisturbed.digest)


def test_without_a_comparison_a_flipped_bit_is_not_found_and_changes_the_model(tmp_path: Path) -> None:
    layout, flip = Layout(data=2), Flip(rank=0, after_step=5)
    undisturbed = run(tmp_path / "undisturbed", layout, 1, None, 0)[0]
    flipped = run(tmp_path / "flipped", layout, 1, flip, 0)[0]
    assert flipped.code == ""
    assert flipped.digest != undisturbed.digest


def test_without_an_earlier_checkpoint_the_next_attempt_begins_at_the_start(tmp_path: Path) -> None:
    layout = Layout(data=2)
    undisturbed = run(tmp_path / "undisturbed", layout, 1, None, 1)[0]
    run(tmp_path / "flipped", layout, 1, Flip(rank=1, after_step=1), 2)
    assert saved_steps(tmp_path / "flipped")[1] == []
    again = run(tmp_path / "flipped", layout, 2, None, 1)[0]
    assert (again.first_step, again.digest) == (0, undisturbed.digest)
