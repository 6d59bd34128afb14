"""Columns that the file has as texts: which forms of numbers the YAML may declare."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from training.errors import Problem

Refuse = Callable[..., tuple[Problem, ...]]


@pytest.mark.parametrize(
    ("old", "new", "field", "message"),
    [
        (
            "carrier: {type: string}",
            'carrier: {type: string, number_format: {decimal: ","}}',
            "carrier.number_format",
            "number_format is of numbers, and carrier is of type string",
        ),
        (
            "flight: {type: int64}",
            'flight: {type: int64, number_format: {thousands: "."}}',
            "flight.number_format.thousands",
            "'.' cannot be before the fraction and between thousands",
        ),
        (
            "flight: {type: int64}",
            'flight: {type: int64, generated: row_number, missing: ["?"]}',
            "flight.missing",
            "flight has the key generated, so the file has no texts of it",
        ),
    ],
)
def test_form_that_no_numbers_can_have_is_refused(refuse: Refuse, old: str, new: str, field: str, message: str) -> None:
    found = [(problem.field, problem.message) for problem in refuse("flight_delay", (old, new))]
    assert (f"data.source.columns.{field}", message) in found
