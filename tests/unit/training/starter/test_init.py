"""`nightshift init`: what it writes passes `nightshift check --data`, and what it cannot read is refused with nothing written."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import urllib.parse
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.commands import command
from tests.unit.training.starter.orders_bench import NUM_ROWS, ROWS, START, checked_with_data, csv_of, found, init, with_column
from training.contracts import ExitCode
from training.evaluation.bootstrap.blocks import FEW_BLOCKS
from training.starter.command import PROGRESS_SECONDS, progress
from training.starter.pipeline_draft import FEW_TIMES

main = command("init")


@pytest.mark.parametrize("form", ["csv", "csv.gz", "jsonl", "parquet"])
def test_written_pipeline_passes_the_check_of_its_data(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"orders.{form}"
    if form == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    elif form == "parquet":
        table = pa.Table.from_pylist(ROWS)
        times = pa.array([datetime.fromisoformat(row["ordered_at"]) for row in ROWS], pa.timestamp("us", "UTC"))
        pq.write_table(table.set_column(1, "ordered_at", times), file)
    else:
        csv_of(ROWS, tmp_path / "orders.csv")
        if form == "csv.gz":
            file.write_bytes(gzip.compress((tmp_path / "orders.csv").read_bytes()))
    result = found(file, capsys, to=tmp_path / "to")
    assert result["label"] | {"note": ""} == {"column": "outcome", "task": "binary", "positive": "cancelled", "note": ""}
    assert result["key"] == ["order_id"]
    assert set(result["features"]) == {"country", "items", "value", "ordered_at"}
    yaml = Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    for column, kind in (("order_id", "int64"), ("ordered_at", "timestamp"), ("country", "string"), ("value", "double")):
        assert f"      {column}: {{type: {kind}}}\n" in yaml
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


def test_files_go_where_the_installation_has_its_own_unless_a_folder_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = csv_of(ROWS, tmp_path / "orders.csv")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NIGHTSHIFT_PIPELINES", str(tmp_path / "team" / "pipelines"))
    monkeypatch.setenv("NIGHTSHIFT_EXPECTATIONS", str(tmp_path / "suites"))
    assert main([str(file), "--time", "ordered_at", "--label", "outcome", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)["written"]
    assert written == {
        "yaml": str(tmp_path / "team" / "pipelines" / "orders.yaml"),
        "suite": str(tmp_path / "suites" / "orders" / "rows.json"),
        "dag": str(tmp_path / "team" / "orders.py"),
    }
    assert all(Path(path).is_file() for path in written.values())
    assert Path(found(file, capsys, to=tmp_path / "to")["written"]["suite"]).is_relative_to(tmp_path / "to" / "expectations")


def test_ids_with_leading_zeros_are_texts_and_numbers_with_a_word_for_missing_ones_are_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = with_column("zip", lambda number, _row: f"{number % 40:05d}")
    rows = [{**row, "weight": "NA" if number % 9 == 0 else number % 31, "member": number % 2 == 0} for number, row in enumerate(rows)]
    file = csv_of(rows, tmp_path / "orders.csv")
    result = found(file, capsys, to=tmp_path / "to")
    yaml = Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    assert "      zip: {type: string}\n" in yaml
    assert '      weight: {type: int64, missing: ["NA"], nullable: true}\n' in yaml
    assert {"zip", "weight", "member"} <= set(result["features"])
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


@pytest.mark.parametrize(
    ("form", "sql"),
    [
        ("%Y-%m-%d %H:%M:%S", "timezone('Europe/Berlin', CAST(\"ordered_at\" AS TIMESTAMP))"),
        ("%Y/%m/%d %H:%M", "timezone('Europe/Berlin', CAST(replace(\"ordered_at\", '/', '-') AS TIMESTAMP))"),
        ("%d.%m.%Y %H:%M", "timezone('Europe/Berlin', strptime(\"ordered_at\", '%d.%m.%Y %H:%M'))"),
    ],
)
def test_times_in_other_forms_are_derived_in_the_named_time_zone(
    form: str, sql: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{**row, "ordered_at": (START + timedelta(hours=2 * number)).strftime(form)} for number, row in enumerate(ROWS)]
    file = csv_of(rows, tmp_path / "orders.csv")
    result = found(file, capsys, "--timezone", "Europe/Berlin", to=tmp_path / "to")
    assert result["time"] == {"column": "ordered_at", "sql": sql}
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


@pytest.mark.parametrize(
    ("form", "options", "sql"),
    [
        ("%Y-%m-%dT%H:%M:%SZ", (), 'CAST("ordered_at" AS TIMESTAMPTZ)'),
        ("%Y-%m-%d %H:%M:%S+02:00", (), 'CAST("ordered_at" AS TIMESTAMPTZ)'),
        ("%Y-%m-%dT%H:%M:%S", (), "timezone('Europe/Berlin', CAST(\"ordered_at\" AS TIMESTAMP))"),
        ("%Y-%m-%d", ("--key", "order_id"), "timezone('Europe/Berlin', CAST(\"ordered_at\" AS TIMESTAMP))"),
        ("%d.%m.%Y %H:%M +0200", ("--time-format", "%d.%m.%Y %H:%M %z"), "strptime(\"ordered_at\", '%d.%m.%Y %H:%M %z')"),
    ],
)
def test_times_that_a_parquet_file_has_as_texts_are_derived(
    form: str, options: tuple[str, ...], sql: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{**row, "ordered_at": (START + timedelta(hours=2 * number)).strftime(form)} for number, row in enumerate(ROWS)]
    file = tmp_path / "orders.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    result = found(file, capsys, "--timezone", "Europe/Berlin", *options, to=tmp_path / "to")
    assert result["time"] == {"column": "ordered_at", "sql": sql}
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


def test_days_that_may_be_read_in_two_ways_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "ordered_at": f"{number % 12 + 1:02d}/{number % 11 + 1:02d}/2026"} for number, row in enumerate(ROWS)]
    file = csv_of(rows, tmp_path / "orders.csv")
    assert init(file, to=tmp_path / "to") == ExitCode.BAD_DATA
    assert "--time-format '%m/%d/%Y'" in capsys.readouterr().err
    assert found(file, capsys, "--time-format", "%d/%m/%Y", to=tmp_path / "to")["time"]["sql"].endswith("'%d/%m/%Y'))")


@pytest.mark.parametrize("empty", ["", '""'])
def test_rows_without_a_label_are_left_out(
    empty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{**row, "outcome": empty if number % 10 == 0 else row["outcome"]} for number, row in enumerate(ROWS)]
    file = csv_of(rows, tmp_path / "orders.csv")
    result = found(file, capsys, to=tmp_path / "to")
    assert "<> ''" in Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


def test_text_that_is_a_missing_number_in_other_columns_is_no_class_of_the_label(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {**row, "items": "NA" if number % 9 == 0 else row["items"], "outcome": "NA" if number % 10 == 0 else ("yes", "no")[number % 3 == 0]}
        for number, row in enumerate(ROWS)
    ]
    file = csv_of(rows, tmp_path / "orders.csv")
    result = found(file, capsys, to=tmp_path / "to")
    assert result["label"]["task"] == "binary"
    assert r"nullif(\"outcome\", 'NA') <> ''" in Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0
    assert init(file, "--force", to=tmp_path / "to") == 0
    assert "'NA' in outcome counts as a missing label" in capsys.readouterr().out
    # Where no column of numbers has the text, it may be North America.
    rows = [{**row, "items": 1 + number % 5} for number, row in enumerate(rows)]
    result = found(csv_of(rows, tmp_path / "orders.csv"), capsys, "--force", to=tmp_path / "to")
    assert result["label"]["task"] == "multiclass"


def test_report_names_the_time_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = csv_of(with_column("year", lambda number, _row: 2000 + number // 100), tmp_path / "orders.csv")
    assert main([str(file), "--label", "outcome", "--to", str(tmp_path / "to")]) == 0
    assert re.search(r"time       none: all rows count as of one instant, \d{4}-\d\d-\d\d 00:00 in UTC\n", capsys.readouterr().out)
    assert main([str(file), "--label", "outcome", "--time", "year", "--to", str(tmp_path / "to"), "--force"]) == 0
    assert "time       year, read as a year in UTC\n" in capsys.readouterr().out


def test_table_whose_newest_rows_have_too_few_times_to_promote_a_later_model_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert FEW_TIMES == FEW_BLOCKS
    rows = [{**row, "ordered_at": str(2000 + number // 250)} for number, row in enumerate(ROWS)]
    result = found(csv_of(rows, tmp_path / "orders.csv"), capsys, to=tmp_path / "to")
    (note,) = (note for note in result["notes"] if "the test rows have" in note)
    assert note.startswith("the test rows have 3 times: below 8 the interval of a gain over the champion is unbounded")
    # A customer with several rows is what an interval is made of.
    rows = [{**row, "order_id": number // 3, "ordered_at": str(2000 + number % 3)} for number, row in enumerate(ROWS)]
    result = found(csv_of(rows, tmp_path / "orders.csv"), capsys, "--key", "order_id,ordered_at", "--force", to=tmp_path / "to")
    assert not [note for note in result["notes"] if "the test rows have" in note]
    result = found(csv_of(ROWS, tmp_path / "orders.csv"), capsys, "--force", to=tmp_path / "to")
    assert not [note for note in result["notes"] if "the test rows have" in note]


def test_later_models_of_a_table_without_a_time_are_judged_by_independent_rows_or_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = csv_of(with_column("customer", lambda number, _row: f"c{number % 90}"), tmp_path / "orders.csv")
    for options, entities in (((), "[order_id]"), (("--split", "group", "--split-column", "customer"), "[customer]")):
        assert main([str(file), "--label", "outcome", "--to", str(tmp_path / "to"), "--force", "--key", "order_id", *options]) == 0
        yaml = (tmp_path / "to" / "dags" / "pipelines" / "orders.yaml").read_text(encoding="utf-8")
        assert f"  entities: {entities}   #" in yaml
    capsys.readouterr()


def test_rows_whose_label_is_a_word_for_a_missing_number_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{**row, "outcome": "NA" if number % 10 == 0 else number % 37 * 1.5} for number, row in enumerate(ROWS)]
    file = csv_of(rows, tmp_path / "orders.csv")
    result = found(file, capsys, to=tmp_path / "to")
    assert result["label"]["task"] == "regression"
    assert 'where: {sql: "\\"outcome\\" IS NOT NULL"' in Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


@pytest.mark.parametrize(
    ("values", "task", "rule"), [((0, 1), "binary", ""), ((1, 2), "binary", 'rule: "= 2"'), (("true", "false"), "binary", "")]
)
def test_label_of_two_values_is_binary(
    values: tuple[Any, Any],
    task: str,
    rule: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [{**row, "outcome": values[number % 3 == 0]} for number, row in enumerate(ROWS)]
    file = csv_of(rows, tmp_path / "orders.csv")
    result = found(file, capsys, to=tmp_path / "to")
    assert result["label"]["task"] == "binary"
    assert rule in Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


def test_rows_are_divided_at_random_where_one_column_gives_the_label_in_the_newest_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = NUM_ROWS * 3 // 4
    rows = with_column("site", lambda number, row: row["outcome"] if number >= newest else "ab"[number % 2])
    file = csv_of(rows, tmp_path / "orders.csv")
    result = found(file, capsys, to=tmp_path / "to")
    assert result["split"] == "{by: stratified, validation: 0.15, test: 0.15}"
    assert any("site alone decides (its value gives the label in 100.0% of the rows)" in note for note in result["notes"])
    assert "site" in result["features"]
    assert found(file, capsys, "--split", "time", "--force", to=tmp_path / "to")["split"].startswith("{by: time")


def test_rows_of_one_instant_are_divided_at_random(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = csv_of([{**row, "ordered_at": "2026-02-01"} for row in ROWS], tmp_path / "orders.csv")
    result = found(file, capsys, to=tmp_path / "to")
    assert result["split"].startswith("{by: stratified")
    assert "  entities: [order_id]   #" in Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_columns_of_any_name_are_declared_by_readable_identifiers(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[dict[str, Any]] = [
        {
            "": number,
            "Ordered At": f"{START + timedelta(hours=2 * number):%Y-%m-%dT%H:%M:%SZ}",
            "Größe (cm)": number % 11 + 0.5,
            "2nd/3rd": "ab"[number % 2],
            "ITEMS": number % 6,
            "items": number % 5,
            "label": number % 3,
            "a.b": number % 4,
            "Out come?": ("kept", "cancelled")[int(number % 7 > 4)],
        }
        for number in range(NUM_ROWS)
    ]
    file = tmp_path / f"orders.{form}"
    if form == "csv":
        csv_of(rows, file)
    elif form == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        times = pa.array([datetime.fromisoformat(row["Ordered At"]) for row in rows], pa.timestamp("us", "UTC"))
        pq.write_table(pa.Table.from_pylist(rows).set_column(1, "Ordered At", times), file)
    options = ["--time", "Ordered At", "--label", "Out come?", "--to", str(tmp_path / "to")]
    assert main([str(file), *options, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["names"] == {
        "row": "",
        "ordered_at": "Ordered At",
        "grosse_cm": "Größe (cm)",
        "column_2nd_3rd": "2nd/3rd",
        "ITEMS": "ITEMS",
        "items_2": "items",
        "label_2": "label",
        "a_b": "a.b",
        "out_come": "Out come?",
    }
    assert (result["key"], result["not_read"], result["label"]["column"]) == (["row"], {}, "out_come")
    assert {"grosse_cm", "column_2nd_3rd", "ITEMS", "items_2", "label_2", "a_b"} <= set(result["features"])
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0
    assert main([str(file), *options, "--force"]) == 0
    assert "  names      row is '', ordered_at is 'Ordered At', grosse_cm is 'Größe (cm)'" in capsys.readouterr().out


def test_columns_may_have_names_that_yaml_and_sql_read_as_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"on": START + timedelta(hours=number), "no": number % 5, "null": "ab"[number % 2], "select": number % 7, "true": number % 9 * 1.5}
        for number in range(NUM_ROWS)
    ]
    file = csv_of([{**row, "on": row["on"].isoformat()} for row in rows], tmp_path / "2026.größe-eu.csv")
    assert main([str(file), "--time", "on", "--label", "true", "--to", str(tmp_path / "to"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {"no", "null", "select"} <= set(result["features"])
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


@pytest.mark.parametrize("name", ["a\nowner: eve.csv", "my\tdata.csv", "orders#1.csv", "100%.csv", "a@b.csv"])
def test_file_name_that_no_uri_of_a_source_has_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = csv_of(ROWS, tmp_path / name)
    assert init(file, to=tmp_path / "to") == ExitCode.BAD_DATA
    assert "[init.file]" in capsys.readouterr().err


@pytest.mark.parametrize("named", ["my data/orders.csv", "my data/my orders.csv", "my data", "it's & co/day orders/{date}.csv"])
def test_next_lines_of_the_output_work_in_a_shell_also_where_paths_have_blanks(
    named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "{date}" in named:
        for day in range(50):
            date = f"{START + timedelta(days=day):%Y-%m-%d}"
            file = tmp_path / named.format(date=date)
            file.parent.mkdir(parents=True, exist_ok=True)
            csv_of([row for row in ROWS if row["ordered_at"].startswith(date)], file)
    else:
        file = tmp_path / (named if named.endswith(".csv") else f"{named}/some orders.csv")
        file.parent.mkdir()
        csv_of(ROWS, file)
    to = tmp_path / "my app"
    assert init(tmp_path / named, "--name", "orders", to=to) == 0
    lines = capsys.readouterr().out.partition("next:\n")[2].splitlines()
    script = "\n".join(["nightshift() { printf '%s\\n' \"$@\"; }", *lines[:3], "printenv ORDERS_URI NIGHTSHIFT_EXPECTATIONS"])
    verb, *options, place, suites = subprocess.run(
        ["/bin/sh", "-c", script], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert (verb, options[-1]) == ("check", str(to / "dags" / "pipelines" / "orders.yaml"))
    monkeypatch.setenv("NIGHTSHIFT_EXPECTATIONS", suites)
    for form in (place, urllib.parse.unquote(place.removeprefix("file://"))):
        monkeypatch.setenv("ORDERS_URI", form)
        assert command("check")(options) == 0


def test_existing_files_stay_without_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, to = csv_of(ROWS, tmp_path / "orders.csv"), tmp_path / "to"
    dag = to / "dags" / "orders.py"
    dag.parent.mkdir(parents=True)
    dag.write_text("mine")
    assert init(file, to=to) == ExitCode.DENIED
    assert "[init.exists]" in capsys.readouterr().err
    assert [path.name for path in to.rglob("*") if path.is_file()] == ["orders.py"]
    assert dag.read_text() == "mine"
    assert init(file, "--force", to=to) == 0
    assert "pipeline_dag" in dag.read_text()


def test_nothing_is_written_where_one_file_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "to"
    to.mkdir()
    (to / "expectations").write_text("a file in the place of the folder")
    assert init(csv_of(ROWS, tmp_path / "orders.csv"), to=to) == ExitCode.DENIED
    assert "nothing was written" in capsys.readouterr().err
    assert [path.name for path in to.rglob("*") if path.is_file()] == ["expectations"]


@pytest.mark.parametrize(
    ("content", "options", "code"),
    [
        (b"", (), "data.empty"),
        (b"ordered_at,outcome\n", (), "data.empty"),
        (b"\x00\x01\xff\xfe binary\n" * 20, (), "format.csv"),
        (b"ordered_at,outcome,outcome\n2026-01-01,a,b\n", (), "schema.names"),
        (b"ordered_at,outcome,x\x00y\n2026-01-01,a,1\n2026-01-02,b,2\n", (), "format.csv"),
        (b'ordered_at,outcome,"x\ny"\n2026-01-01,a,1\n2026-01-02,b,2\n', (), "format.csv"),
        (b"ordered_at,outcome,x\n2026-01-01,a,1\n2026-01-02,a,2\n", (), "init.label"),
        (b"ordered_at,outcome,x\n2026-01-01,,1\n2026-01-02,,2\n", (), "init.label"),
        (b"ordered_at,outcome,x\nyesterday,a,1\ntoday,b,2\n", (), "init.time"),
        (b"ordered_at,outcome,x\n,a,1\n2026-01-02,b,2\n", (), "init.time"),
        (b"day,outcome,x\n2026-01-01,a,1\n2026-01-02,b,2\n", (), "init.time"),
        (b"ordered_at,label,x\n2026-01-01,a,1\n2026-01-02,b,2\n", (), "init.label"),
        (b"ordered_at,outcome,x\n2026-01-01,a,1\n2026-01-02,b,2\n", ("--split", "group"), "init.split"),
        (b"ordered_at,outcome,x\n2026-01-01,a,1\n2026-01-02,b,2\n", ("--split", "group", "--split-column", "y"), "init.split"),
        (b"ordered_at,outcome,x\n2026-01-01,a,1\n2026-01-02,b,2\n", ("--split", "time", "--time", ""), "init.split"),
        (b"ordered_at,outcome,x\n2026-01-01,a,1\n2026-01-02,b,2\n", ("--key", "y"), "init.key"),
        (b"ordered_at,outcome,x\n2026-01-01,a,1\n2026-01-02,b,1\n", ("--key", "x"), "init.key"),
        (b"ordered_at,outcome,x\n2026-01-01,a,1\n2026-01-02,b,2\n", ("--timezone", "Mars/Base"), "init.name"),
        (b"ordered_at,outcome,x\n2026-01-01,a,1\n2026-01-02,b,2\n", ("--name", "../up"), "init.name"),
        (b"ordered_at,outcome,x\n2026-01-01,a,1\n2026-01-02,b,2\n", ("--positive", "c"), "init.label"),
        (b"ordered_at,outcome,x\n2026-01-01,a,1,9\n2026-01-02,b,2\n", (), "format.csv"),
        ((",".join(["ordered_at", "outcome", *(f"c{n}" for n in range(3000))]) + "\n1" + ",1" * 3001 + "\n").encode(), (), "init.columns"),
    ],
)
def test_input_that_makes_no_pipeline_is_refused_and_nothing_is_written(
    content: bytes, options: tuple[str, ...], code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "orders.csv"
    file.write_bytes(content)
    assert init(file, *options, to=tmp_path / "to") == ExitCode.BAD_DATA
    assert f"[{code}]" in capsys.readouterr().err
    assert not [path for path in (tmp_path / "to").rglob("*") if path.is_file()]


@pytest.mark.parametrize(("row", "words"), [("b,2", "2 cells in a row of 3 columns (complete"), ("b,2,3,4", "4 cells in a row of 3")])
def test_row_of_another_number_of_cells_is_named_with_its_line(
    row: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "orders.csv"
    file.write_text(f"ordered_at,outcome,x\n2026-01-01,a,1\n{row}\n2026-01-02,b,2\n")
    assert init(file, to=tmp_path / "to") == ExitCode.BAD_DATA
    assert f"[format.csv] {file}, line 3: {words}" in capsys.readouterr().err


def test_column_that_is_not_there_is_answered_with_the_one_that_was_meant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("ordered_at,Outcome,x\n2026-01-01,a,1\n2026-01-02,b,2\n")
    assert init(file, to=tmp_path / "to") == ExitCode.BAD_DATA
    assert "has no usable column 'outcome' (did you mean Outcome?)" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["orders.xlsx", "missing.csv", "broken.parquet", "broken.csv.gz"])
def test_file_that_cannot_be_read_is_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if name != "missing.csv":
        (tmp_path / name).write_bytes(b"not what the name says")
    assert init(tmp_path / name, to=tmp_path / "to") == ExitCode.BAD_DATA
    assert name in capsys.readouterr().err


def test_long_work_says_where_it_is_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    report = progress(lambda: now[0])
    for number in range(1, 31):
        now[0] += PROGRESS_SECONDS / 10
        report("types", number, 1000)
    assert capsys.readouterr().err.splitlines() == [f"types: column {number} of 1,000" for number in (10, 20, 30)]
