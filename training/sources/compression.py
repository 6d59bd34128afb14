"""Compressed text files: gzip (`.gz`) and Zstandard (`.zst`), by the suffix of their names, decompressed to a file of limited size.

Arrow decompresses: it verifies the checksums, reads several members one after another, and refuses a stream that ends too early.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa

from training.errors import DataError
from training.sources.content import refuse_content
from training.sources.size_limits import check_size

CODECS: Final = {".gz": "gzip", ".zst": "zstd"}
BLOCK_BYTES: Final = 4 * 1024 * 1024


def plain_file(path: Path, folder: Path, *, source: str, limit_bytes: int) -> Path:
    """Return a file with the decompressed content of `path`: a new one in `folder`, or `path` where its name has no suffix of a codec.

    Args:
        path: of the copy of the file; any name.
        folder: on the local disk; it holds at most one block more than the limit.
        source: what to call the file in messages; its suffix decides.
        limit_bytes: the largest size of the content.

    Raises:
        DataError: `format.content`, it holds no text; `format.compression`, the stream is not of that codec, damaged, or ends too early;
            `source.too_large`, as soon as more than the limit is decompressed.
    """
    codec = CODECS.get(Path(source).suffix.lower())
    plain = path if codec is None else _decompressed(path, folder, codec, source=source, limit_bytes=limit_bytes)
    refuse_content(plain, source=source, wanted="text")
    return plain


def _decompressed(path: Path, folder: Path, codec: str, *, source: str, limit_bytes: int) -> Path:
    written, size_bytes = folder / "decompressed", 0
    if path.stat().st_size == 0:
        raise _damaged(source, codec, "it has 0 bytes")
    try:
        with pa.OSFile(str(path)) as stored, pa.CompressedInputStream(stored, codec) as stream, written.open("wb") as out:
            while block := stream.read(BLOCK_BYTES):
                size_bytes += len(block)
                check_size(size_bytes, limit_bytes, what=f"{source}, decompressed")
                out.write(block)
    except pa.ArrowInvalid as err:
        raise _damaged(source, codec, str(err)) from err
    except OSError as err:
        if err.errno is not None:
            raise  # Of the disk, not of the stream.
        raise _damaged(source, codec, str(err)) from err
    return written


def _damaged(source: str, codec: str, reason: str) -> DataError:
    hint = "write the file again; a name without .gz or .zst is read as it is"
    return DataError("format.compression", f"{source} cannot be decompressed as {codec}: {reason}", hint=hint)
