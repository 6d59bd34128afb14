"""What readers of shards need to know of them; `training.data.dataset.shard_writer` writes them.

A row is the features in the order of the layout (floats, then ids), then `label` (float32: its difference from `label_center`),
then, where rows have weights, `weight` (float32), then, where there is a group, `group` (int32). A shard file is nothing but its rows,
little-endian. A training that reads shards imports neither DuckDB nor pandas, which only `prepare` needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NotRequired, TypedDict

CellType = Literal["float32", "int32"]
CELL_BYTES: Final = 4
SHARDED_SPLITS: Final = ("train", "validation")


class FeatureEntry(TypedDict):
    """A column of the model's input, as the manifest has it."""

    name: str
    dtype: CellType
    cardinality: int


class RowLayout(TypedDict):
    """A row of a shard."""

    features: list[FeatureEntry]
    row_bytes: int


class ShardMeta(TypedDict):
    """What a dataset's meta says of its shards."""

    layout: RowLayout
    shards: Mapping[str, Sequence[int]]
    """Rows of each shard, by split."""
    names: NotRequired[Mapping[str, Sequence[str]]]
    """Names of the shards by split, where they are not those of `shard_name`."""
    group: str | None
    weight: NotRequired[str]
    """Column of the rows' weights, where they have some."""
    label_center: NotRequired[float]
    """The mean label of the training rows, where float32 would round labels by more than `training.data.features.labels.MAX_LABEL_LOSS`."""


def shard_name(split: str, number: int) -> str:
    """Return a shard's name in its manifest."""
    return f"shards/{split}-{number:05d}.bin"


def shard_names(meta: ShardMeta, split: str) -> list[str]:
    """Return the names of a split's shards, from a dataset manifest's meta."""
    if "names" in meta:
        return list(meta["names"][split])
    return [shard_name(split, number) for number in range(len(meta["shards"][split]))]
