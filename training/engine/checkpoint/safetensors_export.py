"""Writes a checkpoint's tensors to a file in the format of safetensors: of any layout, in one process, a block in memory. No torch."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import IO, Final, Literal

from training.engine.checkpoint.chunks import Chunk, ChunkedEntry, Saved, num_items
from training.engine.checkpoint.format import ITEM_BYTES
from training.errors import DataError, DeniedError, UnavailableError
from training.store.manifests import FileEntry
from training.store.objects import Objects

What = Literal["module", "best", "all"]
CODES: Final = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"},
    **{"float8_e4m3fn": "F8_E4M3", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2": "F8_E5M2", "float8_e5m2fnuz": "F8_E5M2FNUZ"},
    **{"int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8"},
    **{"bool": "BOOL", "complex64": "C64"},
}
"""Of the dtypes that a checkpoint can hold."""


def chosen(saved: Saved, what: What) -> dict[str, ChunkedEntry]:
    """Return the tensors to export, by their names in the file: those of the module and of the best epoch without their section.

    Raises:
        DataError: `checkpoint.empty`, there are none.
    """
    prefix = "" if what == "all" else f"{what}/"
    found = {name.removeprefix(prefix): entry for name, entry in saved.tensors.items() if name.startswith(prefix)}
    if not found:
        there = ", ".join(sorted({name.partition("/")[0] for name in saved.tensors})[:10])
        raise DataError(
            "checkpoint.empty", f"the checkpoint has no tensors of {what}; it has: {there or 'none'}", hint="choose another --what"
        )
    return found


def export(saved: Saved, objects: Objects, path: Path, *, what: What, metadata: Mapping[str, str], force: bool = False) -> int:
    """Write a file, which appears under its name only when all its bytes are verified and durable; return its size in bytes.

    Args:
        metadata: of the file's header.
        force: replace a file that exists.

    Raises:
        DataError: `checkpoint.empty`, `object.missing`, `object.altered`.
        DeniedError: `export.exists`, `export.denied`. UnavailableError: `export.unwritten`.
    """
    if os.path.lexists(path) and not force:
        raise DeniedError("export.exists", f"{path} exists", hint="choose another name, or replace it with --force")
    tensors = chosen(saved, what)
    header, starts = _header(tensors, metadata)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as out:
            out.write(header)
            _copy(saved, objects, tensors, starts, out)
            out.flush()
            # As a file of this user is: mkstemp makes one that nobody else reads.
            os.fchmod(out.fileno(), 0o666 & ~_umask())
            os.fsync(out.fileno())
            size = os.fstat(out.fileno()).st_size
        _publish(Path(temporary), path, force=force)
    except PermissionError as err:
        raise DeniedError(
            "export.denied", f"{path} may not be written: {err.strerror}", hint="choose a folder that this user may write"
        ) from err
    except OSError as err:
        raise UnavailableError("export.unwritten", f"{path} was not written: {err.strerror}", hint="choose a folder that has room") from err
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
    return size


def _header(tensors: Mapping[str, ChunkedEntry], metadata: Mapping[str, str]) -> tuple[bytes, dict[str, int]]:
    """Return the header, and where each tensor begins in the file. Large items come first, so that each tensor is aligned."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    offsets: dict[str, int] = {}
    end = 0
    for name, entry in sorted(tensors.items(), key=lambda item: (-ITEM_BYTES[item[1]["dtype"]], item[0])):
        offsets[name] = end
        end += num_items(entry["shape"]) * ITEM_BYTES[entry["dtype"]]
        entries[name] = {"dtype": CODES[entry["dtype"]], "shape": entry["shape"], "data_offsets": [offsets[name], end]}
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, {name: 8 + len(text) + offset for name, offset in offsets.items()}


def _copy(saved: Saved, objects: Objects, tensors: Mapping[str, ChunkedEntry], starts: Mapping[str, int], out: IO[bytes]) -> None:
    """Copy the chunks in the order in which they lie in the blocks: each block is read once, or once for each chunk that it begins."""
    chunks = [(chunk, name) for name, entry in tensors.items() for chunk in entry["chunks"]]
    blocks = _LastBlock(objects)
    for chunk, name in sorted(chunks, key=lambda found: (found[0]["rank"], found[0]["offset"])):
        entry = tensors[name]
        item_bytes = ITEM_BYTES[entry["dtype"]]
        pieces = _bytes_of(saved, chunk, num_items(chunk["sizes"]) * item_bytes, blocks)
        rest = memoryview(b"")
        for start, length in runs(entry["shape"], chunk):
            out.seek(starts[name] + start * item_bytes)
            wanted = length * item_bytes
            while wanted:
                if not rest:
                    rest = next(pieces)
                part = rest[:wanted]
                out.write(part)
                rest, wanted = rest[len(part) :], wanted - len(part)


def runs(shape: list[int], chunk: Chunk) -> Iterator[tuple[int, int]]:
    """Yield first item and number of items of each run of a chunk that has no gap in the whole tensor, in row-major order."""
    sizes, offsets = chunk["sizes"], chunk["offsets"]
    # Dimensions after this one are whole.
    last = len(shape) - 1
    while last > 0 and sizes[last] == shape[last]:
        last -= 1
    strides = [num_items(shape[dim + 1 :]) for dim in range(len(shape))]
    length = num_items(sizes[max(0, last) :])
    base = sum(offset * stride for offset, stride in zip(offsets, strides, strict=True))
    for index in product(*(range(size) for size in sizes[: max(0, last)])):
        yield base + sum(number * stride for number, stride in zip(index, strides, strict=False)), length


def _bytes_of(saved: Saved, chunk: Chunk, size: int, blocks: _LastBlock) -> Iterator[memoryview]:
    string, stop = saved.strings[chunk["rank"]], chunk["offset"] + size
    for start, block in string.blocks_of(chunk["offset"], stop):
        yield memoryview(blocks.get(block))[max(0, chunk["offset"] - start) : stop - start]


class _LastBlock:
    """Verified blocks; the last one is kept for the chunks that share it."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._digest = ""
        self._data = b""

    def get(self, block: FileEntry) -> bytes:
        if block.digest != self._digest:
            data = self._objects.get_bytes(block.digest)
            if len(data) != block.size_bytes:
                message = f"block {self._objects.uri(block.digest)} has {len(data)} bytes, the checkpoint says {block.size_bytes}"
                raise DataError("checkpoint.unreadable", message)
            self._digest, self._data = block.digest, data
        return self._data


def _publish(temporary: Path, path: Path, *, force: bool) -> None:
    """Give a file its name, and make that durable.

    Raises:
        DeniedError: `export.exists`, a file came there in the meantime.
    """
    if force:
        temporary.replace(path)
    else:
        try:
            os.link(temporary, path)
        except FileExistsError as err:
            raise DeniedError("export.exists", f"{path} exists", hint="choose another name, or replace it with --force") from err
        except OSError as err:
            # A file system without hard links.
            if err.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP):
                raise
            temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
