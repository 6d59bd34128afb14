"""Derived instants of the times of a clock: which keys go together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from training.errors import Problem
from training.spec import PipelineSpec

Refuse = Callable[..., tuple[Problem, ...]]
OLD = "    derive:\n"


def new(keys: str) -> tuple[str, str]:
    return OLD, f"{OLD}      read_at: {{{keys}}}\n"


@pytest.mark.parametrize(
    ("keys", "field", "message"),
    [
        (
            "type: timestamp, local: landed_at, zone: UTC",
            "local",
            "landed_at is of type timestamp, an instant already: local is a text or a date",
        ),
        ("type: timestamp, local: flight, zone: UTC", "local", "flight is of type int64, no time: local is a text or a date"),
        ("type: timestamp, local: carrier", "local", "local is of times of a clock"),
        ("type: timestamp, twice: first, sql: landed_at", "twice", "twice is of times of a clock"),
        ("type: string, local: carrier, zone: UTC", "type", "read_at is of type string, and zone makes instants"),
        ("type: timestamp, local: carrier, sql: landed_at, zone: UTC", "local", "there are the keys local and sql"),
        ("type: timestamp, local: carrier, zone: UTC, twice: first, by: [dest]", "by", "by is of twice: in_order"),
        ("type: timestamp, local: carrier, zone: UTC, twice: in_order, by: [area]", "by", "area is not a column of table flights"),
        ("type: timestamp", "sql", "the key sql is missing"),
    ],
)
def test_keys_of_a_clock_that_do_not_go_together_are_refused(refuse: Refuse, keys: str, field: str, message: str) -> None:
    found = [(problem.field, problem.message) for problem in refuse("flight_delay", new(keys))]
    assert (f"data.source.derive.read_at.{field}", message) in found


def test_local_is_the_expression_that_reads_its_column(accept: Callable[..., PipelineSpec]) -> None:
    keys = "type: timestamp, local: carrier, zone: Europe/Berlin, twice: in_order, by: [dest], missing: shift"
    spec = accept("flight_delay", new(keys))
    assert spec.data.source.derive["read_at"].sql == 'CAST("carrier" AS TIMESTAMP)'
    assert PipelineSpec.model_validate(spec.model_dump(mode="json", by_alias=True), context="frozen", strict=False) == spec
