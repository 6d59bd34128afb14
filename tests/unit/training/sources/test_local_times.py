"""Times of a clock: each has one instant, and what the YAML does not settle is refused with counts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from training.errors import DataError
from training.sources.derived_columns import derive
from training.sources.interface import PartContent
from training.sources.local_times import ClockRules, instants_of, on_clock
from training.sources.snapshot_files import read_rows
from training.sources.table_contract import TableContract
from training.spec.sections.data import Column
from training.spec.sections.derived import SourceDerived

AUTUMN = [f"2026-10-25 0{time}" for time in ("1:30", "2:00", "2:30", "2:00", "2:30", "3:00")]
SPRING = ["2026-03-29 01:30", "2026-03-29 02:30"]


def instants(texts: list[str | None], *, areas: list[str] | None = None, **keys: Any) -> list[str | None]:
    """Return the derived instants as day and time in UTC."""
    columns = {"x": Column(type="string"), "area": Column(type="string")}
    keys = {"local": "x", **keys} if "sql" not in keys else keys
    derived = {"at": SourceDerived(type="timestamp", zone="Europe/Berlin", **keys)}
    contract = TableContract(name="t", kind="csv", uri="file:///t.csv", columns=columns, derived=derived)
    table = pa.table({"x": pa.array(texts, pa.string()), "area": areas or ["a"] * len(texts)})
    found = derive(contract, table, source="t.csv")["at"].to_pylist()
    return [None if value is None else f"{value.astimezone(UTC):%d %H:%M}" for value in found]


@pytest.mark.parametrize(
    ("texts", "keys", "expected"),
    [
        (AUTUMN, {"twice": "in_order"}, ["24 23:30", "25 00:00", "25 00:30", "25 01:00", "25 01:30", "25 02:00"]),
        (AUTUMN, {"twice": "first"}, ["24 23:30", "25 00:00", "25 00:30", "25 00:00", "25 00:30", "25 02:00"]),
        (AUTUMN, {"twice": "second"}, ["24 23:30", "25 01:00", "25 01:30", "25 01:00", "25 01:30", "25 02:00"]),
        # One row an hour: two equal times are both hours.
        (["2026-10-25 02:00"] * 2, {"twice": "in_order"}, ["25 00:00", "25 01:00"]),
        (SPRING, {"missing": "shift"}, ["29 00:30", "29 01:30"]),
        (["2026-10-26", None], {}, ["25 23:00", None]),
        (["26.10.2026 02:30"], {"sql": "strptime(x, '%d.%m.%Y %H:%M')"}, ["26 01:30"]),
    ],
)
def test_times_of_a_clock_are_instants_as_the_yaml_says(texts: list[str | None], keys: dict[str, Any], expected: list[str | None]) -> None:
    assert instants(texts, **keys) == expected


def test_second_hour_begins_for_each_series_where_its_times_fall() -> None:
    texts: list[str | None] = [time for time in AUTUMN[1:5] for _area in "ab"]
    found = instants(texts, areas=["a", "b"] * 4, twice="in_order", by=("area",))
    assert found == [time for time in ("25 00:00", "25 00:30", "25 01:00", "25 01:30") for _area in "ab"]


@pytest.mark.parametrize(
    ("texts", "keys", "code", "message"),
    [
        (
            AUTUMN,
            {},
            "clock.twice",
            "t.csv: column 'at' of table 't': 4 times shown twice, the first '2026-10-25 02:00:00' in row 2: "
            "at 2026-10-25 03:00 CEST the clock of Europe/Berlin goes back to 2026-10-25 02:00 CET",
        ),
        (SPRING, {}, "clock.missing", "1 time never shown, the first '2026-03-29 02:30:00' in row 2: at 2026-03-29 02:00 CET the clock"),
        (AUTUMN[:3], {"twice": "in_order"}, "clock.twice", "2 times shown twice, and the file's order does not say which"),
        (AUTUMN[1:5] * 2, {"twice": "in_order"}, "clock.twice", "8 times shown twice, and the file's order does not say which"),
        (["2026-10-26 02:30+01:00"], {}, "schema.type", "'2026-10-26 02:30+01:00' in row 1 of 'x' is no time without an offset"),
        (["2026-10-26 02:30+01:00"], {"sql": "CAST(x AS TIMESTAMPTZ)"}, "derive.type", "declared is a time without a zone"),
    ],
)
def test_time_that_is_not_settled_is_refused_with_its_row_and_the_change(
    texts: list[str | None], keys: dict[str, Any], code: str, message: str
) -> None:
    with pytest.raises(DataError) as refused:
        instants(texts, **keys)
    assert refused.value.code == code
    assert message in refused.value.message


@pytest.mark.parametrize("texts", [["2026-10-25 01:00", "2026-10-25 02:00"], ["2026-10-25 02:00", "2026-10-25 03:00"]])
def test_hourly_rows_in_descending_order_are_refused(texts: list[str | None]) -> None:
    both = sorted([*texts, "2026-10-25 02:00"], key=str)
    assert len(set(instants(both, twice="in_order"))) == 3
    with pytest.raises(DataError, match="2 times shown twice, and the file's order does not say which") as refused:
        instants(both[::-1], twice="in_order")
    assert (refused.value.code, "order of time" in refused.value.hint) == ("clock.twice", True)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Santiago", "Australia/Lord_Howe", "America/Havana", "Asia/Kolkata"])
def test_clock_of_two_years_gives_back_every_instant(zone: str) -> None:
    at = pd.date_range("2019-06-01", "2021-06-01", freq="15min", tz="UTC")
    local = at.tz_convert(zone).tz_localize(None).as_unit("us").asi8
    times = on_clock(local, np.ones(len(local), dtype=bool), zone)
    found = instants_of(times, ClockRules("in_order"), pa.table({}), where="")
    assert (found == at.as_unit("us").asi8).all()


def test_texts_of_a_column_with_a_zone_are_read_without_an_offset_and_with_words_for_missing_ones() -> None:
    column = Column(type="timestamp", zone="Europe/Berlin", missing=("-",), nullable=True)
    contract = TableContract(name="t", kind="csv", uri="file:///t.csv", columns={"x": column})
    read = lambda texts: read_rows(contract, PartContent(pa.table({"x": texts})), source="t", limit_bytes=2**20)["x"]  # noqa: E731
    found = read(["2026-10-26 02:30", "-"]).to_pylist()
    assert found == [datetime(2026, 10, 26, 1, 30, tzinfo=UTC), None]
    for text in (AUTUMN[1], SPRING[1], "2026-10-26 02:30Z"):
        with pytest.raises(DataError, match=r"row 2.* without an offset that the clock of Europe/Berlin shows once") as refused:
            read(["2026-10-26 02:30", text])
        assert "number_format" not in refused.value.hint
        assert "data.source.derive" in refused.value.hint
