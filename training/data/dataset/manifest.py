"""A dataset's manifest as types: `training.data.dataset.reader` reads the rows.

The frame is in parts, `frame/00000.parquet` and so on, in the order of (event time, key). Beside each part are the numbers of its rows by
split, `splits/train-00000.npy`, counted from the part's first row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NotRequired, Self, TypedDict, cast

from training.contracts import JsonObject
from training.data.dataset.shard_format import SHARDED_SPLITS, ShardMeta, shard_names
from training.data.snapshot.label_delay import UnknownLabels
from training.errors import DataError, shown
from training.store import Manifest
from training.store.bucket import REMAKE_HINT

FORMAT_VERSION: Final = 1


class DescribedPart(TypedDict):
    """An entry of `parts`."""

    rows: int
    splits: dict[str, int]


class DescribedColumn(TypedDict):
    """An entry of `schema`: the fields of `FrameColumn`."""

    name: str
    type: str
    nulls: int


class DatasetMeta(ShardMeta):
    """The manifest's meta."""

    format: int
    parts: list[DescribedPart]
    schema: list[DescribedColumn]
    rows: dict[str, int]
    """Of each split."""
    label: str
    bounds: dict[str, list[str]]
    """Start and end of each split, ISO 8601."""
    snapshot: str
    """Digest."""
    classes: NotRequired[list[str]]
    """Of a label with names."""
    unseen_classes: NotRequired[dict[str, list[str]]]
    unknown_labels: NotRequired[UnknownLabels]
    split: NotRequired[JsonObject]
    """How the rows are divided, where it is not by time; see `training.data.split.kinds.split_meta`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameColumn:
    """A column of the frame."""

    name: str
    type: str
    """As Arrow names it."""
    nulls: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FramePart:
    """Rows of the frame next to one another."""

    name: str
    """Of its Parquet file in the manifest."""
    rows: int
    splits: Mapping[str, int]
    """How many of the rows belong to each split; splits without rows are left out."""
    number_files: Mapping[str, str]
    """Split to the file with the numbers of its rows in the part, int64, ascending."""

    @classmethod
    def numbered(cls, number: int, *, rows: int, splits: Mapping[str, int]) -> Self:
        files = {split: f"splits/{split}-{number:05d}.npy" for split in splits}
        return cls(name=f"frame/{number:05d}.parquet", rows=rows, splits=dict(splits), number_files=files)


class DescribedFrame(TypedDict):
    """What the manifest's meta says of the frame."""

    format: int
    parts: list[DescribedPart]
    schema: list[DescribedColumn]


def describe_frame(parts: Sequence[FramePart], columns: Sequence[FrameColumn]) -> DescribedFrame:
    return {
        "format": FORMAT_VERSION,
        "parts": [{"rows": part.rows, "splits": dict(part.splits)} for part in parts],
        "schema": [{"name": column.name, "type": column.type, "nulls": column.nulls} for column in columns],
    }


def meta_of(dataset: Manifest) -> DatasetMeta:
    """Return the meta of a dataset.

    Raises:
        DataError: `dataset.newer`, `dataset.damaged`.
    """
    version = dataset.meta.get("format")
    if type(version) is not int or version < 1:
        message = f"dataset {dataset.digest}: meta.format: required an integer >= 1, found {shown(version)}"
        raise DataError("dataset.damaged", message, hint=REMAKE_HINT)
    if version > FORMAT_VERSION:
        message = f"dataset {dataset.digest} has format {version}, this version reads up to {FORMAT_VERSION}"
        raise DataError("dataset.newer", message, hint="upgrade Nightshift")
    # The digest of the manifest was checked, and prepare wrote it.
    return cast("DatasetMeta", dataset.meta)


def with_validation(meta: DatasetMeta) -> DatasetMeta:
    """Return the meta of a dataset whose validation rows are training rows too, after the others."""
    (start, _), (_, end) = meta["bounds"]["train"], meta["bounds"]["validation"]
    names, shards = {split: shard_names(meta, split) for split in SHARDED_SPLITS}, meta["shards"]
    return {
        **meta,
        "names": {**names, "train": [name for split in SHARDED_SPLITS for name in names[split]]},
        "shards": {**shards, "train": [rows for split in SHARDED_SPLITS for rows in shards[split]]},
        "rows": {**meta["rows"], "train": sum(meta["rows"][split] for split in SHARDED_SPLITS)},
        "bounds": {**meta["bounds"], "train": [start, end]},
    }


def parts_of(dataset: Manifest) -> tuple[FramePart, ...]:
    """Return the parts of a dataset, in order.

    Raises:
        DataError: `dataset.newer`.
    """
    parts = meta_of(dataset)["parts"]
    return tuple(FramePart.numbered(number, rows=part["rows"], splits=part["splits"]) for number, part in enumerate(parts))


def columns_of(dataset: Manifest) -> tuple[FrameColumn, ...]:
    """Return the columns of the frame."""
    return tuple(FrameColumn(**column) for column in meta_of(dataset)["schema"])


def sample_order_digest(dataset: Manifest) -> str:
    """Return the digest that the order of samples follows.

    Of a dataset in one part it is that of the frame and its splits without the description of the parts: a change of how a frame is
    described changes no weights.
    """
    parts = parts_of(dataset)
    if len(parts) > 1:
        return dataset.digest
    names = {parts[0].name: "frame.parquet", **{name: f"splits/{split}.npy" for split, name in parts[0].number_files.items()}}
    files = {names.get(name, name): entry for name, entry in dataset.files.items()}
    meta = {name: value for name, value in dataset.meta.items() if name not in DescribedFrame.__annotations__}
    return Manifest(kind=dataset.kind, files=files, meta=meta, format_version=dataset.format_version).digest
