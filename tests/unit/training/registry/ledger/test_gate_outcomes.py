"""The word for one gate's outcome."""

from __future__ import annotations

from typing import Any

import pytest

from training.registry.ledger.gate_outcomes import verdict


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ({"passed": True, "severity": "warn"}, "pass"),
        ({"passed": False, "severity": "fail"}, "FAIL"),
        ({"passed": False, "severity": "warn"}, "warn"),
        ({"passed": False, "severity": "approve"}, "ask"),
        # A person's answer has no severity.
        ({"passed": False}, "FAIL"),
    ],
)
def test_gate_that_only_warns_or_asks_is_not_shown_as_a_failure(reason: dict[str, Any], word: str) -> None:
    assert verdict(reason) == word
