"""Headers of safetensors that were written by hand: refused by a code, in time and memory that the file's size bounds."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from training.engine.checkpoint.safetensors_import import MAX_DIMENSIONS, MAX_HEADER_BYTES, read_header
from training.errors import DataError

FOUR = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def read(header: dict[str, Any] | bytes, num_bytes: int = 4) -> Any:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + bytes(num_bytes)
    return read_header("the file", io.BytesIO(data), len(data))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        # The product of millions of numbers takes hours.
        ({"shape": [1] * (MAX_DIMENSIONS + 1)}, "at most 64 numbers"),
        ({"shape": [2**63, 0], "data_offsets": [0, 0]}, "2^63"),
        ({"shape": {"a": 1}}, "not a list"),
        ({"shape": [True]}, "whole numbers"),
        ({"shape": [-1], "data_offsets": [4, 0]}, "whole numbers"),
        ({"data_offsets": [0, 10**400]}, "2^63"),
        ({"data_offsets": [0, 4, 8]}, "unpack"),
        ({"dtype": ["F32"]}, "unhashable"),
    ],
)
def test_a_tensor_that_no_file_can_have_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=r"weights\.unreadable") as refused:
        read({"weight": {**FOUR, **change}})
    assert words in str(refused.value)


@pytest.mark.parametrize("name", ["\ud800", "a\nb", "\x1b[2J", "\u202e", "a" * 1001])
def test_a_name_that_a_log_or_a_database_cannot_show_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="not printable") as refused:
        read({name: FOUR})
    refused.value.message.encode()
    assert len(refused.value.message) < 500


def test_as_many_dimensions_as_torch_has_are_read() -> None:
    tensors, num_bytes = read({"weight": {**FOUR, "shape": [1] * MAX_DIMENSIONS}})
    assert (list(tensors), num_bytes) == (["weight"], 4)


def test_a_header_of_more_than_16_mib_is_refused_before_it_is_read() -> None:
    length = MAX_HEADER_BYTES + 1
    file = io.BytesIO(length.to_bytes(8, "little") + b"{")
    with pytest.raises(DataError, match="its header has 16,777,217 bytes, at most 16,777,216 are read"):
        read_header("the file", file, 8 + length)
    assert file.tell() == 8
