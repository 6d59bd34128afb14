"""Makes a checkpoint at step 0 of a file of safetensors: a training that begins there has its weights. No torch, and nothing is unpickled.

The file's header is checked against a checkpoint of the same model before a byte of a tensor is read.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

from training.engine.checkpoint.chunks import FORMAT, ChunkedEntry, Saved, block_name, num_items, whole_tensor
from training.engine.checkpoint.format import BLOCK_BYTES, ITEM_BYTES, Position
from training.engine.checkpoint.safetensors_export import CODES, chosen
from training.errors import DataError
from training.store import Manifest, Store
from training.store.manifests import FileEntry

MAX_HEADER_BYTES: Final = 2**24
"""Of some 200,000 tensors. The readers of safetensors take 100 MB, which is 1.6 GiB of objects here."""
MAX_DIMENSIONS: Final = 64
"""Torch has no more of them; the product of millions of numbers would take hours."""
MAX_NUMBER: Final = 2**63
MAX_NAME_CHARS: Final = 1000
_DTYPES: Final = {code: dtype for dtype, code in CODES.items()}
_ZERO: Final = "optimizer/"
HINT: Final = "export the weights of a checkpoint of this run to see what is needed"


def imported(store: Store, path: Path, like: Manifest, saved: Saved) -> str:
    """Store a checkpoint with a file's weights and an optimizer that has made no step; return its URI.

    Args:
        path: of the file: its tensors have the names of the module's.
        like: a checkpoint of the model, with its checked index `saved`: the new one is for the same training.

    Raises:
        DataError: `weights.unreadable`, not a file of safetensors; `weights.other`, its tensors are not those of the model.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _unreadable(path, "it is not a regular file")
            found, num_bytes = read_header(str(path), file, status.st_size)
            check_tensors(str(path), found, chosen(saved, "module"), hint=HINT)
            zeros = {name: entry for name, entry in saved.tensors.items() if name.startswith(_ZERO)}
            blocks = list(_stored(store, path, file, num_bytes))
    except OSError as err:
        raise _unreadable(path, str(err.strerror)) from err
    tensors = {f"module/{name}": entry for name, entry in found.items()}
    for name, entry in sorted(zeros.items()):
        tensors[name] = whole_tensor(entry["dtype"], entry["shape"], num_bytes)
        num_bytes += num_items(entry["shape"]) * ITEM_BYTES[entry["dtype"]]
    blocks += _zeros(store, num_bytes - sum(block.size_bytes for block in blocks))
    position: Position = {"step": 0, "epoch": 0, "best_loss": None, "best_epoch": 0, "history": [], "epoch_loss": 0.0}
    scale = {"loss_scale": like.meta["loss_scale"]} if "loss_scale" in like.meta else {}
    meta = {"format": FORMAT, "tensors": tensors, "identity": like.meta["identity"], **position, **scale}
    files = {block_name(0, number): block for number, block in enumerate(blocks)}
    return store.manifests.put(Manifest(kind="checkpoint", files=files, meta=meta))


def read_header(path: str, file: IO[bytes], size: int) -> tuple[dict[str, ChunkedEntry], int]:
    """Return the tensors of a file and the bytes of all of them; each tensor is a chunk at its place among these.

    Args:
        path: what messages call the file.
        file: at its beginning.
        size: of the file, in bytes.

    Raises:
        DataError: `weights.unreadable`, not a file of safetensors.
    """
    length = int.from_bytes(file.read(8), "little")
    if size < 10 or 8 + length > size:
        raise _unreadable(path, f"it has {size} bytes, and its first 8 do not give the length of a header")
    if length > MAX_HEADER_BYTES:
        raise _unreadable(path, f"its header has {length:,} bytes, at most {MAX_HEADER_BYTES:,} are read")
    try:
        values = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_unique)
        if not isinstance(values, dict):
            raise TypeError("the header is not an object")
        notes = values.pop("__metadata__", {})
        if not (isinstance(notes, dict) and all(isinstance(note, str) for note in notes.values())):
            raise TypeError("__metadata__ is not an object of texts")
        return _entries(values, size - 8 - length), size - 8 - length
    except (ValueError, TypeError, KeyError, RecursionError) as err:
        raise _unreadable(path, f"{type(err).__name__}: {str(err)[:200]}") from err


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _entries(values: Mapping[str, Any], num_bytes: int) -> dict[str, ChunkedEntry]:
    """Return the tensors, which must fill the bytes without a gap or an overlap."""
    found, places = {}, []
    for name, value in values.items():
        if len(name) > MAX_NAME_CHARS or not name.isprintable():
            raise ValueError(f"the name {name[:80]!r} is above {MAX_NAME_CHARS} characters, or not printable")
        if set(value) != {"dtype", "shape", "data_offsets"} or value["dtype"] not in _DTYPES:
            raise ValueError(f"tensor {name[:80]!r} has not dtype (one of {', '.join(_DTYPES)}), shape and data_offsets")
        shape, (start, stop) = value["shape"], value["data_offsets"]
        if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
            raise ValueError(f"tensor {name[:80]!r}: shape is not a list of at most {MAX_DIMENSIONS} numbers")
        if not all(type(number) is int and 0 <= number < MAX_NUMBER for number in [*shape, start, stop]):
            raise ValueError(f"tensor {name[:80]!r}: shape and data_offsets are not whole numbers from 0 to 2^63")
        entry = whole_tensor(_DTYPES[value["dtype"]], shape, start)
        if stop - start != num_items(shape) * ITEM_BYTES[entry["dtype"]]:
            raise ValueError(f"tensor {name[:80]!r}: {stop - start} bytes are not those of {value['dtype']} {shape}")
        found[name] = entry
        places.append((start, stop))
    end = 0
    for start, stop in sorted(places):
        if start != end:
            raise ValueError(f"the bytes from {min(start, end)} to {max(start, end)} are of no tensor, or of two")
        end = stop
    if end != num_bytes:
        raise ValueError(f"the tensors have {end} bytes, the file has {num_bytes}")
    return found


def check_tensors(path: str, found: Mapping[str, ChunkedEntry], wanted: Mapping[str, ChunkedEntry], *, hint: str) -> None:
    """Check that a file has the tensors of a model.

    Raises:
        DataError: `weights.other`, some are missing, too many, or of another shape or dtype.
    """
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    reasons = [f"{what}: {', '.join(names[:20])}" for what, names in (("missing", missing), ("not in the model", extra)) if names]
    for name in sorted(set(found) & set(wanted)):
        here, there = found[name], wanted[name]
        if (here["dtype"], here["shape"]) != (there["dtype"], there["shape"]):
            reasons.append(f"{name} is {here['dtype']} {here['shape']}, the model has {there['dtype']} {there['shape']}")
    if reasons:
        raise DataError("weights.other", f"{path} does not fit the model: {'; '.join(reasons[:10])}", hint=hint)


def _stored(store: Store, path: Path, file: IO[bytes], num_bytes: int) -> Iterator[FileEntry]:
    while num_bytes:
        block = file.read(min(BLOCK_BYTES, num_bytes))
        if not block:
            raise _unreadable(path, f"it ended {num_bytes} bytes early: it was changed while it was read")
        num_bytes -= len(block)
        yield FileEntry(digest=store.objects.put_block(memoryview(block))[0], size_bytes=len(block))


def _zeros(store: Store, num_bytes: int) -> list[FileEntry]:
    """Return blocks of zeros; all but the last one are the same object."""
    number, rest = divmod(num_bytes, BLOCK_BYTES)
    blocks = []
    for size, count in ((BLOCK_BYTES, number), (rest, 1)):
        if size and count:
            blocks += [FileEntry(digest=store.objects.put_block(memoryview(bytes(size)))[0], size_bytes=size)] * count
    return blocks


def _unreadable(path: Path | str, reason: str) -> DataError:
    return DataError("weights.unreadable", f"{path} is not a file of safetensors: {reason}", hint="save the weights with safetensors")
