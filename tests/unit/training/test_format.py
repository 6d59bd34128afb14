"""Numbers as people read them: one formatter for pages, the terminal, approvals and the reasons of gates."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from training.format import brief, change, figure, learned_words
from training.runtime.provenance import CHECKOUT

STORED = "training/validation/results.py"
"""Rounds numbers that are stored, so it does not follow changes of texts."""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.634936, "0.6349"),
        (0.001, "0.001"),
        (0.0000123456, "1.23456e-05"),
        (12345.678, "12,345.7"),
        (1154019916722995201, "1,154,019,916,722,995,201"),
        (64, "64"),
        (None, "–"),
        (math.nan, "not a number"),
        ("-inf", "minus infinite"),
        (True, "True"),
        ("adamw", "adamw"),
    ],
)
def test_brief_number_has_four_significant_digits_and_whole_numbers_all(value: Any, text: str) -> None:
    assert brief(value) == text


def test_figures_of_reasons_have_six_significant_digits_and_changes_a_sign() -> None:
    assert [figure(value) for value in (0.75902512, 1, -1234567.0)] == ["0.759025", "1", "-1.23457e+06"]
    assert [change(value) for value in (0.0222, -0.0222, 0.0)] == ["+0.0222", "-0.0222", "+0"]


def test_no_other_module_has_a_formatter_of_six_significant_digits() -> None:
    found = {
        str(path.relative_to(CHECKOUT))
        for folder in ("training", "plugins", "devstack")
        for path in (CHECKOUT / folder).rglob("*.py")
        if re.search(r":[+]?\.6g\b", path.read_text(encoding="utf-8"))
    }
    assert found == {"training/format.py", STORED}


BOUNDS = {
    "train": ["2026-01-01T00:00:00+00:00", "2026-01-20T00:00:00+00:00"],
    "validation": ["2026-01-20T00:30:00+00:00", "2026-01-25T00:00:00+00:00"],
    "test": ["2026-01-25T00:30:00+00:00", "2026-02-01T00:00:00+00:00"],
}


def test_rows_that_a_model_has_learned_from_go_to_the_end_of_the_validation_after_a_refit() -> None:
    assert learned_words(BOUNDS) == "rows until 2026-01-20 00:00 UTC; the newest 12 days are in validation and test only"
    refit = {**BOUNDS, "train": [BOUNDS["train"][0], BOUNDS["validation"][1]]}
    assert learned_words(refit) == "rows until 2026-01-25 00:00 UTC; the newest 7 days are in test only"


def test_splits_that_are_not_divided_by_time_and_models_from_outside_have_no_such_words() -> None:
    assert learned_words(dict.fromkeys(BOUNDS, BOUNDS["train"])) == ""
    assert learned_words({"test": BOUNDS["test"]}) == ""
