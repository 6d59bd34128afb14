"""The point-in-time join: nothing that was not known, nothing too old, nothing ambiguous."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.data.join.contract import JoinedTable, MainTable
from training.data.join.engines import duckdb as duckdb_engine
from training.data.join.engines.duckdb import DuckDBEngine
from training.errors import DataError

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
AS_OF = datetime(2026, 6, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
TYPES = {"at": pa.timestamp("us", tz="UTC"), "landed": pa.timestamp("us", tz="UTC"), "delay": pa.int64(), "temp": pa.float64()}


def write(path: Path, columns: Mapping[str, Sequence[Any]]) -> Path:
    table = pa.table({name: pa.array(values, type=TYPES.get(name)) for name, values in columns.items()})
    pq.write_table(table, path)
    return path


@pytest.fixture
def main(tmp_path: Path) -> MainTable:
    path = write(
        tmp_path / "main.parquet",
        {
            "id": [3, 1, 2],
            "place": ["b", "a", "a"],
            "at": [NOON, NOON, NOON + HOUR],
            "delay": [20, 3, 15],
            "landed": [NOON + HOUR, NOON + HOUR, AS_OF + HOUR],
        },
    )
    return MainTable(
        name="trips",
        paths=[path],
        columns={name: name for name in ("id", "place", "at", "delay", "landed")},
        event_time="at",
        key=["id"],
        decision_lead=2 * HOUR,
        label_column="delay",
        label_rule="> 15",
    )


def weather(tmp_path: Path, hours: Sequence[float], **changes: Any) -> JoinedTable:
    """Return weather at place a, so many hours after noon; its temperature is that number."""
    columns = {"place": ["a"] * len(hours), "at": [NOON + n * HOUR for n in hours], "temp": [float(n) for n in hours]}
    table = JoinedTable(
        name="weather",
        paths=[write(tmp_path / "weather.parquet", columns)],
        on={"place": "place"},
        columns={"temp": "temp"},
        event_time="at",
        available_after=HOUR,
    )
    return dataclasses.replace(table, **changes)


def join(tmp_path: Path, main: MainTable, *features: JoinedTable) -> pd.DataFrame:
    frame = DuckDBEngine(tmp_path, lambda _done, _total, _unit: None).join(main, features, as_of=AS_OF)
    return pa.concat_tables(frame.batches()).to_pandas()


def refusal(tmp_path: Path, main: MainTable, *features: JoinedTable) -> DataError:
    with pytest.raises(DataError) as caught:
        join(tmp_path, main, *features)
    return caught.value


def test_frame_is_in_the_order_of_event_time_and_key_with_the_label_last(tmp_path: Path, main: MainTable) -> None:
    frame = join(tmp_path, main)
    assert frame["id"].tolist() == [1, 3, 2]
    assert list(frame.columns) == ["id", "place", "at", "delay", "landed", "label"]
    assert frame["label"].tolist() == [0.0, 1.0, 0.0]
    assert frame["label"].dtype == np.float64


@pytest.mark.parametrize(
    ("hours", "seen"),
    [([-4, -3, -2], -3.0), ([-2.99], None), ([-3.0], -3.0), ([-10, -9], -9.0)],
    ids=["newest that was available", "a minute too late", "just in time", "old but the newest"],
)
def test_fact_is_the_newest_that_was_available_at_the_decision(
    tmp_path: Path, main: MainTable, hours: list[float], seen: float | None
) -> None:
    # Row 1: event at noon, decided two hours before, and a fact is available an hour after its time.
    frame = join(tmp_path, main, weather(tmp_path, hours)).set_index("id")
    assert (None if np.isnan(frame.loc[1, "temp"]) else frame.loc[1, "temp"]) == seen
    assert np.isnan(frame.loc[3, "temp"])  # another place


def test_fact_older_than_max_age_at_the_decision_is_missing(tmp_path: Path, main: MainTable) -> None:
    assert join(tmp_path, main, weather(tmp_path, [-5], max_age=3 * HOUR)).set_index("id").loc[1, "temp"] == -5
    assert np.isnan(join(tmp_path, main, weather(tmp_path, [-5], max_age=2.99 * HOUR)).set_index("id").loc[1, "temp"])


def test_dimension_is_joined_without_dropping_or_doubling_rows_and_under_its_new_name(tmp_path: Path, main: MainTable) -> None:
    places = JoinedTable(
        name="places",
        paths=[write(tmp_path / "places.parquet", {"code": ["b", None, None], "delay": [7, 8, 9]})],
        on={"place": "code"},
        columns={"delay": "usual_delay"},
    )
    frame = join(tmp_path, main, places)
    assert len(frame) == 3
    assert frame.set_index("id")["usual_delay"].to_dict() == pytest.approx({1: np.nan, 3: 7.0, 2: np.nan}, nan_ok=True)
    assert frame.set_index("id")["delay"].to_dict() == {1: 3, 3: 20, 2: 15}


@pytest.mark.parametrize("timed", [True, False], ids=["point in time", "dimension"])
def test_key_that_occurs_twice_in_a_feature_table_is_refused(tmp_path: Path, main: MainTable, timed: bool) -> None:
    table = weather(tmp_path, [-4, -4], **({} if timed else {"event_time": None}))
    error = refusal(tmp_path, main, table)
    assert error.code == "join.duplicate_key"
    assert "1 keys stand more than once: place='a'" in error.message


def test_integers_from_2_53_beside_a_missing_one_are_joined_by_all_their_digits(tmp_path: Path, main: MainTable) -> None:
    large = 2**53
    rows = pq.read_table(main.paths[0]).append_column("user", pa.array([large, None, large + 1], pa.int64()))
    pq.write_table(rows, main.paths[0])
    main = dataclasses.replace(main, columns={**main.columns, "user": "user"})
    on = {"user": "user"}
    seen = {"user": [large + 1, large, None], "at": [NOON - 9 * HOUR] * 3, "clicks": [11, 10, 12]}
    clicks = JoinedTable(name="clicks", paths=[write(tmp_path / "c.parquet", seen)], on=on, columns={"clicks": "c"}, event_time="at")
    ages = JoinedTable(
        name="ages", paths=[write(tmp_path / "ages.parquet", {"user": [large + 1, large], "age": [31, 30]})], on=on, columns={"age": "age"}
    )

    frame = join(tmp_path, main, clicks, ages).sort_values("id")

    ids = rows["id"].to_pylist()
    expected = {ids[0]: (10, 30), ids[2]: (11, 31)}
    assert {int(row.id): (row.c, row.age) for row in frame.itertuples() if not np.isnan(row.age)} == expected
    assert frame["c"].isna().sum() == 1


def test_row_whose_label_is_not_known_yet_is_left_out(tmp_path: Path, main: MainTable) -> None:
    assert join(tmp_path, dataclasses.replace(main, label_known_at="landed"))["id"].tolist() == [1, 3]


def test_label_without_rule_is_the_columns_value(tmp_path: Path, main: MainTable) -> None:
    assert join(tmp_path, dataclasses.replace(main, label_rule=None))["label"].tolist() == [3.0, 20.0, 15.0]


def test_label_that_is_the_name_of_a_class_stays_a_text(tmp_path: Path, main: MainTable) -> None:
    by_place = dataclasses.replace(main, label_column="place", label_rule=None, label_is_text=True)
    assert join(tmp_path, by_place)["label"].tolist() == ["a", "b", "a"]


def test_empty_text_is_no_class(tmp_path: Path, main: MainTable) -> None:
    columns = {**pq.read_table(main.paths[0]).to_pydict(), "place": ["b", "", None]}
    write(tmp_path / "main.parquet", columns)
    with pytest.raises(DataError, match="2 of 3 rows have none, limit 0: id=1; id=2") as caught:
        join(tmp_path, dataclasses.replace(main, label_column="place", label_rule=None, label_is_text=True))
    assert caught.value.code == "data.nulls"


def test_missing_label_is_refused_and_names_the_row(tmp_path: Path, main: MainTable) -> None:
    write(tmp_path / "main.parquet", {"id": [8, 9], "place": ["a", "a"], "at": [NOON, NOON], "delay": [1, None], "landed": [NOON, NOON]})
    error = refusal(tmp_path, main)
    assert error.code == "data.nulls"
    assert "1 of 2 rows have none, limit 0: id=9" in error.message


def test_row_that_repeats_a_key_is_refused(tmp_path: Path, main: MainTable) -> None:
    write(tmp_path / "main.parquet", {"id": [8, 8], "place": ["a", "b"], "at": [NOON, NOON], "delay": [1, 1], "landed": [NOON, NOON]})
    assert refusal(tmp_path, main).code == "data.duplicate_key"


def test_missing_column_is_refused(tmp_path: Path, main: MainTable) -> None:
    error = refusal(tmp_path, main, weather(tmp_path, [-4], columns={"wind": "wind"}))
    assert (error.code, error.message) == ("schema.missing", "table 'weather' lacks 'wind'")


def test_two_columns_of_one_name_are_refused(tmp_path: Path, main: MainTable) -> None:
    assert refusal(tmp_path, main, weather(tmp_path, [-4], columns={"temp": "delay"})).code == "schema.clash"


def test_file_that_is_no_parquet_is_refused(tmp_path: Path, main: MainTable) -> None:
    (tmp_path / "main.parquet").write_text("id,place\n1,a\n")
    assert refusal(tmp_path, main).code == "data.format"


def test_join_cannot_read_files_outside_of_its_folder(tmp_path: Path, main: MainTable) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    assert refusal(inside, main).code == "data.format"


def test_fact_from_after_the_decision_is_found_after_any_join(tmp_path: Path, main: MainTable, monkeypatch: pytest.MonkeyPatch) -> None:
    # A join that forgets the lead: the check after it must not rely on it.
    honest = duckdb_engine._join

    def careless(main: MainTable, table: JoinedTable, alias: str) -> str:
        return honest(dataclasses.replace(main, decision_lead=timedelta()), table, alias)

    monkeypatch.setattr(duckdb_engine, "_join", careless)
    error = refusal(tmp_path, main, weather(tmp_path, [-2.5]))
    assert error.code == "leakage.time"
    assert error.message == "1 of 3 rows have facts of 'weather' from after the decision: id=1"
