"""Reads UBJSON as XGBoost writes it, within bounds: a file from outside is looked at before a native library reads it."""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np

MAX_DEPTH: Final = 32
MAX_VALUES: Final = 2**23
"""Those that are Python objects; a list without entries takes 60 bytes for 2 of the file. A tree has about 30 of them."""
_NUMBERS: Final = {b"i": ">i1", b"U": ">u1", b"I": ">i2", b"l": ">i4", b"L": ">i8", b"d": ">f4", b"D": ">f8"}
_WORDS: Final = {b"T": True, b"F": False, b"Z": None}
_LENGTHS: Final = {b"i": "b", b"U": "B", b"I": ">h", b"l": ">i", b"L": ">q"}


def decode(data: bytes) -> Any:
    """Return the value of a whole file; arrays of one type of numbers are numpy arrays.

    Raises:
        ValueError: it is not UBJSON, ends early, goes on after the value, is nested too deeply, has too many values, or a key twice: other
            readers take the first of these where this one would take the last.
    """
    reader = _Reader(data)
    value = reader.value(0)
    if reader.place != len(data):
        raise ValueError(f"{len(data) - reader.place} bytes follow the value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0
        self._num_values = 0

    def value(self, depth: int, marker: bytes | None = None) -> Any:
        marker = self._take(1) if marker is None else marker
        self._num_values += 1
        if depth > MAX_DEPTH or self._num_values > MAX_VALUES:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep, or has more than {MAX_VALUES:,} values")
        if marker == b"{":
            return self._object(depth)
        if marker == b"[":
            return self._array(depth)
        if marker in _NUMBERS:
            return self._numbers(marker, 1)[0].item()
        if marker in (b"S", b"C"):
            return self._text(1 if marker == b"C" else self._length())
        if marker in _WORDS:
            return _WORDS[marker]
        raise ValueError(f"{marker!r} at byte {self.place - 1} begins no value")

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._peek() != b"}":
            name = self._text(self._length())
            if name in found:
                raise ValueError(f"the key {name[:80]!r} is there twice")
            found[name] = self.value(depth + 1)
        self._take(1)
        return found

    def _array(self, depth: int) -> Any:
        kind = None
        if self._peek() == b"$":
            self._take(1)
            kind = self._take(1)
        if self._peek() == b"#":
            self._take(1)
            length = self._length()
            if kind in _NUMBERS:
                return self._numbers(kind, length)
            # Each value has a byte at least: a length that the file cannot have allocates nothing.
            if kind is None and length <= len(self._data) - self.place:
                return [self.value(depth + 1) for _ in range(length)]
            raise ValueError(f"the array at byte {self.place} is longer than the file, or of one type that is no number")
        if kind is not None:
            raise ValueError(f"an array of one type at byte {self.place} has no length")
        items = []
        while self._peek() != b"]":
            items.append(self.value(depth + 1))
        self._take(1)
        return items

    def _numbers(self, kind: bytes, length: int) -> np.ndarray[Any, Any]:
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self._take(length * dtype.itemsize), dtype=dtype)

    def _length(self) -> int:
        marker = self._take(1)
        if marker not in _LENGTHS:
            raise ValueError(f"{marker!r} at byte {self.place - 1} begins no length")
        form = _LENGTHS[marker]
        length: int = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        if length < 0:
            raise ValueError(f"the length before byte {self.place} is negative")
        return length

    def _text(self, length: int) -> str:
        return self._take(length).decode("utf-8")

    def _peek(self) -> bytes:
        return self._data[self.place : self.place + 1]

    def _take(self, length: int) -> bytes:
        end = self.place + length
        if end > len(self._data):
            raise ValueError(f"it ends at byte {len(self._data)}, in the middle of a value")
        found = self._data[self.place : end]
        self.place = end
        return found
