"""Trees in several processes, and rows on disk: the same model on every rank, twice, and from both kinds of matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import xgboost

from tests.unit.training.engine.parallel.ranks import run_ranks
from tests.unit.training.models import family_bench, tree_ranks
from tests.unit.training.models.family_bench import FamilyBench
from training.data.dataset.mapped_shards import MappedShards
from training.data.dataset.shard_format import ShardMeta
from training.engine.parallel.single_process import Alone
from training.models.boosted_trees import matrices
from training.models.boosted_trees.matrices import MatrixBlocks, too_large

PAGE_BYTES = 5 * 256 * 4 + 1024
TASKS = ("binary", "ranking", "multiclass", "regression")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks has trained: each task twice in memory and once from disk."""
    folder = tmp_path_factory.mktemp("ranks")
    cases = [(f"{task}-{name}", task, {"on_disk": name == "disk"}) for task in TASKS for name in ("first", "second", "disk")]
    return run_ranks(tree_ranks.train, 2, folder / "meeting", str(folder), cases)


@pytest.mark.parametrize("task", TASKS)
def test_two_ranks_have_the_same_model_twice_in_memory_and_from_disk(two_ranks: list[dict[str, Any]], task: str) -> None:
    found = [rank[f"{task}-{name}"] for rank in two_ranks for name in ("first", "second", "disk")]
    assert all(one == found[0] for one in found), "weights, losses of each round, best round; no cache is left"
    assert found[0]["cache"] == []


@pytest.mark.parametrize("task", TASKS)
def test_rows_on_disk_give_the_model_of_rows_in_memory(tmp_path: Path, task: str) -> None:
    in_memory = tree_ranks.fit(Alone(), tmp_path / "memory", task)
    assert tree_ranks.fit(Alone(), tmp_path / "disk", task, on_disk=True) == in_memory


@pytest.mark.parametrize("task", TASKS)
def test_rows_binned_by_shard_give_the_model_of_one_matrix_of_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    by_shard = tree_ranks.fit(Alone(), tmp_path / "shards", task)
    made = []

    def whole(blocks: MatrixBlocks, **_settings: Any) -> xgboost.DMatrix:
        made.append(matrices._whole(blocks._rows, 0, 1, 2))
        return made[-1]

    monkeypatch.setattr(matrices.xgboost, "QuantileDMatrix", whole)
    assert tree_ranks.fit(Alone(), tmp_path / "whole", task) == by_shard
    assert len(made) == 2


def test_log_loss_of_two_ranks_is_that_of_one_process_within_a_thousandth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num_groups = {"train": 4000, "validation": 2000}
    found = run_ranks(tree_ranks.train_larger, 2, tmp_path / "meeting", str(tmp_path / "two"), num_groups)
    monkeypatch.setattr(family_bench, "NUM_GROUPS", num_groups)
    alone = tree_ranks.fit(Alone(), tmp_path / "alone", "binary", settings=tree_ranks.ALL_ROWS)
    assert found[0] == found[1]
    for name in ("train_loss", "validation_loss"):
        assert found[0]["history"][-1][name] == pytest.approx(alone["history"][-1][name], rel=1e-3)


@pytest.mark.parametrize("on_disk", [False, True])
def test_rank_without_a_row_trains_with_the_others(tmp_path: Path, on_disk: bool) -> None:
    cases = [("empty", "ranking", {"on_disk": on_disk})]
    first, second = run_ranks(tree_ranks.train, 2, tmp_path / "meeting", str(tmp_path), cases, 1)
    assert first == second
    assert len(first["empty"]["history"]) == 12


def test_judge_of_rank_0_ends_all_ranks_after_the_same_round(tmp_path: Path) -> None:
    assert run_ranks(tree_ranks.train_with_a_judge, 2, tmp_path / "meeting", str(tmp_path), 3) == [3, 3]


def test_matrices_on_disk_are_bounded_by_their_rows_and_gone_with_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = FamilyBench(tmp_path, "binary").fit_context("boosted_trees", epochs=1)
    monkeypatch.setattr(matrices, "stage_memory_bytes", lambda: 1)
    with matrices.matrices_of(context, max_bin=256) as made:
        assert [matrix.num_row() for matrix in made.values()] == [240, 81]
        cached = [path for path in context.dataset_path.rglob("*") if path.is_file() and matrices.CACHE in path.parts[-2]]
        shards = list(tmp_path.glob("dataset/**/*.bin"))
        # Each page repeats the bounds of the bins.
        limit = sum(path.stat().st_size for path in shards) + PAGE_BYTES * len(shards)
        assert 0 < sum(path.stat().st_size for path in cached) < limit
    assert not (context.dataset_path / matrices.CACHE).exists()
    context.checkpoints.close()


def test_rows_are_on_disk_where_the_processes_of_a_node_would_take_more_than_a_stage_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = FamilyBench(tmp_path, "ranking")
    splits = [MappedShards(bench.dataset_path, cast(ShardMeta, bench.meta), split) for split in ("train", "validation")]
    rows_bytes = sum(rows.num_rows * rows.num_cells * 4 for rows in splits)
    for limit, world_size, local, expected in (
        (4 * rows_bytes, 1, "1", False),
        (4 * rows_bytes - 4, 1, "1", True),
        (4 * rows_bytes - 4, 2, "2", True),
        (4 * rows_bytes - 4, 2, "1", False),
    ):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
        monkeypatch.setattr(matrices, "stage_memory_bytes", lambda limit=limit: limit)
        assert too_large(splits, world_size) is expected


def test_share_without_rows_is_one_empty_block(tmp_path: Path) -> None:
    bench = FamilyBench(tmp_path, "ranking")
    given: list[dict[str, Any]] = []
    blocks = MatrixBlocks(MappedShards(bench.dataset_path, cast(ShardMeta, bench.meta), "validation"), 0, 1000, tmp_path / "cache")
    assert blocks.next(lambda **block: given.append(block))
    assert not blocks.next(lambda **block: given.append(block))
    assert [(block["data"].shape, len(block["label"]), len(block["qid"])) for block in given] == [((0, 5), 0, 0)]
