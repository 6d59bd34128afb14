"""`nightshift init` of numbers that a file has as texts: they become numbers, by keys of the YAML that ingest reads alike."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.training.starter.orders_bench import ROWS, checked_with_data, csv_of, found

VALUES = [row["value"] + 0.01 * (number % 83) for number, row in enumerate(ROWS)]
FORMS: dict[str, tuple[list[str], str]] = {
    "decimal_comma": ([f'"{value:.2f}"'.replace(".", ",") for value in VALUES], '{type: double, number_format: {decimal: ","}}'),
    "thousands": (
        [f'"{1000 * value:,.0f}"' for value in VALUES],
        '{type: int64, number_format: {decimal: ".", thousands: ","}}',
    ),
    "german": (
        [f'"{1000 * value:,.2f}"'.translate(str.maketrans(",.", ".,")) for value in VALUES],
        '{type: double, number_format: {decimal: ",", thousands: "."}}',
    ),
    "percent": ([f"{value:.1f} %" for value in VALUES], '{type: double, number_format: {decimal: ".", unit: "%"}}'),
    "money": ([f"€{value:.2f}" for value in VALUES], '{type: double, number_format: {decimal: ".", unit: "€"}}'),
    "plus": ([f"+{value:.2f}" for value in VALUES], '{type: double, number_format: {decimal: "."}}'),
    "blanks": ([f" {value:.2f} " for value in VALUES], "{type: double}"),
    "markers": (
        [("NA", "-", r"\N", f"{value:.2f}")[min(number % 13, 3)] for number, value in enumerate(VALUES)],
        r'{type: double, missing: ["-", "NA", "\\N"], nullable: true}',
    ),
    "stray": (
        [f"{value:.2f}" for value in VALUES[:-1]] + ["see note"],
        '{type: double, missing: ["see note"], nullable: true}',
    ),
    "code": ([f"0{number % 40:02d}" for number, _ in enumerate(VALUES)], "{type: string}"),
    "two_readings": ([f'"{1 + number % 9},{100 + number % 700}"' for number, _ in enumerate(VALUES)], "{type: string}"),
}


def test_numbers_that_people_write_are_declared_in_their_form_and_read_by_ingest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{**row, **{form: texts[number] for form, (texts, _yaml) in FORMS.items()}} for number, row in enumerate(ROWS)]
    file = csv_of(rows, tmp_path / "orders.csv")
    result = found(file, capsys, to=tmp_path / "to")
    yaml = Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    for form, (_texts, declared) in FORMS.items():
        assert f"      {form}: {declared}\n" in yaml
    assert set(FORMS) - {"two_readings"} <= set(result["features"])
    notes = " ".join(result["notes"])
    assert "in stray 'see note' (row 600) is no number, and counts as missing: 1 of 600 cells" in notes
    assert "two_readings is text: its commas are before a fraction or between thousands" in notes
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_texts_of_a_format_that_has_numbers_are_numbers_where_they_have_a_fraction_and_else_names(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{**row, "price": f"{value:.2f}", "shop": str(number % 9)} for number, (row, value) in enumerate(zip(ROWS, VALUES, strict=True))]
    file = tmp_path / f"orders.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    result = found(file, capsys, to=tmp_path / "to")
    yaml = Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    assert '      price: {type: double, number_format: {decimal: "."}}\n' in yaml
    assert "      shop: {type: string}\n" in yaml
    assert checked_with_data(result, file, tmp_path / "to", monkeypatch) == 0


def test_points_that_may_be_between_thousands_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "amount": f"{7 * (number + 40):,}".replace(",", ".")} for number, row in enumerate(ROWS)]
    result = found(csv_of(rows, tmp_path / "orders.csv"), capsys, to=tmp_path / "to")
    assert [note for note in result["notes"] if note.startswith("the points in amount are taken to be before a fraction")]


def test_numbers_beside_words_for_missing_values_in_json_lines_are_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "orders.jsonl"
    mixed = [
        {**row, "wind": "n/a" if number % 13 == 0 else 0.5 + number, "seen": "?" if number % 7 == 0 else number % 2 == 0}
        for number, row in enumerate(ROWS)
    ]
    path.write_text(
        "".join(
            json.dumps(
                {**row, "both": number if number % 2 else "x", "same": 0.5 if number % 2 else "7", "on": True if number % 2 else "true"}
            )
            + "\n"
            for number, row in enumerate(mixed)
        )
    )
    result = found(path, capsys, to=tmp_path / "to")
    yaml = Path(result["written"]["yaml"]).read_text(encoding="utf-8")
    assert '      wind: {type: double, missing: ["n/a"], nullable: true}\n' in yaml
    assert '      seen: {type: boolean, missing: ["?"], nullable: true}\n' in yaml
    # Nothing says that these are missing values, and the reader takes no text for a number.
    assert set(result["not_read"]) == {"both", "same", "on"}
    assert checked_with_data(result, path, tmp_path / "to", monkeypatch) == 0
