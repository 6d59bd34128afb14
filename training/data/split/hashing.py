"""A number for each row by the values of some of its columns: where a random split sends it, and which fold it is in.

What is hashed is written out here, so that every engine and version gives a row the same number: the seed, then each value as a byte for
its type, the length of what follows, and the value. Integers are written in decimal, so that int32 and int64 agree.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

HASH_BYTES: Final = 8
CHUNK_ROWS: Final = 65_536
NULL: Final = b"n\x00\x00\x00\x00"


def row_hashes(columns: Sequence[pa.ChunkedArray], seed: int) -> NDArray[np.uint64]:
    """Return the first 64 bits of each row's BLAKE2b, [n], big-endian.

    Args:
        columns: at least one, each [n].
        seed: other seeds give other numbers.
    """
    prefix = hashlib.blake2b(struct.pack("<q", seed), digest_size=HASH_BYTES)
    num_rows = len(columns[0])
    found = np.empty(num_rows, dtype=np.uint64)
    for first in range(0, num_rows, CHUNK_ROWS):
        written = [_written(column.slice(first, CHUNK_ROWS)) for column in columns]
        digests = [_digest(prefix, values) for values in zip(*written, strict=True)]
        found[first : first + len(digests)] = np.frombuffer(b"".join(digests), dtype=">u8")
    return found


def _digest(prefix: Any, values: Iterable[bytes]) -> bytes:
    state = prefix.copy()
    for value in values:
        state.update(value)
    digest: bytes = state.digest()
    return digest


def _written(column: pa.ChunkedArray) -> list[bytes]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        # Instants are equal in any unit and zone.
        return _tagged(b"t", pc.cast(pc.cast(column, pa.timestamp("us", tz=kind.tz)), pa.int64()), _decimal)
    if pa.types.is_date(kind):
        return _tagged(b"d", pc.cast(pc.cast(column, pa.date32()), pa.int32()), _decimal)
    if pa.types.is_boolean(kind):
        return _tagged(b"b", column, lambda value: b"1" if value else b"0")
    if pa.types.is_integer(kind):
        return _tagged(b"i", column, _decimal)
    if pa.types.is_floating(kind):
        # Adding 0 makes one zero of both; the bits of NaN are not the value's.
        return _tagged(b"f", column, lambda value: b"nan" if value != value else struct.pack("<d", value + 0.0))
    return _tagged(b"s", pc.cast(column, pa.string()), lambda value: str(value).encode())


def _tagged(tag: bytes, column: pa.ChunkedArray, write: Callable[[Any], bytes]) -> list[bytes]:
    found = []
    for value in column.to_pylist():
        content = NULL if value is None else write(value)
        found.append(content if value is None else tag + struct.pack("<I", len(content)) + content)
    return found


def _decimal(value: int) -> bytes:
    return b"%d" % value
