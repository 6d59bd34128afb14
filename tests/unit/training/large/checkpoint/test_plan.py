"""What the ranks have of each tensor makes up the whole of it, or nothing is written."""

from __future__ import annotations

import pytest

from training.errors import DataError
from training.large.checkpoint.plan import LocalChunk, ShardListing, plan_for


def rows(first: int, number: int, *, dtype: str = "float32", shape: tuple[int, ...] = (4, 2)) -> ShardListing:
    """Return what a rank has: some rows of one tensor."""
    return ShardListing((LocalChunk("weight", dtype, shape, (first, 0), (number, shape[1])),))


def test_ranks_that_have_half_of_a_tensor_each_write_their_own() -> None:
    plan = plan_for([rows(0, 2), rows(2, 2)])
    assert [list(numbers) for numbers in plan.assigned] == [[0], [0]]
    assert [chunk["offsets"] for chunk in plan.entries["weight"]["chunks"]] == [[0, 0], [2, 0]]


def test_equal_parts_of_two_ranks_are_written_once() -> None:
    plan = plan_for([rows(0, 4), rows(0, 4)])
    assert sorted(len(numbers) for numbers in plan.assigned) == [0, 1]


@pytest.mark.parametrize(
    ("listings", "words"),
    [
        ([rows(0, 2), rows(3, 1)], "the ranks' chunks do not make up whole tensors"),
        ([rows(0, 3), rows(2, 2)], "the ranks' chunks do not make up whole tensors"),
        ([rows(0, 2), rows(2, 2, dtype="float64")], "rank 1 has tensor weight as float64 [4, 2], an earlier rank differs"),
        ([rows(0, 2), rows(2, 2, shape=(5, 2))], "rank 1 has tensor weight as float32 [5, 2], an earlier rank differs"),
        ([rows(0, 2), rows(0, 3)], "rank 1 has tensor weight as float32 [4, 2], an earlier rank differs"),
    ],
    ids=["gap", "overlap", "dtype", "shape", "sizes"],
)
def test_parts_that_do_not_make_up_a_tensor_are_refused(listings: list[ShardListing], words: str) -> None:
    with pytest.raises(DataError) as caught:
        plan_for(listings)
    assert caught.value.code == "checkpoint.unplanned"
    assert words in caught.value.message
