"""Which chunks of a sharded state there are and which rank writes each, planned by torch.distributed.checkpoint.

Its planners are used without its collectives: ranks tell each other their chunks as JSON (`training.large.checkpoint.savers`), so nothing
is pickled, and no process group of a broken training is waited for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor

from training.contracts import JsonValue
from training.engine.checkpoint.chunks import Chunk, ChunkedEntry, num_items
from training.engine.checkpoint.format import ITEM_BYTES
from training.engine.checkpoint.tensors import DTYPES, State, dtype_name
from training.errors import DataError


@dataclass(frozen=True, slots=True)
class LocalChunk:
    """What one rank has of a tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return num_items(self.sizes) * ITEM_BYTES[self.dtype]

    def to_json(self) -> JsonValue:
        return [self.name, self.dtype, list(self.shape), list(self.offsets), list(self.sizes)]

    @classmethod
    def from_json(cls, values: JsonValue) -> LocalChunk:
        name, dtype, shape, offsets, sizes = cast(tuple[str, str, list[int], list[int], list[int]], values)
        return cls(name, dtype, tuple(shape), tuple(offsets), tuple(sizes))


@dataclass(eq=False)
class ShardListing:
    """The chunks of one rank, in the order of names, and what of them it writes once the ranks have agreed."""

    chunks: tuple[LocalChunk, ...]
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        self.digest = hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()

    def to_json(self) -> JsonValue:
        return [chunk.to_json() for chunk in self.chunks]

    @classmethod
    def from_json(cls, values: JsonValue) -> ShardListing:
        return cls(tuple(LocalChunk.from_json(chunk) for chunk in cast(list[JsonValue], values)))

    @classmethod
    def of(cls, state: State) -> ShardListing:
        """Return the chunks that this process has of a state; a DTensor of a mesh without this process has none here."""
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner({name: state[name] for name in sorted(state)})
        return cls(tuple(_local_chunk(item) for item in planner.create_local_plan().items))


@dataclass(frozen=True, slots=True)
class GlobalPlan:
    """Which rank writes what."""

    entries: Mapping[str, ChunkedEntry]
    """The index of the checkpoint."""
    assigned: Sequence[Sequence[int]]
    """By rank: numbers of the chunks of its listing that it writes, in this order."""


def plan_for(listings: Sequence[ShardListing]) -> GlobalPlan:
    """Divide the chunks among the ranks that hold them: what several hold is written by the one with the least so far.

    Raises:
        DataError: `checkpoint.unplanned`, the ranks' chunks do not make up whole tensors.
    """
    _check_agreed(listings)
    plans = [SavePlan([_write_item(chunk) for chunk in listing.chunks]) for listing in listings]
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner({}, is_coordinator=True)
    try:
        written, _ = planner.create_global_plan(plans)
    except (ValueError, AssertionError) as err:
        raise DataError("checkpoint.unplanned", f"the ranks' chunks do not make up whole tensors: {err}") from err
    assigned = [_numbers(listing, plan.items) for listing, plan in zip(listings, written, strict=True)]
    return GlobalPlan(_entries(listings, assigned), assigned)


def local_parts(state: State, names: Sequence[str]) -> list[torch.Tensor]:
    """Return the memory that this process has of several tensors, to be read from: a thousand calls of `local_part` are felt in a save."""
    with torch.no_grad():
        return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in map(state.__getitem__, names)]


def _local_chunk(item: WriteItem) -> LocalChunk:
    data = item.tensor_data
    assert data is not None, "a state has tensors alone"  # noqa: S101 - no bytes item is made of a tensor
    name = dtype_name(data.properties.dtype)
    return LocalChunk(item.index.fqn, name, tuple(data.size), tuple(data.chunk.offsets), tuple(data.chunk.sizes))


def _write_item(chunk: LocalChunk) -> WriteItem:
    box = ChunkStorageMetadata(offsets=torch.Size(chunk.offsets), sizes=torch.Size(chunk.sizes))
    data = TensorWriteData(chunk=box, properties=TensorProperties(dtype=DTYPES[chunk.dtype]), size=torch.Size(chunk.shape))
    # For several holders of a whole tensor too: the planner then asks for no more than that the chunks fill it.
    return WriteItem(index=MetadataIndex(chunk.name, box.offsets), type=WriteItemType.SHARD, tensor_data=data)


def _numbers(listing: ShardListing, items: Iterable[WriteItem]) -> list[int]:
    wanted = {(item.index.fqn, tuple(item.index.offset or ())) for item in items}
    return [number for number, chunk in enumerate(listing.chunks) if (chunk.name, chunk.offsets) in wanted and num_items(chunk.sizes)]


def _check_agreed(listings: Sequence[ShardListing]) -> None:
    """The planner compares neither dtypes and shapes of ranks nor sizes of chunks that begin at the same item."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    boxes: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
    for rank, listing in enumerate(listings):
        for chunk in listing.chunks:
            whole = tensors.setdefault(chunk.name, (chunk.dtype, chunk.shape))
            sizes = boxes.setdefault((chunk.name, chunk.offsets), chunk.sizes)
            if whole != (chunk.dtype, chunk.shape) or sizes != chunk.sizes:
                message = f"rank {rank} has tensor {chunk.name} as {chunk.dtype} {list(chunk.shape)}, an earlier rank differs"
                raise DataError("checkpoint.unplanned", message)


def _entries(listings: Sequence[ShardListing], assigned: Sequence[Sequence[int]]) -> dict[str, ChunkedEntry]:
    entries: dict[str, ChunkedEntry] = {}
    for listing in listings:
        for chunk in listing.chunks:
            entries.setdefault(chunk.name, ChunkedEntry(dtype=chunk.dtype, shape=list(chunk.shape), chunks=[]))
    for rank, (listing, numbers) in enumerate(zip(listings, assigned, strict=True)):
        offset = 0
        for number in numbers:
            chunk = listing.chunks[number]
            where = Chunk(offsets=list(chunk.offsets), sizes=list(chunk.sizes), rank=rank, offset=offset)
            entries[chunk.name]["chunks"].append(where)
            offset += chunk.num_bytes
    return entries
