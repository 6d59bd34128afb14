"""Packs: the small files of an artifact in one piece of bytes, compressed.

A pack is a line of JSON, the names and sizes of its files, and the zlib stream of their contents in this order. A small run makes a
dozen files of a few kB: each as an object of its own would cost a writer two requests and each reader one.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Final

from training.contracts import canonical_json

PACKED_FILE_BYTES: Final = 64 * 1024
"""Larger files stay objects: equal content is stored once, and is read in ranges."""
PACKED_BYTES: Final = 256 * 1024
"""Of one manifest: who reads it for its facts reads the pack, too."""


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return the pack of some files, empty where there are none."""
    if not files:
        return b""
    index = [[name, len(content)] for name, content in files.items()]
    return canonical_json(index) + b"\n" + zlib.compress(b"".join(files.values()))


def unpack(data: bytes) -> dict[str, bytes]:
    """Return the files of a pack, by name.

    Raises:
        ValueError: it is no pack.
    """
    if not data:
        return {}
    head, _, stream = data.partition(b"\n")
    inflater = zlib.decompressobj()
    try:
        index = [(str(name), int(size_bytes)) for name, size_bytes in json.loads(head)]
        # One byte more than there may be: a damaged stream is not inflated to the end of the memory.
        contents = inflater.decompress(stream, PACKED_BYTES + 1)
    except (zlib.error, TypeError, RecursionError) as err:
        raise ValueError(str(err)) from err
    found, start = {}, 0
    for name, size_bytes in index:
        found[name] = contents[start : start + size_bytes]
        start += size_bytes
    if start != len(contents) or any(size_bytes < 0 for _, size_bytes in index):
        raise ValueError(f"its files have {start} bytes, it has {len(contents)}")
    return found
