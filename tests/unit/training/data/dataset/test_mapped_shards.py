"""The shares of several processes: all rows once, in order, no group divided."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest

from tests.unit.training.models.family_bench import write_dataset
from training.data.dataset.mapped_shards import MappedShards
from training.data.dataset.shard_format import ShardMeta


@pytest.mark.parametrize("task", ["binary", "ranking"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 500])
def test_shares_of_all_processes_are_all_rows_in_their_order(tmp_path: Path, task: str, world_size: int) -> None:
    rows = MappedShards(tmp_path, cast(ShardMeta, write_dataset(tmp_path, task)), "train")
    assert len(rows.shard_rows) > 1
    features, label, group = rows.columns()
    shares = [rows.columns(rank, world_size) for rank in range(world_size)]
    assert np.array_equal(np.concatenate([share[0] for share in shares]), features)
    assert np.array_equal(np.concatenate([share[1] for share in shares]), label)
    if group is None:
        sizes = [len(share[1]) for share in shares]
    else:
        found = [share[2] for share in shares]
        assert np.array_equal(np.concatenate([part for part in found if part is not None]), group)
        sizes = [0 if part is None else len(np.unique(part)) for part in found]
        assert sum(sizes) == len(np.unique(group)), "no group is divided"
    assert max(sizes) - min(sizes) <= 1
