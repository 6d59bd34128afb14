"""Columns that ingest writes: which the YAML may declare."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from training.errors import Problem
from training.sources.table_contract import contracts_of
from training.spec import PipelineSpec

Refuse = Callable[..., tuple[Problem, ...]]


@pytest.mark.parametrize(
    ("pipeline", "old", "new", "field", "message"),
    [
        (
            "flight_delay",
            "carrier: {type: string}",
            "carrier: {type: string, generated: row_number}",
            "columns.carrier.type",
            "carrier is of type string, and row_number is of type int64",
        ),
        (
            "flight_delay",
            "flight: {type: int64}",
            "flight: {type: int64, generated: row_number, source_name: nr}",
            "columns.flight.source_name",
            "flight has the key generated, so it is not in the file",
        ),
        (
            "flight_delay",
            "flight: {type: int64}",
            "flight: {type: timestamp, generated: partition_start}",
            "columns.flight.generated",
            "partition_start needs a partition",
        ),
    ],
)
def test_generated_column_that_cannot_be_written_is_refused(
    refuse: Refuse, pipeline: str, old: str, new: str, field: str, message: str
) -> None:
    found = [(problem.field, problem.message) for problem in refuse(pipeline, (old, new))]
    assert (f"data.source.{field}", message) in found


def test_contract_says_what_is_generated_and_by_which_clock(accept: Callable[..., PipelineSpec]) -> None:
    main, weather, _ = contracts_of(accept("flight_delay", ("flight: {type: int64}", "flight: {type: int64, generated: row_number}")))
    assert main.columns["flight"].generated == "row_number"
    assert main.timezone == weather.timezone == "America/New_York"


def test_generated_column_may_be_called_as_another_one_is_in_the_file(accept: Callable[..., PipelineSpec]) -> None:
    new = "flight: {type: int64, generated: row_number}\n      flight_number: {type: int64, source_name: flight}"
    main = contracts_of(accept("flight_delay", ("flight: {type: int64}", new)))[0]
    assert main.at_source().columns["flight"].source_name == "flight"
    assert list(main.source_names.items()) == [("flight_number", "flight")]
