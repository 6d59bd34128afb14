"""Reads the wire format of Protocol Buffers within bounds: an ONNX file is looked at before onnxruntime reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MAX_VARINT_BYTES: Final = 10
MAX_NUMBER: Final = 2**29 - 1
"""Of a field. Protocol Buffers drop what a key has beyond 32 bits: the field would be another one there than here."""
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield (number, value) of each field of a message: a whole number, or the bytes of a text, a message or a packed list.

    Raises:
        ValueError: it is no message, or ends early.
    """
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, kind = key >> 3, key & 7
        if not 1 <= number <= MAX_NUMBER:
            raise ValueError(f"byte {place} begins a field with the number {number}, which there is not")
        if kind == _VARINT:
            value, place = _varint(data, place)
            yield number, value
            continue
        if kind == _BYTES:
            length, place = _varint(data, place)
        elif kind in (_FIXED_64, _FIXED_32):
            length = 8 if kind == _FIXED_64 else 4
        else:
            raise ValueError(f"byte {place} begins a field of the unknown kind {kind}")
        if place + length > len(data):
            raise ValueError(f"a field of {length} bytes at byte {place} is longer than its message")
        yield number, data[place : place + length]
        place += length


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(MAX_VARINT_BYTES):
        if place >= len(data):
            raise ValueError(f"it ends at byte {len(data)}, in the middle of a number")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << (7 * shift)
        if not byte & 0x80:
            return value, place
    raise ValueError(f"the number before byte {place} is longer than 64 bits")
