"""Fills tensors from the blocks of a checkpoint, of whatever layout each of both is: what this process needs, each block read once.

torch.distributed.checkpoint's load planner says which box of which saved chunk goes where. Blocks are read and verified a few ahead of the
copy, in the order in which they lie; no more of the checkpoint is in memory than these and one chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

from training.engine.checkpoint.chunks import ByteString, Chunk, ChunkedEntry, Saved, num_items
from training.engine.checkpoint.format import ITEM_BYTES, Index, TensorEntry, padded
from training.engine.checkpoint.tensors import DTYPES, State, dtype_name, local_part
from training.errors import DataError
from training.process import liveness
from training.store.manifests import FileEntry
from training.store.objects import Objects

NUM_AHEAD: Final = 4
NUM_READERS: Final = 2
HINT: Final = "start it with the same model and settings, or trigger the run with force to train from the start"


@dataclass(frozen=True, slots=True)
class _Read:
    """Rows of one saved chunk, and the boxes of them that go to tensors."""

    chunk: Chunk
    dtype: str
    first_row: int
    """Of the chunk; what is before it is not read."""
    num_rows: int
    items: Sequence[ReadItem]

    @property
    def row_bytes(self) -> int:
        return num_items(self.chunk["sizes"][1:]) * ITEM_BYTES[self.dtype]

    @property
    def start(self) -> int:
        """First byte in the string of the chunk's rank."""
        return self.chunk["offset"] + self.first_row * self.row_bytes

    @property
    def stop(self) -> int:
        return self.start + self.num_rows * self.row_bytes


def refuse_others(uri: str, saved: Saved, state: State) -> None:
    """Refuse a state that a checkpoint does not have as it is.

    Raises:
        DataError: `checkpoint.unreadable`, with the first tensors that are missing or differ.
    """
    reasons = []
    for name, tensor in sorted(state.items()):
        entry = saved.tensors.get(name)
        if entry is None:
            reasons.append(f"tensor {name} is missing")
        elif entry["shape"] != list(tensor.shape) or entry["dtype"] != dtype_name(tensor.dtype):
            now = f"{dtype_name(tensor.dtype)} {list(tensor.shape)}"
            reasons.append(f"tensor {name} is {entry['dtype']} {entry['shape']}, this attempt has {now}")
    if reasons:
        more = f" (and {len(reasons) - 5} more)" if len(reasons) > 5 else ""
        raise DataError("checkpoint.unreadable", f"{uri} does not fit this training: {'; '.join(reasons[:5])}{more}", hint=HINT)


def fill(saved: Saved, state: State, objects: Objects) -> None:
    """Fill tensors whose names, shapes and dtypes were checked.

    Raises:
        DataError: `object.missing`, `object.altered`.
    """
    reads = _reads(saved, state)
    with _Blocks(objects, [saved.strings[read.chunk["rank"]] for read in reads], reads) as blocks, torch.no_grad():
        for read in reads:
            target = _memory_of(read, state)
            if target is None:
                target = memoryview(bytearray(read.stop - read.start))
                blocks.copy(read, target)
                _fill_from(read, target, state)
            else:
                blocks.copy(read, target)


def whole(saved: Saved, objects: Objects) -> tuple[bytearray, Index]:
    """Return all tensors of a checkpoint as format 1 has them: one byte string and where each tensor lies in it."""
    index: dict[str, TensorEntry] = {}
    end = 0
    for name, entry in sorted(saved.tensors.items()):
        index[name] = TensorEntry(dtype=entry["dtype"], shape=entry["shape"], offset=end)
        end += padded(num_items(entry["shape"]) * ITEM_BYTES[entry["dtype"]])
    data = bytearray(end)
    state = {name: _inside(data, entry) for name, entry in index.items() if num_items(entry["shape"])}
    fill(saved, state, objects)
    return data, index


def _inside(data: bytearray, entry: TensorEntry) -> torch.Tensor:
    items = torch.frombuffer(data, dtype=DTYPES[entry["dtype"]], count=num_items(entry["shape"]), offset=entry["offset"])
    return items.reshape(entry["shape"])


def _reads(saved: Saved, state: State) -> list[_Read]:
    """Return what to read, in the order in which it lies."""
    by_chunk: dict[tuple[str, int], list[ReadItem]] = {}
    for item in _read_items(saved.tensors, state):
        number = item.storage_index.index
        assert number is not None, "the planner counts chunks"  # noqa: S101
        by_chunk.setdefault((item.storage_index.fqn, number), []).append(item)
    reads = []
    for (name, number), items in by_chunk.items():
        entry = saved.tensors[name]
        chunk = entry["chunks"][number]
        rows = [(item.storage_offsets[0], item.storage_offsets[0] + item.lengths[0]) if chunk["sizes"] else (0, 1) for item in items]
        first = min(start for start, _ in rows)
        reads.append(_Read(chunk, entry["dtype"], first, max(stop for _, stop in rows) - first, items))
    return sorted((read for read in reads if read.num_rows), key=lambda read: (read.chunk["rank"], read.start))


def _read_items(entries: Mapping[str, ChunkedEntry], state: State) -> list[ReadItem]:
    """Return which box of which saved chunk goes to which box of this process's part of each tensor of a state."""
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    metadata = Metadata({name: _metadata(entries[name]) for name in state})
    planner.set_up_planner(dict(state), metadata)
    return list(planner.create_local_plan().items)


def _metadata(entry: ChunkedEntry) -> TensorStorageMetadata:
    boxes = [ChunkStorageMetadata(torch.Size(chunk["offsets"]), torch.Size(chunk["sizes"])) for chunk in entry["chunks"]]
    return TensorStorageMetadata(TensorProperties(dtype=DTYPES[entry["dtype"]]), torch.Size(entry["shape"]), boxes)


def _memory_of(read: _Read, state: State) -> memoryview | None:
    """Return the memory of the tensor that the bytes of a read are, as they lie, or None where they have to be taken apart."""
    (item, *more), sizes = read.items, read.chunk["sizes"]
    target = local_part(state[item.dest_index.fqn])
    is_whole_rows = bool(sizes) and list(item.lengths[1:]) == sizes[1:] == list(target.shape[1:])
    if more or not is_whole_rows or target.device.type != "cpu" or not target.is_contiguous():
        return None
    rows = target.narrow(0, item.dest_offsets[0], item.lengths[0])
    return memoryview(rows.reshape(-1).view(torch.uint8).numpy().data)


def _fill_from(read: _Read, data: memoryview, state: State) -> None:
    sizes = read.chunk["sizes"]
    rows = torch.frombuffer(data, dtype=DTYPES[read.dtype]).reshape([read.num_rows, *sizes[1:]] if sizes else [])
    for item in read.items:
        source, target = rows, local_part(state[item.dest_index.fqn])
        for dim, (start, there, length) in enumerate(zip(item.storage_offsets, item.dest_offsets, item.lengths, strict=True)):
            source = source.narrow(dim, start - (0 if dim else read.first_row), length)
            target = target.narrow(dim, there, length)
        target.copy_(source)


class _Blocks:
    """The blocks that reads need, in their order, read ahead of them."""

    def __init__(self, objects: Objects, strings: Sequence[ByteString], reads: Sequence[_Read]) -> None:
        self._objects = objects
        self._string_of = {id(read): string for read, string in zip(reads, strings, strict=True)}
        self._wanted = iter(self._in_order(reads))
        self._ahead: deque[tuple[tuple[int, int], Future[bytes]]] = deque()
        self._last: tuple[tuple[int, int], bytes] | None = None
        self._pool = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="checkpoint")

    def __enter__(self) -> _Blocks:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def copy(self, read: _Read, target: memoryview) -> None:
        """Copy the bytes of a read, which are as many as `target` has; call it in the order of the reads."""
        for at, block in self._string_of[id(read)].blocks_of(read.start, read.stop):
            content = self._content((read.chunk["rank"], at))
            start, stop = max(at, read.start), min(at + block.size_bytes, read.stop)
            target[start - read.start : stop - read.start] = memoryview(content)[start - at : stop - at]

    def _content(self, key: tuple[int, int]) -> bytes:
        if self._last is None or self._last[0] != key:
            while len(self._ahead) < NUM_AHEAD and (following := next(self._wanted, None)) is not None:
                place, block = following
                self._ahead.append((place, self._pool.submit(self._verified, block)))
            found, content = self._ahead.popleft()
            assert found == key, "blocks are asked for in their order"  # noqa: S101
            self._last = (key, content.result())
            liveness.moved()
        return self._last[1]

    def _verified(self, block: FileEntry) -> bytes:
        content = self._objects.get_bytes(block.digest)
        if len(content) != block.size_bytes:
            message = f"block {self._objects.uri(block.digest)} has {len(content)} bytes, the manifest says {block.size_bytes}"
            raise DataError("checkpoint.unreadable", message)
        return content

    def _in_order(self, reads: Sequence[_Read]) -> Iterator[tuple[tuple[int, int], FileEntry]]:
        last: tuple[int, int] | None = None
        for read in reads:
            for at, block in self._string_of[id(read)].blocks_of(read.start, read.stop):
                if (read.chunk["rank"], at) != last:
                    last = (read.chunk["rank"], at)
                    yield last, block
