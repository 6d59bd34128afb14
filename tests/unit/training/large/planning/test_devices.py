"""`--devices`: a number and a kind, and what is wrong with other texts."""

from __future__ import annotations

import pytest

from training.errors import SpecError
from training.large.planning.devices import GIB, KINDS, parse_devices


def test_number_and_kind_are_read() -> None:
    devices = parse_devices("32xA100-80GB")
    assert (devices.count, devices.per_node, devices.kind) == (32, 8, KINDS["A100-80GB"])
    assert parse_devices("4xh200-141gb").per_node == 4, "fewer than a node has"
    assert parse_devices("2xcpu", memory_bytes=4 * GIB).usable_bytes == int(3.6 * GIB)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A100-80GB", "is not COUNTxKIND"),
        ("0xT4", "is not COUNTxKIND"),
        ("8 x T4", "is not COUNTxKIND"),
        ("8xB900", "there is no kind 'B900'"),
        ("12xT4", "are no whole nodes of 8"),
        ("999999xT4", "at most 65,536 devices"),
    ],
)
def test_other_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_devices(text)
    (problem,) = caught.value.problems
    assert problem.code == "layout.devices"
    assert message in problem.message
    assert text in problem.message
    assert problem.hint


def test_node_without_devices_is_refused() -> None:
    with pytest.raises(SpecError, match="--per-node must be at least 1, got 0"):
        parse_devices("8xT4", per_node=0)
