"""The file of a model from outside: fetched from a place of sources, and known not to be a pickle before anything reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from training.errors import DataError
from training.sources.listing import list_source, read_source, source_object
from training.spec.registration import SAFE_HINT
from training.store.objects import file_digest

MAX_BYTES: Final[Mapping[str, int]] = {"safetensors": 2**31, "xgboost_json": 2**29, "onnx": 2**31 - 1, "transforms": 2**26}
"""Largest file of each format: a model is in the memory of each process that scores with it."""
HEAD_BYTES: Final = 16
_SIGNATURES: Final[Mapping[bytes, str]] = {
    **{bytes([0x80, protocol]): f"a pickle of protocol {protocol}" for protocol in range(2, 6)},
    b"PK\x03\x04": "a zip archive, as torch.save writes, with a pickle in it",
    b"\x1f\x8b": "a gzip file, as joblib writes around a pickle",
    b"\x93NUMPY": "a NumPy array, which may be a pickle",
}
_BEGINNINGS: Final[Mapping[str, Callable[[bytes], bool]]] = {
    "safetensors": lambda head: head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**32,
    "xgboost_json": lambda head: head.lstrip(b" \t\r\n")[:1] == b"{",
    # Fields of a ModelProto: their number times 8, and 0 or 2 for how the value is written.
    "onnx": lambda head: head[:1] != b"" and head[0] % 8 in (0, 2) and 1 <= head[0] // 8 <= 25,
    "transforms": lambda head: head.lstrip(b" \t\r\n")[:1] == b"{",
}


def fetch_artifact(uri: str, path: Path, *, root: str, format_name: str, sha256: str | None) -> str:
    """Copy the file at `uri` to the local `path`; return its SHA-256.

    Args:
        root: the place that a local file must not leave, through symbolic links either.
        format_name: a key of `MAX_BYTES`.
        sha256: that it must have; None: whatever it has.

    Raises:
        DataError: `artifact.missing`, `artifact.folder`, `artifact.too_large`, `artifact.digest`, `artifact.pickle`, `artifact.format`;
            `source.not_a_file`, `source.outside`, `source.changed`.
        UnavailableError: `storage.unavailable`.
        DeniedError: `storage.denied`.
    """
    found = source_object(uri, root)
    if found is None and list_source(uri, root):
        raise DataError("artifact.folder", f"{uri} is a folder", hint="name the file in it")
    if found is None:
        raise DataError("artifact.missing", f"{uri} does not exist", hint="correct the URI, or put the file there")
    if found.size_bytes > MAX_BYTES[format_name]:
        message = f"{uri} has {found.size_bytes:,} bytes, at most {MAX_BYTES[format_name]:,} are read of {format_name}"
        raise DataError("artifact.too_large", message, hint="make the model smaller")
    read_source(uri, found.version, path, root=root)
    check_beginning(path, format_name, name=uri)
    digest = file_digest(path)
    if sha256 is not None and digest != sha256:
        message = f"{uri} has the SHA-256 {digest}, the request says {sha256}"
        raise DataError("artifact.digest", message, hint="it is another file, or was replaced: correct one of the two")
    return digest


def check_beginning(path: Path, format_name: str, *, name: str) -> None:
    """Refuse a pickle, and a file that does not begin as its format does.

    Raises:
        DataError: `artifact.pickle`, `artifact.format`.
    """
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    # A length of a header of safetensors may begin with the bytes of a pickle.
    if _BEGINNINGS[format_name](head):
        return
    for signature, words in _SIGNATURES.items():
        if head.startswith(signature):
            raise DataError("artifact.pickle", f"{name} is {words}: loading one runs its code", hint=SAFE_HINT)
    # Whatever the file is, a message has none of it.
    message = f"{name} does not begin as {format_name} does" if head else f"{name} is empty, not {format_name}"
    raise DataError("artifact.format", message, hint="correct `format`, or write the file again")
