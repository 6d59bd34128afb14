"""Columns that ingest writes: the number of a row in its file, and the begin of its partition."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from training.sources.interface import PartContent
from training.sources.snapshot_files import read_rows
from training.sources.table_contract import TableContract
from training.spec.sections.data import Column

CONTRACT = TableContract(
    name="orders",
    kind="parquet",
    columns={
        "row": Column(type="int64", generated="row_number"),
        "value": Column(type="string", source_name="Value"),
        "day_at": Column(type="timestamp", generated="partition_start"),
    },
    timezone="Europe/Berlin",
    partitioned=True,
)


@pytest.mark.parametrize(
    ("partition", "start"),
    [
        ("2026-03-30", datetime(2026, 3, 29, 22, tzinfo=UTC)),
        ("2026-01", datetime(2025, 12, 31, 23, tzinfo=UTC)),
        ("2026-01-31T06", datetime(2026, 1, 31, 5, tzinfo=UTC)),
        (None, None),
    ],
)
def test_generated_columns_have_their_places_and_the_partition_begins_by_the_pipelines_clock(
    partition: str | None, start: datetime | None
) -> None:
    rows = pa.table({"Value": ["a", "b"]})
    found = read_rows(CONTRACT, PartContent(rows), source="part", limit_bytes=2**20, partition=partition)
    assert found.to_pydict() == {"row": [0, 1], "value": ["a", "b"], "day_at": [start, start]}
    assert [str(kind) for kind in found.schema.types] == ["int64", "string", "timestamp[us, tz=UTC]"]


def test_source_does_not_see_generated_columns_and_its_files_are_not_kept() -> None:
    assert list(CONTRACT.at_source().columns) == ["Value"]
    alone = replace(CONTRACT, columns={"row": CONTRACT.columns["row"]})
    assert (alone.is_kept_as_is, replace(CONTRACT, columns={"a": Column(type="int64")}).is_kept_as_is) == (False, True)
