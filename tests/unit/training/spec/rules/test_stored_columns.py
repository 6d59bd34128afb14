"""Keys that say what the values of a Parquet file mean: which columns may have them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from training.errors import Problem
from training.spec import PipelineSpec

Refuse = Callable[..., tuple[Problem, ...]]


@pytest.mark.parametrize(
    ("pipeline", "old", "new", "field", "message"),
    [
        (
            "flight_delay",
            "flight: {type: int64}",
            "flight: {type: int64, scale: 2}",
            "flight.scale",
            "scale is of columns of Parquet files",
        ),
        (
            "search_ranking",
            "price: {type: float}",
            "price: {type: float, stored_as: decimal}",
            "price.type",
            "price is of type float, and stored_as is of type double",
        ),
        ("search_ranking", "price: {type: float}", "price: {type: float, scale: 1}", "price.type", "scale is of type int64"),
        ("search_ranking", "price: {type: float}", "price: {type: float, zone: UTC}", "price.type", "zone is of type timestamp"),
        (
            "search_ranking",
            "price: {type: float}",
            "price: {type: timestamp, zone: UTC, stored_as: int96_utc}",
            "price.zone",
            "price has the keys stored_as and zone",
        ),
        (
            "search_ranking",
            "price: {type: float}",
            "price: {type: int64, generated: row_number, scale: 1}",
            "price.scale",
            "price is not in the file",
        ),
        (
            "search_ranking",
            "price: {type: float}",
            "price: {type: timestamp, generated: partition_start, zone: UTC}",
            "price.zone",
            "zone is of columns of files, and price is not in the file",
        ),
        ("search_ranking", "price: {type: float}", "price: {type: timestamp, zone: Mars/Base}", "price.zone", "there is no time zone"),
    ],
)
def test_key_that_nothing_would_read_is_refused(refuse: Refuse, pipeline: str, old: str, new: str, field: str, message: str) -> None:
    found = [problem.message for problem in refuse(pipeline, (old, new)) if problem.field == f"data.source.columns.{field}"]
    assert any(message in each for each in found), found


def test_time_of_a_parquet_file_may_have_a_zone(accept: Callable[..., PipelineSpec]) -> None:
    spec = accept("search_ranking", ("shown_at: {type: timestamp}", "shown_at: {type: timestamp, zone: Europe/Berlin}"))
    assert spec.data.source.columns["shown_at"].zone == "Europe/Berlin"
