"""`nightshift init` for tables without a time or a key, in folders and in partitions: what it writes passes `check --data`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.commands import command
from training.contracts import ExitCode

main = command("init")

NUM_ROWS = 600
COLUMNS: dict[str, list[Any]] = {
    "size": [number % 7 + 0.5 for number in range(NUM_ROWS)],
    "shop": [f"shop{number % 40}" for number in range(NUM_ROWS)],
    "kind": ["abc"[number % 3 if number % 5 else 0] for number in range(NUM_ROWS)],
}
"""Rows that appear twice, in no order."""


def write(path: Path, first: int = 0, last: int = NUM_ROWS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({name: values[first:last] for name, values in COLUMNS.items()})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        lines = [",".join(table.column_names), *(",".join(map(str, row.values())) for row in table.to_pylist())]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def init(files: Sequence[Path | str], *options: str, to: Path) -> int:
    return main([*map(str, files), "--label", "kind", "--to", str(to), "--name", "things", *options])


def found(files: Sequence[Path | str], capsys: pytest.CaptureFixture[str], *options: str, to: Path) -> dict[str, Any]:
    capsys.readouterr()
    assert init(files, "--json", "--force", *options, to=to) == 0
    values: dict[str, Any] = json.loads(capsys.readouterr().out)
    return values


def checked(result: dict[str, Any], folder: Path, to: Path, monkeypatch: pytest.MonkeyPatch, *nights: str) -> list[int]:
    """Run `nightshift check --data` for runs as of these nights."""
    monkeypatch.setenv("THINGS_URI", folder.resolve().as_uri())
    monkeypatch.setenv("NIGHTSHIFT_EXPECTATIONS", str(to / "expectations"))
    return [command("check")(["--data", "--as-of", night, result["written"]["yaml"]]) for night in nights or (result["night"],)]


def test_rows_without_a_time_and_a_key_are_numbered_and_have_one_instant_each_night(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "things.csv")
    day_before = datetime.now(UTC).date()
    result = found([tmp_path / "things.csv"], capsys, to=tmp_path)
    today = date.fromisoformat(result["night"])
    assert day_before <= today <= datetime.now(UTC).date()
    assert (result["key"], result["time"]["column"]) == (["row_number"], "")
    assert result["split"] == "{by: stratified, validation: 0.15, test: 0.15}"
    assert set(result["features"]) == {"size", "shop"}
    yaml = Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    assert "row_number: {type: int64, generated: row_number}" in yaml
    day = today - timedelta(days=1)
    assert f"make_timestamp({day.year}, {day.month}, {day.day}, 0, 0, 0))" in yaml
    assert checked(result, tmp_path, tmp_path, monkeypatch) == [0]
    assert ExitCode.BAD_DATA in checked(result, tmp_path, tmp_path, monkeypatch, str(today - timedelta(days=3))), "it had no rows then"


@pytest.mark.parametrize(
    ("options", "split"),
    [
        (("--split", "random"), "{by: random, validation: 0.15, test: 0.15}"),
        (("--split", "group", "--split-column", "shop"), "{by: group, column: shop, validation: 0.15, test: 0.15}"),
        (("--label", "size"), "{by: random, validation: 0.15, test: 0.15}"),
    ],
)
def test_split_without_a_time_is_what_is_asked_for(
    options: tuple[str, ...], split: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "things.csv")
    assert found([tmp_path / "things.csv"], capsys, *options, to=tmp_path)["split"] == split


@pytest.mark.parametrize(("options", "is_named"), [((), True), (("--split", "random"), False)])
def test_column_of_rows_that_belong_together_is_named_where_rows_are_divided_at_random(
    options: tuple[str, ...], is_named: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{number // 4},{number % 7},{number % 11 > 4}" for number in range(400)]
    (tmp_path / "homes.csv").write_text("\n".join(["household_id,rooms,fate", *lines]), encoding="utf-8")
    notes = found([tmp_path / "homes.csv"], capsys, "--label", "fate", *options, to=tmp_path)["notes"]
    assert any(note.endswith("--split group --split-column household_id") for note in notes) == is_named


@pytest.mark.parametrize(
    ("form", "named", "partition"),
    [
        ("day={day}/part-0.parquet", "data", "day={date}"),
        ("{day}.csv", "data", "{date}.csv"),
        ("shop_{compact}.csv", "data/*.csv", "shop_%Y%m%d.csv"),
        ("year={day:%Y}/month={day:%m}/day={day:%d}/a.parquet", "data/year=%Y/month=%m/day=%d", "year=%Y/month=%m/day=%d"),
    ],
)
def test_rows_in_partitions_have_the_time_of_their_partition(
    form: str, named: str, partition: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = date(2026, 2, 20)
    # The day before the last twelve is missing.
    for number in [-2, *range(12)]:
        day = first + timedelta(days=number)
        start = number % 12 * 50
        write(tmp_path / "data" / form.format(day=day, compact=f"{day:%Y%m%d}"), start, start + 50)
    result = found([tmp_path / named], capsys, to=tmp_path)
    assert (result["partition"], result["files"], result["night"]) == (partition, 13, "2026-03-04")
    assert (result["key"], result["time"]) == (["partition_start", "row_number"], {"column": "partition_start", "sql": ""})
    assert result["split"] == "{by: time, validation: 48h, test: 48h}"
    assert any("2026-02-19, which is missing" in note for note in result["notes"])
    assert "window: 12d\n" in Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    assert checked(result, tmp_path, tmp_path, monkeypatch, result["night"]) == [0]
    # Two days are few blocks, which is said.
    assert [line for line in capsys.readouterr().out.splitlines() if "WARN" in line and "too few blocks" not in line] == []


def test_files_of_a_folder_are_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(("a", "b")):
        write(tmp_path / "data" / f"{name}.csv", number * 300, number * 300 + 300)
    (tmp_path / "data" / "_SUCCESS").write_text("")
    assert init([tmp_path / "data"], to=tmp_path) == ExitCode.BAD_DATA
    assert "[init.key]" in capsys.readouterr().err
    for name in "ab":
        path = tmp_path / "data" / f"{name}.csv"
        lines = path.read_text().splitlines()
        path.write_text("\n".join([f"id,{lines[0]}", *(f"{name}{n},{line}" for n, line in enumerate(lines[1:]))]) + "\n")
    result = found([tmp_path / "data" / "a.csv", tmp_path / "data" / "b.csv"], capsys, to=tmp_path)
    assert (result["rows"], result["files"], result["partition"], result["key"]) == (NUM_ROWS, 2, "", ["id"])
    assert checked(result, tmp_path, tmp_path, monkeypatch) == [0]


@pytest.mark.parametrize(
    ("files", "named", "message"),
    [
        ({"data/a.csv": "x,kind\n1,a\n", "data/b.csv": "y,kind\n1,a\n"}, ["data"], "has the column 'x', and .*b.csv has not"),
        ({"data/a.csv": "x,kind\n1,a\n", "data/b.jsonl": "{}\n"}, ["data"], "several formats: a.csv and b.jsonl"),
        ({"data/a.csv": "x,kind\n1,a\n", "data/b.csv": "x,kind\n1,a\n", "data/c.csv": ""}, ["data/[ab].csv"], "would also read c.csv"),
        ({"data/a.csv": "x,kind\n1,a\n"}, ["data/z*.csv"], "there is no file .*z\\*.csv"),
        ({"data/a.csv": "x,kind\n1,a\n"}, ["data/a.csv", "elsewhere/b.csv"], "there is no file .*elsewhere/b.csv"),
        ({"data/a.csv": "x,kind\n1,a\n"}, ["data/{date}.csv"], "has no files in {date}.csv"),
        ({"data/a.csv": "x,kind\n1,a\n"}, ["data/{hour}"], "names an hour and lacks"),
        ({"data/_a.csv": "x,kind\n1,a\n"}, ["data"], "has no data files"),
    ],
)
def test_files_that_are_no_table_are_refused(
    files: dict[str, str], named: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert init([tmp_path / name for name in named], to=tmp_path / "to") == ExitCode.BAD_DATA
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert not (tmp_path / "to").exists()
