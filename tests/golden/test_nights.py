"""Two nights of three pipelines come to what they came to before: any change of it is meant, and in the changelog."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from tests.golden.nights import CASES, FILE, nights_of, setting

RELATIVE = 1e-5
NUMBER = re.compile(r"[-+]?\d+\.\d+(?:e[-+]?\d+)?")


def differences(found: Any, expected: Any, *, exact: bool, path: str = "") -> list[str]:
    """Return where two results differ; unless `exact`, digests and the numbers in texts are left out, and numbers may differ by 1e-5."""
    if isinstance(found, dict) and isinstance(expected, dict):
        wrong = [f"{path}/{name} is in one of them only" for name in sorted(set(found) ^ set(expected))]
        return wrong + [
            line
            for name in sorted(set(found) & set(expected))
            for line in differences(found[name], expected[name], exact=exact, path=f"{path}/{name}")
        ]
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        return [
            line
            for number, pair in enumerate(zip(found, expected, strict=True))
            for line in differences(*pair, exact=exact, path=f"{path}/{number}")
        ]
    if not exact:
        if path.rpartition("/")[2].endswith("digest"):
            return []
        if isinstance(found, float) and isinstance(expected, float):
            return [] if math.isclose(found, expected, rel_tol=RELATIVE) else [f"{path}: {found}, expected {expected}"]
        if isinstance(found, str) and isinstance(expected, str) and NUMBER.sub("#", found) == NUMBER.sub("#", expected):
            # They are those of the gates, rounded.
            return []
    return [] if found == expected else [f"{path}: {found}, expected {expected}"]


@pytest.mark.parametrize(
    "case", ["cancelled_orders", *(pytest.param(name, marks=pytest.mark.long) for name in CASES if name != "cancelled_orders")]
)
def test_two_nights_have_the_digests_metrics_and_gates_of_the_recorded_ones(case: str, tmp_path: Path) -> None:
    recorded = json.loads(FILE.read_text(encoding="utf-8"))

    found = json.loads(json.dumps(nights_of(case, tmp_path)))

    assert differences(found, recorded["nights"][case], exact=setting() == recorded["setting"]) == []


def test_numbers_in_texts_are_compared_only_where_all_is_exact() -> None:
    recorded = {"reasons": "auc gain -0.00233051, required > 0"}
    rounded = {"reasons": "auc gain -0.00233052, required > 0"}
    other = {"reasons": "auc gain -0.00233051, required > 0.1"}

    assert differences(rounded, recorded, exact=False) == []
    assert len(differences(rounded, recorded, exact=True)) == 1
    assert len(differences(other, recorded, exact=False)) == 1


def test_a_changed_digest_number_or_gate_is_a_difference() -> None:
    night = {"train": {"digest": "a", "scalars": {"loss": 0.5}}, "gates": [{"gate": "minimum", "passed": True}]}
    close = {**night, "train": {"digest": "b", "scalars": {"loss": 0.5000001}}}
    worse = {**night, "train": {"digest": "a", "scalars": {"loss": 0.51}}}
    other = {**night, "gates": [{"gate": "minimum", "passed": False}]}

    assert differences(close, night, exact=True) == ["/train/digest: b, expected a", "/train/scalars/loss: 0.5000001, expected 0.5"]
    assert differences(close, night, exact=False) == []
    for exact in (True, False):
        assert differences(worse, night, exact=exact) == ["/train/scalars/loss: 0.51, expected 0.5"]
        assert differences(other, night, exact=exact) == ["/gates/0/passed: False, expected True"]
        assert differences({**night, "gates": []}, night, exact=exact)
