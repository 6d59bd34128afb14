"""Files that hold something else than their name says: a workbook or gzip as CSV, CSV as Parquet. Standard library only."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Final, Literal

from training.errors import DataError

HEAD_BYTES: Final = 4096
UNPACK: Final = "decompress it; text may be compressed as .gz or .zst, if its name says so"
SHEET: Final = "save its sheet as CSV UTF-8"
TEXT: Final = "save it as UTF-8"
BY_NAME: Final = "name it after what it holds (.csv, .jsonl, .parquet), and correct `kind`"
STARTS: Final = (
    (rb"\x1f\x8b", "gzip", UNPACK),
    (rb"\x28\xb5\x2f\xfd", "Zstandard", UNPACK),
    (rb"BZh[1-9]1AY&SY", "bzip2", UNPACK),
    (rb"\xfd7zXZ\0", "xz", UNPACK),
    (rb"PK\x03\x04", "a zip archive", UNPACK),
    (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a workbook of Excel", SHEET),
    (rb"PAR1", "Parquet", BY_NAME),
    (rb"ARROW1\0\0", "Arrow", "write it as Parquet"),
    (rb"SQLite format 3\0", "an SQLite database", "write its table as CSV or Parquet"),
    (rb"\xff\xfe|\xfe\xff", "UTF-16", TEXT),
)
"""How a file begins, what it is, and what to do."""
JSON: Final = re.compile(rb'(\xef\xbb\xbf)?\s*(\{\s*"|\[\s*([\[{"\d]|$))')


def other_content(path: Path, *, source: str, wanted: Literal["text", "CSV", "Parquet"]) -> DataError | None:
    """Return the error `format.content` of a file that holds another format; None: nothing says that it does.

    Args:
        source: what to call the file in messages.
    """
    with path.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
        stream.seek(max(0, path.stat().st_size - 4))
        is_parquet = head.startswith(b"PAR1") and stream.read() == b"PAR1"
    what, hint = next(((what, hint) for start, what, hint in STARTS if re.match(start, head)), ("", ""))
    if what == "a zip archive" and _is_workbook(path):
        what, hint = "a workbook", SHEET
    if not what and wanted != "text" and JSON.match(head):
        what, hint = "JSON", BY_NAME
    if not what and wanted == "Parquet" and head and _is_text(head):
        what, hint = "text", BY_NAME
    # Letters may begin like Parquet, and what is cut off is said by its reader.
    if not what or (what == "Parquet" and (wanted == "Parquet" or not is_parquet)):
        return None
    return DataError("format.content", f"{source} holds {what}, not {wanted}", hint=hint)


def refuse_content(path: Path, *, source: str, wanted: Literal["text", "CSV"]) -> None:
    """Raise what `other_content` returns."""
    if (other := other_content(path, source=source, wanted=wanted)) is not None:
        raise other


def not_utf8(byte: int) -> str:
    """Return what is wrong with a byte: most files that are not UTF-8 are of Windows."""
    letter = bytes([byte]).decode("cp1252", errors="ignore")
    return f"byte 0x{byte:02x} is not UTF-8" + (f" ({letter} in cp1252, which Windows writes)" if letter.isprintable() and letter else "")


def _is_workbook(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name == "content.xml" or name.startswith("xl/") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False


def _is_text(head: bytes) -> bool:
    # The last letter may be cut.
    return b"\0" not in head and "�" not in head[:-3].decode("utf-8", errors="replace")[:-1]
