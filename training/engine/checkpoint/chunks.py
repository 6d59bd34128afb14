"""Format 2 of a checkpoint: every rank's bytes cut into blocks, and for each tensor the chunks that it consists of.

The meta of a manifest of kind `checkpoint` then has `format: 2`, and its `tensors` name for each tensor the dtype, the whole shape and the
chunks: a box of the tensor (`offsets`, `sizes`), whose bytes in row-major order begin at `offset` of the byte string of rank `rank`. The
files `rank-00002-block-00000 …` are that string of rank 2. Chunks fill each tensor without a gap or an overlap.

Blocks are cut so that a large chunk begins and ends its own blocks: what did not change is the same object, whatever is saved beside it.
No torch here; a manifest of format 1 (`training.engine.checkpoint.format`) is read as one rank's string with one chunk for each tensor.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict, cast

from training.contracts import JsonValue
from training.engine.checkpoint.format import BLOCK_BYTES, ITEM_BYTES
from training.store.manifests import FileEntry, Manifest

FORMAT: Final = 2
OWN_BLOCK_BYTES: Final = 128 * 1024
"""A chunk of so many bytes begins and ends its own blocks; smaller ones share a block."""
_BLOCK: Final = re.compile(r"(?:rank-(?P<rank>\d{5})-)?block-\d{5,}")


class Chunk(TypedDict):
    """A box of a tensor and where its bytes lie."""

    offsets: list[int]
    """Of its first item in the whole tensor, one for each dimension."""
    sizes: list[int]
    rank: int
    """Whose byte string holds it."""
    offset: int
    """Of its first byte in that string."""


class ChunkedEntry(TypedDict):
    """A tensor of a checkpoint."""

    dtype: str
    """A name of `ITEM_BYTES`."""
    shape: list[int]
    """Of the whole tensor."""
    chunks: list[Chunk]


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one chunk in a block."""

    chunk: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ByteString:
    """The bytes that one rank wrote."""

    blocks: tuple[FileEntry, ...]
    starts: tuple[int, ...]
    """Of each block in the string."""
    num_bytes: int

    def blocks_of(self, start: int, stop: int) -> Iterator[tuple[int, FileEntry]]:
        """Yield the start and the entry of each block that has bytes of a range."""
        if start >= stop:
            return
        for number in range(bisect_right(self.starts, start) - 1, len(self.blocks)):
            if self.starts[number] >= stop:
                return
            yield self.starts[number], self.blocks[number]


@dataclass(frozen=True, slots=True)
class Saved:
    """A manifest whose index was checked: every chunk lies inside the bytes, and the chunks of each tensor fill it exactly."""

    tensors: Mapping[str, ChunkedEntry]
    strings: Mapping[int, ByteString]


def blocks_for(sizes: Sequence[int]) -> list[list[Piece]]:
    """Cut chunks of so many bytes, in their order, into blocks of at most `BLOCK_BYTES`."""
    blocks: list[list[Piece]] = []
    room = 0
    for chunk, size in enumerate(sizes):
        is_large = size >= OWN_BLOCK_BYTES
        start = 0
        while start < size:
            if not room or (is_large and not start) or (not is_large and size > room):
                blocks.append([])
                room = BLOCK_BYTES
            stop = min(size, start + room)
            blocks[-1].append(Piece(chunk, start, stop))
            room -= stop - start
            start = stop
        if is_large:
            room = 0
    return blocks


def block_name(rank: int, number: int) -> str:
    return f"rank-{rank:05d}-block-{number:05d}"


def num_items(sizes: Sequence[int]) -> int:
    return math.prod(sizes)


def read_index(manifest: Manifest) -> Saved:
    """Return a checkpoint's index, of either format, checked against the sizes of its blocks. No block is read.

    Raises:
        KeyError, TypeError, ValueError: the index is not one of a checkpoint that can be restored.
    """
    number = manifest.meta.get("format", 1)
    if number not in (1, FORMAT):
        raise ValueError(f"format {number!r} is not one of 1 and {FORMAT}")
    strings = _strings(manifest)
    tensors: dict[str, ChunkedEntry] = {}
    num_bytes = 0
    for name, entry in manifest.meta["tensors"].items():
        found = _entry(entry) if number == FORMAT else whole_tensor(**entry)
        _check_chunks(name, found, strings)
        num_bytes += num_items(found["shape"]) * ITEM_BYTES[found["dtype"]]
        tensors[name] = found
    # Chunks that lie on the same bytes would make a small manifest ask for any amount of memory.
    if num_bytes > (there := sum(string.num_bytes for string in strings.values())):
        raise ValueError(f"the tensors have {num_bytes} bytes, more than the {there} of the blocks")
    return Saved(tensors, strings)


def _strings(manifest: Manifest) -> dict[int, ByteString]:
    by_rank: dict[int, list[FileEntry]] = {}
    for name in sorted(manifest.files, key=lambda name: (len(name), name)):
        match = _BLOCK.fullmatch(name)
        entry = manifest.files[name]
        if match is None or not _is_count(entry.size_bytes):
            raise ValueError(f"file {name[:80]!r} of {entry.size_bytes!r} bytes is not a block of a checkpoint")
        by_rank.setdefault(int(match["rank"] or 0), []).append(entry)
    strings = {}
    for rank, blocks in by_rank.items():
        starts, end = [], 0
        for block in blocks:
            starts.append(end)
            end += block.size_bytes
        strings[rank] = ByteString(tuple(blocks), tuple(starts), end)
    return strings


def _entry(values: object) -> ChunkedEntry:
    if not isinstance(values, dict) or set(values) != {"dtype", "shape", "chunks"} or not isinstance(values["chunks"], list):
        raise ValueError("an entry has the keys dtype, shape and chunks")
    for chunk in values["chunks"]:
        if not isinstance(chunk, dict) or set(chunk) != {"offsets", "sizes", "rank", "offset"}:
            raise ValueError("a chunk has the keys offsets, sizes, rank and offset")
    return cast(ChunkedEntry, values)


def whole_tensor(dtype: str, shape: list[int], offset: int) -> ChunkedEntry:
    """Return a tensor that is one chunk, at this place among the bytes of all tensors, as each one of format 1 is."""
    if not isinstance(shape, list):
        raise TypeError("a shape is a list")
    chunk = Chunk(offsets=[0] * len(shape), sizes=shape, rank=0, offset=offset)
    return ChunkedEntry(dtype=dtype, shape=shape, chunks=[chunk] if all(shape) else [])


def _check_chunks(name: str, entry: ChunkedEntry, strings: Mapping[int, ByteString]) -> None:
    dtype, shape = entry["dtype"], entry["shape"]
    if dtype not in ITEM_BYTES:
        raise ValueError(f"tensor {name}: dtype {dtype!r} is not one of {', '.join(ITEM_BYTES)}")
    _check_counts(name, "shape", shape)
    total = 0
    for chunk in entry["chunks"]:
        _check_counts(name, "offsets", chunk["offsets"])
        _check_counts(name, "sizes", chunk["sizes"])
        _check_counts(name, "rank and offset", [chunk["rank"], chunk["offset"]])
        if not len(chunk["offsets"]) == len(chunk["sizes"]) == len(shape):
            raise ValueError(f"tensor {name}: a chunk has other dimensions than shape {shape}")
        if any(start + size > whole for start, size, whole in zip(chunk["offsets"], chunk["sizes"], shape, strict=True)):
            raise ValueError(f"tensor {name}: chunk {chunk['sizes']} at {chunk['offsets']} is outside of shape {shape}")
        items = num_items(chunk["sizes"])
        string = strings.get(chunk["rank"])
        there = 0 if string is None else string.num_bytes
        if not items or chunk["offset"] + items * ITEM_BYTES[dtype] > there:
            message = f"{items * ITEM_BYTES[dtype]} bytes at offset {chunk['offset']} of rank {chunk['rank']}, which has {there}"
            raise ValueError(f"tensor {name}: {message}")
        total += items
    if (pair := overlapping(entry["chunks"])) is not None:
        raise ValueError(f"tensor {name}: chunks overlap, one at {pair[0]['offsets']} and one at {pair[1]['offsets']}")
    if total != num_items(shape):
        raise ValueError(f"tensor {name}: its chunks have {total} of {num_items(shape)} items")


def overlapping(chunks: Sequence[Chunk]) -> tuple[Chunk, Chunk] | None:
    """Return two chunks of one tensor that have an item in common, None where none have."""
    active: list[Chunk] = []
    for chunk in sorted(chunks, key=lambda chunk: chunk["offsets"]):
        if not chunk["offsets"]:
            if active:
                return active[0], chunk
        else:
            first = chunk["offsets"][0]
            active = [other for other in active if other["offsets"][0] + other["sizes"][0] > first]
        for other in active:
            if all(_common(chunk, other)):
                return other, chunk
        active.append(chunk)
    return None


def _common(one: Chunk, other: Chunk) -> Iterator[int]:
    for start, size, other_start, other_size in zip(one["offsets"], one["sizes"], other["offsets"], other["sizes"], strict=True):
        yield max(0, min(start + size, other_start + other_size) - max(start, other_start))


def _check_counts(name: str, what: str, numbers: object) -> None:
    if not isinstance(numbers, list) or not all(map(_is_count, numbers)):
        raise ValueError(f"tensor {name}: {what} {str(numbers)[:80]} are not whole numbers from 0")


def _is_count(number: JsonValue | int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0
