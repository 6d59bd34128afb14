"""The loader: one order for any number of ranks, from any step on, every row once an epoch."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from tests.shard_files import write_shards
from training.data.dataset.loader import Batch, GlobalOrder, Loader, ShardSet, cut
from training.data.dataset.shard_writer import describe_layout
from training.data.features.transforms import LayoutEntry, Matrix
from training.errors import DataError
from training.runtime.provenance import CHECKOUT

DIGEST = "ab" * 32
LAYOUT = (LayoutEntry(name="half", dtype="float32", cardinality=0), LayoutEntry(name="row", dtype="int32", cardinality=1000))


def make(folder: Path, num_rows: int, group_sizes: list[int] | None = None, shard_rows: int = 40) -> tuple[Path, dict[str, Any]]:
    cells = np.empty((num_rows, 2), dtype=np.int32)
    cells[:, 0] = (np.arange(num_rows, dtype=np.float32) / 2).view(np.int32)
    cells[:, 1] = np.arange(num_rows)
    matrix = Matrix(cells=cells, layout=LAYOUT)
    groups = None if group_sizes is None else np.repeat(np.arange(len(group_sizes), dtype=np.int32), group_sizes)
    layout = describe_layout(matrix.layout, has_group=groups is not None)
    label = (np.arange(num_rows) % 2).astype(np.float32)
    shard_bytes = shard_rows * layout["row_bytes"]
    written = write_shards(folder, "train", matrix, label, groups, np.arange(num_rows), shard_bytes=shard_bytes)
    shards = {"train": [rows for _name, _path, rows in written]}
    return folder, {"layout": layout, "group": None if groups is None else "search", "shards": shards}


def loader(folder: Path, meta: dict[str, Any], **options: Any) -> Loader:
    return Loader(ShardSet(folder, meta, "train"), **{"dataset_digest": DIGEST, "seed": 1, "batch_size": 16, **options})


def rows_of(batches: list[Batch]) -> list[list[int]]:
    return [batch["features_int"][:, 0].tolist() for batch in batches]


def flat(parts: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(parts))


@pytest.fixture
def plain(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    return make(tmp_path, 150)


@pytest.fixture
def grouped(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    sizes = [1 + n % 5 for n in range(50)]
    return make(tmp_path, sum(sizes), sizes)


@pytest.mark.parametrize("kind", ["plain", "grouped"])
def test_every_row_comes_once_an_epoch_and_epochs_differ(kind: str, request: pytest.FixtureRequest) -> None:
    folder, meta = request.getfixturevalue(kind)
    load = loader(folder, meta)
    assert len(meta["shards"]["train"]) == 4
    first, second = (flat(rows_of(list(load.batches(epoch)))) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(150))
    assert first != second != sorted(second)


@pytest.mark.parametrize("kind", ["plain", "grouped"])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_order_is_the_same_for_any_number_of_ranks(kind: str, world_size: int, request: pytest.FixtureRequest) -> None:
    folder, meta = request.getfixturevalue(kind)
    alone = rows_of(list(loader(folder, meta).batches(3)))
    ranks = [rows_of(list(loader(folder, meta, rank=rank, world_size=world_size).batches(3))) for rank in range(world_size)]
    assert [flat(shares) for shares in zip(*ranks, strict=True)] == alone


@pytest.mark.parametrize("kind", ["plain", "grouped"])
@pytest.mark.parametrize("start", [0, 1, 5, 9, 10])
def test_starting_at_a_step_gives_the_tail(kind: str, start: int, request: pytest.FixtureRequest) -> None:
    folder, meta = request.getfixturevalue(kind)
    whole = rows_of(list(loader(folder, meta).batches(2)))
    assert rows_of(list(loader(folder, meta).batches(2, start_step=start))) == whole[start:]


def test_order_depends_on_dataset_seed_and_epoch_alone(plain: tuple[Path, dict[str, Any]]) -> None:
    def order(**changes: Any) -> list[list[int]]:
        return rows_of(list(loader(*plain, **changes).batches(0)))

    assert order() == order()
    assert order(seed=2) != order()
    assert order(dataset_digest="cd" * 32) != order()


def test_unshuffled_order_is_as_stored(plain: tuple[Path, dict[str, Any]]) -> None:
    load = loader(*plain, shuffle=False)
    assert flat(rows_of(list(load.batches(0)))) == flat(rows_of(list(load.batches(7)))) == list(range(150))


def test_batches_hold_what_the_shards_say(plain: tuple[Path, dict[str, Any]]) -> None:
    batch = next(loader(*plain).batches(0))
    assert {name: tensor.dtype for name, tensor in batch.items()} == {
        "features_float": torch.float32,
        "features_int": torch.int32,
        "label": torch.float32,
    }
    row = batch["features_int"][:, 0]
    assert torch.equal(batch["features_float"][:, 0], row.float() / 2)
    assert torch.equal(batch["label"], (row % 2).float())


def test_whole_labels_are_the_stored_ones_and_the_center(plain: tuple[Path, dict[str, Any]]) -> None:
    folder, meta = plain
    meta["label_center"] = 1e6
    order = [(0, np.arange(3))]
    assert ShardSet(folder, meta, "train").gather(order)["label"].tolist() == [0.0, 1.0, 0.0]
    assert ShardSet(folder, meta, "train", whole_labels=True).gather(order)["label"].tolist() == [1e6, 1e6 + 1, 1e6]


def test_groups_stay_whole_and_together(grouped: tuple[Path, dict[str, Any]]) -> None:
    seen: list[int] = []
    for batch in loader(*grouped).batches(0):
        group, row = batch["group"], batch["features_int"][:, 0]
        starts = torch.cat([torch.tensor([True]), group[1:] != group[:-1]])
        seen += group[starts].tolist()
        # Inside a group rows keep their order, so a group in one piece counts up by one.
        assert (row[1:] - row[:-1])[~starts[1:]].eq(1).all()
    assert sorted(seen) == list(range(50))


def test_batch_size_counts_rows_and_a_batch_of_groups_has_about_as_many(grouped: tuple[Path, dict[str, Any]]) -> None:
    load = loader(*grouped, batch_size=30)
    assert load.units_per_batch == 10
    assert load.steps_per_epoch == 5
    assert loader(*grouped, batch_size=1).units_per_batch == 1


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        (33, [16, 9, 8]),
        (39, [16, 12, 11]),
        (40, [16, 16, 8]),
        (48, [16, 16, 16]),
        (17, [9, 8]),
        (3, [3]),
    ],
)
def test_last_two_batches_are_divided_evenly_where_the_last_one_had_less_than_half(tmp_path: Path, rows: int, sizes: list[int]) -> None:
    folder, meta = make(tmp_path, rows)
    load = loader(folder, meta)
    assert [len(batch["label"]) for batch in load.batches(0)] == sizes
    assert [load.num_global_units(step) for step in range(load.steps_per_epoch + 1)] == [*sizes, 0]


@pytest.mark.parametrize("kind", ["plain", "grouped"])
def test_every_number_of_units_makes_batches_of_half_the_size_to_the_full_size(kind: str, tmp_path: Path) -> None:
    for units in range(1, 60):
        folder, meta = make(tmp_path / f"{units}", 2 * units, [2] * units if kind == "grouped" else None, shard_rows=1000)
        load = loader(folder, meta, batch_size=14)
        sizes = [load.num_global_units(step) for step in range(load.steps_per_epoch)]
        assert sum(sizes) == load.num_units
        assert load.steps_per_epoch == -(-load.num_units // load.units_per_batch)
        assert max(sizes) <= load.units_per_batch
        assert len(sizes) == 1 or min(sizes) * 2 >= load.units_per_batch


def test_a_share_may_be_without_rows(tmp_path: Path) -> None:
    folder, meta = make(tmp_path, 3)
    ranks = [list(loader(folder, meta, batch_size=1, rank=rank, world_size=2).batches(0)) for rank in range(2)]
    assert [[len(batch["label"]) for batch in shares] for shares in ranks] == [[0, 0, 0], [1, 1, 1]]
    assert ranks[0][-1]["features_float"].shape == (0, 1)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("micro", [None, 4, 5])
def test_four_units_in_each_part_leave_two_in_a_part_of_a_short_batch(tmp_path: Path, world_size: int, micro: int | None) -> None:
    for rows in range(4 * world_size, 60):
        folder, meta = make(tmp_path / f"{rows}", rows, shard_rows=1000)
        for rank in range(world_size):
            load = loader(folder, meta, batch_size=5 * world_size + 1, micro_batch_size=micro, rank=rank, world_size=world_size)
            assert load.units_per_part >= 4
            for step, batch in enumerate(load.batches(0)):
                assert min(len(part["label"]) for part in cut(batch, load.num_micro_batches(step))) >= 2


def test_order_touches_only_the_shards_of_the_positions_requested() -> None:
    order = GlobalOrder(dataset_digest=DIGEST, seed=1, epoch=0, shard_units=[10, 20, 30])
    pieces = order.pieces(0, 60)
    assert sorted(shard for shard, _units in pieces) == [0, 1, 2]
    assert [sorted(units.tolist()) for _shard, units in sorted(pieces, key=lambda piece: piece[0])] == [
        list(range(10)),
        list(range(20)),
        list(range(30)),
    ]
    ((shard, units),) = order.pieces(59, 60)
    assert shard == pieces[-1][0]
    assert units.tolist() == pieces[-1][1][-1:].tolist()
    assert order.pieces(60, 60) == []


def test_shard_of_another_length_is_refused(plain: tuple[Path, dict[str, Any]]) -> None:
    folder, meta = plain
    path = folder / "shards/train-00000.bin"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"shard\.size"):
        ShardSet(folder, meta, "train")


def test_writing_to_a_batch_does_not_reach_the_shard(plain: tuple[Path, dict[str, Any]]) -> None:
    before = (plain[0] / "shards/train-00000.bin").read_bytes()
    ShardSet(*plain, "train").cells[0].fill(9)
    for batch in loader(*plain).batches(0):
        batch["label"].fill_(9)
    assert (plain[0] / "shards/train-00000.bin").read_bytes() == before
    assert 9 not in torch.cat([batch["label"] for batch in loader(*plain).batches(0)])


def test_leaving_early_ends_the_thread(plain: tuple[Path, dict[str, Any]]) -> None:
    batches = loader(*plain, batch_size=1).batches(0)
    next(batches)
    assert any(thread.name.startswith("loader") for thread in threading.enumerate())
    batches.close()  # type: ignore[attr-defined]  # an iterator to its users, a generator in fact
    assert not any(thread.name.startswith("loader") for thread in threading.enumerate())


def test_fault_in_the_thread_reaches_the_caller(plain: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    load = loader(*plain)
    monkeypatch.setattr(load._shards, "gather", lambda pieces: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(load.batches(0))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_epochs(tmp_path: Path) -> None:
    folder, meta = make(tmp_path, 200_000, shard_rows=100_000)
    load = loader(folder, meta, batch_size=4096)

    def run(epoch: int) -> int:
        for _batch in load.batches(epoch):
            continue
        gc.collect()
        return int(psutil.Process().memory_info().rss)

    settled = max(run(epoch) for epoch in range(5))
    for epoch in range(5, 20):
        run(epoch)
    # Keeping the batches would cost some 40 MB by now; other tests of this process may cost a few.
    assert run(20) - settled < 24 << 20


@pytest.mark.parametrize("num_parts", [1, 2, 3, 7, 20])
def test_cut_batch_has_all_rows_in_order(plain: tuple[Path, dict[str, Any]], num_parts: int) -> None:
    batch = next(iter(loader(*plain).batches(0)))
    parts = cut(batch, num_parts)
    sizes = [len(part["label"]) for part in parts]
    assert len(parts) == num_parts
    assert max(sizes) - min(sizes) <= 1
    assert flat(rows_of(parts)) == rows_of([batch])[0]


def test_cut_batch_keeps_the_rows_of_a_group_together(grouped: tuple[Path, dict[str, Any]]) -> None:
    batch = next(iter(loader(*grouped).batches(0)))
    parts = cut(batch, 3)
    groups = [set(part["group"].tolist()) for part in parts]
    assert sum(len(found) for found in groups) == len(set(batch["group"].tolist()))
    assert flat(rows_of(parts)) == rows_of([batch])[0]
    assert all(len(part["label"]) for part in parts)


def test_parts_of_a_batch_without_rows_are_without_rows() -> None:
    empty = {"label": torch.empty(0), "group": torch.empty(0, dtype=torch.int32)}
    assert [len(part["label"]) for part in cut(empty, 2)] == [0, 0]


def test_every_rank_cuts_its_share_into_as_many_micro_batches(plain: tuple[Path, dict[str, Any]]) -> None:
    ranks = [loader(*plain, batch_size=31, micro_batch_size=4, rank=rank, world_size=2) for rank in range(2)]
    assert [[member.num_micro_batches(step) for step in range(member.steps_per_epoch)] for member in ranks] == [[4, 4, 4, 4, 4]] * 2
    shares = [next(iter(member.batches(0))) for member in ranks]
    assert [[len(part["label"]) for part in cut(share, 4)] for share in shares] == [[3, 4, 4, 4], [4, 4, 4, 4]]


def test_share_is_one_micro_batch_without_a_size(plain: tuple[Path, dict[str, Any]]) -> None:
    member = loader(*plain)
    assert {member.num_micro_batches(step) for step in range(member.steps_per_epoch)} == {1}


@pytest.mark.slow
def test_a_loop_over_shards_imports_no_library_of_tables() -> None:
    # A process of its own: the one of the tests has imported pandas.
    code = "import sys, training.engine.loop; print(sorted({'duckdb', 'pandas', 'pyarrow'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
