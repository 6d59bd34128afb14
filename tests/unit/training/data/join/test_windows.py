"""Columns of a row's history are what a plain loop over all rows says, and hold nothing that was not known at the decision."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.training.data.window_oracle import Row, oracle
from training.data.join import windows as windows_module
from training.data.join.contract import JoinedTable, MainTable
from training.data.join.engines import duckdb_windows
from training.data.join.engines.duckdb import DuckDBEngine
from training.data.join.windows import WindowColumn

INSTANT = pa.timestamp("us", tz="UTC")
MAIN_TYPES = {
    "id": pa.int64(), "place": pa.string(), "line": pa.int64(), "at": INSTANT, "landed": INSTANT, "delay": pa.int64(), "fare": pa.float64(),
    "note": pa.string(), "flag": pa.bool_(),
}  # fmt: skip
FACT_TYPES = {"town": pa.string(), "seen": INSTANT, "told": INSTANT, "temp": pa.float64(), "rain": pa.int64()}
AS_OF = datetime(2027, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
WHERES = {
    "delay > 3": lambda row: row["delay"] is not None and row["delay"] > 3,
    "flag": lambda row: row["flag"] is True,
    "rain % 2 = 0": lambda row: row["rain"] is not None and row["rain"] % 2 == 0,
}
FUNCTIONS = ("sum", "mean", "min", "max", "count", "std", "distinct")
DURATIONS = (HOUR / 60, HOUR / 2, HOUR, 3 * HOUR, 24 * HOUR, 7 * 24 * HOUR)
# The hour that the clocks of New York skip, and the one they repeat, lie in these days.
DAYS = (datetime(2026, 3, 7, tzinfo=ZoneInfo("America/New_York")), datetime(2026, 10, 31, tzinfo=ZoneInfo("America/New_York")))


def write(path: Path, rows: Sequence[Row], types: Mapping[str, pa.DataType]) -> list[Path]:
    """Write rows in two files, so that the number of a row is not its place in one."""
    paths = []
    for number, part in enumerate((rows[::2], rows[1::2])):
        paths.append(path.with_suffix(f".{number}.parquet"))
        pq.write_table(pa.table({name: pa.array([row[name] for row in part], kind) for name, kind in types.items()}), paths[-1])
    return paths


def main_of(folder: Path, rows: Sequence[Row], **changes: Any) -> MainTable:
    table = MainTable(
        name="trips",
        paths=write(folder / "main", rows, MAIN_TYPES),
        columns={name: name for name in MAIN_TYPES},
        event_time="at",
        key=["id"],
        decision_lead=timedelta(),
        label_column="id",
    )
    return dataclasses.replace(table, **changes)


def facts_of(folder: Path, rows: Sequence[Row]) -> JoinedTable:
    return JoinedTable(
        name="weather", paths=write(folder / "facts", rows, FACT_TYPES), on={"place": "town"}, columns={"rain": "rain"}, event_time="seen"
    )


def joined(folder: Path, main: MainTable, features: Sequence[JoinedTable], windows: Sequence[WindowColumn]) -> list[dict[str, Any]]:
    frame = DuckDBEngine(folder, lambda _done, _total, _unit: None).join(main, features, windows, as_of=AS_OF)
    assert frame.schema.names[-1 - len(windows) :] == [*(window.name for window in windows), "label"]
    rows: list[dict[str, Any]] = pa.concat_tables(frame.batches()).to_pylist() if frame.num_rows else []
    return rows


def instants(chance: random.Random, count: int) -> Iterator[datetime]:
    """Yield times with gaps and ties around a change of the clock."""
    start = chance.choice(DAYS).astimezone(UTC)
    steps = chance.choice([(HOUR / 2,), (HOUR, 3 * HOUR, 30 * HOUR), (HOUR / 60, timedelta(0), timedelta(microseconds=1), 8 * 24 * HOUR)])
    for _ in range(count):
        yield start
        start += chance.choice(steps) * chance.choice((0, 1, 1, 2))


def number(chance: random.Random) -> float | None:
    hostile = (0.1, -0.0, 0.0, 1e16, -1e16, 1e-300, 2.0**70, 1 / 3, math.nan, None, 5.0, 5.0)
    return chance.choice(hostile) if chance.random() < 0.5 else chance.uniform(-100, 100)


def trips(chance: random.Random) -> list[Row]:
    rows = []
    for at in instants(chance, chance.randrange(30)):
        rows.append(
            {
                "id": len(rows), "place": chance.choice(("a", "b", None)), "line": chance.choice((1, 2)), "at": at,
                "landed": chance.choice((None, at, at + HOUR, at + 50 * HOUR, at - HOUR)), "delay": chance.choice((None, -2, 4, 5, 2**40)),
                "fare": number(chance), "note": chance.choice((None, "x", "y")), "flag": chance.choice((None, True, False)),
            }
        )  # fmt: skip
    chance.shuffle(rows)
    return rows


def facts(chance: random.Random) -> list[Row]:
    found: dict[Any, Row] = {}
    for seen in instants(chance, chance.randrange(30)):
        town = chance.choice(("a", "b", "c", None))
        told = chance.choice((None, seen, seen + 2 * HOUR))
        found[town, seen] = {"town": town, "seen": seen, "told": told, "temp": number(chance), "rain": chance.choice((None, 1, 2, 3))}
    rows = list(found.values())
    chance.shuffle(rows)
    return rows


def any_window(chance: random.Random, name: str) -> WindowColumn:
    is_own = chance.random() < 0.6
    kind = chance.choice(("lag", "rolling", "rolling", "since_last"))
    function = chance.choice(FUNCTIONS) if kind == "rolling" else None
    column: str | None = chance.choice(("delay", "fare", "flag") if is_own else ("temp", "rain"))
    if kind == "since_last" or (function == "count" and chance.random() < 0.5):
        column = None
    elif (kind == "lag" or function == "distinct") and is_own:
        column = chance.choice((column, "note"))
    if column == "flag" and function in ("min", "max", "std"):
        column = "delay"
    by_rows = kind != "since_last" and chance.random() < 0.4
    time = None if by_rows or (kind == "since_last" and chance.random() < 0.5) else chance.choice(DURATIONS)
    return WindowColumn(
        name=name,
        kind=kind,
        function=function,
        table="trips" if is_own else "weather",
        by={"place": "town"} if not is_own else {key: key for key in chance.choice((("place",), ("place", "line"), ("line",), ()))},
        column=column,
        time=time,
        rows=chance.choice((1, 2, 5)) if by_rows else None,
        tolerance=chance.choice((None, timedelta(), HOUR)) if kind == "lag" and time is not None else None,
        where=chance.choice((None, None, "delay > 3", "flag") if is_own else (None, None, "rain % 2 = 0")),
        available_after=chance.choice((timedelta(), timedelta(), HOUR, 25 * HOUR)),
        known_at=chance.choice(((), (), ("landed",) if is_own else ("told",))),
    )


@pytest.mark.parametrize("seed", range(125))
def test_eight_windows_of_generated_tables_equal_a_plain_loop(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)  # noqa: S311 - repeatable cases
    # Keys that end a block, and keys that are larger than one.
    monkeypatch.setattr(duckdb_windows, "BLOCK_ROWS", chance.choice((1, 4, 1 << 20)))
    monkeypatch.setattr(duckdb_windows, "BATCH_ROWS", chance.choice((1, 3, 1 << 17)))
    # So many keys that key and time do not fit one integer.
    monkeypatch.setattr(windows_module, "PACKED_LIMIT", chance.choice((1, 1 << 62)))
    rows, known = trips(chance), facts(chance)
    main = main_of(tmp_path, rows, decision_lead=chance.choice((timedelta(), HOUR, 26 * HOUR)))
    windows = [any_window(chance, f"w{number}") for number in range(8)]
    frame = joined(tmp_path, main, [facts_of(tmp_path, known)], windows)
    assert len(frame) == len(rows)
    for row in frame:
        for window in windows:
            history, time, key = (rows, "at", ["id"]) if window.table == "trips" else (known, "seen", [])
            expected = oracle(
                window, row, history, time=time, main_time="at", lead=main.decision_lead, key=key, wheres=WHERES
            )  # fmt: skip
            found = row[window.name]
            assert found == expected or (math.isnan(found) and math.isnan(expected)), (window, row["id"])


def every_setting(known_at: tuple[str, ...], available_after: timedelta) -> Iterator[WindowColumn]:
    """Yield lags, sums and extremes of the column `fare` by each setting of time, rows and key."""
    times = [timedelta(microseconds=1), HOUR / 2, HOUR, 5 * HOUR, 24 * HOUR, 7 * 24 * HOUR, 300 * 24 * HOUR]
    sizes = [{"time": time} for time in times] + [{"rows": count} for count in (1, 2, 3, 10, 1000)]
    shapes: list[dict[str, Any]] = [{"kind": "rolling", "function": name} | size for name in ("sum", "min", "max") for size in sizes]
    shapes += [{"kind": "lag"} | size for size in sizes]
    shapes += [{"kind": "lag", "tolerance": tolerance, "time": time} for time in times for tolerance in (timedelta(), HOUR)]
    for shape in shapes:
        for by in ((), ("place",), ("line",)):
            keys = {name: name for name in by}
            common = {"table": "trips", "column": "fare", "by": keys, "known_at": known_at, "available_after": available_after}
            yield WindowColumn(name=f"w{len(by)} {by} {shape}", **common, **shape)


@pytest.mark.parametrize("lead", [timedelta(), HOUR / 2, 30 * HOUR], ids=["at the event", "half an hour before", "a day before"])
@pytest.mark.parametrize(("known_at", "delay"), [((), timedelta()), ((), 2 * HOUR), (("landed",), timedelta()), (("landed",), HOUR)])
def test_no_window_shows_a_planted_answer_before_it_is_known(
    tmp_path: Path, lead: timedelta, known_at: tuple[str, ...], delay: timedelta
) -> None:
    chance = random.Random(5)  # noqa: S311 - repeatable cases
    start = DAYS[0].astimezone(UTC)
    # The answer of row n is 2**n: every sum of answers says which rows are in it.
    rows: list[Row] = [
        {
            "id": number, "place": chance.choice("ab"), "line": chance.choice((1, 2)), "at": start + chance.randrange(300) * HOUR / 2,
            "landed": None, "delay": 0, "fare": float(2**number), "note": None, "flag": None,
        }
        for number in range(50)
    ]  # fmt: skip
    rows = [{**row, "landed": row["at"] + chance.randrange(40) * HOUR / 2} for row in rows]
    windows = list(every_setting(known_at, delay))
    frame = joined(tmp_path, main_of(tmp_path, rows, decision_lead=lead), [], windows)
    known = [max(row["at"] + delay, *(row[name] for name in known_at)) if known_at else row["at"] + delay for row in rows]
    seen = 0
    for row in frame:
        event = row["at"]
        may_see = {n for n, past in enumerate(rows) if known[n] <= event - lead and past["at"] < event}
        for window in windows:
            answer = int(row[window.name] or 0)
            shown = {n for n in range(50) if answer >> n & 1}
            seen += len(shown)
            assert shown <= may_see, (window.name, row["id"])
            assert row["id"] not in shown
    assert seen > 1_000
