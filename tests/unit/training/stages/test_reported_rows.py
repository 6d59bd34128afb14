"""The validation report counts the rows that the YAML leaves out, and those of each table of a union."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from devstack.shop import day_path
from tests.unit.training.stages.night_bench import AS_OF, LAST, Night, load

WINDOW = "    window: 30d\n"
DAYS = 5


def night_with(night: Night, shop: Path, lines: str) -> Night:
    """Return the night of a pipeline with further keys of `data.source`."""
    spec = load("search_ranking", {"SHOP_URI": shop.as_uri()}, WINDOW, f"    window: {DAYS}d\n{lines}")
    return Night(night.folder, spec, AS_OF)


def checks_of(night: Night, code: str) -> list[dict[str, Any]]:
    return [check for check in night.results(night.validate(night.ingest()))["checks"] if check["code"] == code]


def test_rows_that_where_and_sample_leave_out_are_counted(night: Night, shop: Path) -> None:
    tables = [pq.ParquetFile(day_path(shop, LAST - timedelta(days=back))).read() for back in range(DAYS)]
    rows = sum(table.num_rows for table in tables)
    far = sum(pc.sum(pc.greater_equal(table["position"], 5)).as_py() for table in tables)
    where, sample = checks_of(night_with(night, shop, '    where: {sql: "position < 5"}\n    sample: {share: 0.5}\n'), "data.left_out")
    counts = [[int(word.replace(",", "")) for word in check["observed"].split() if word[0].isdigit()] for check in (where, sample)]
    assert [check["check"] for check in (where, sample)] == [f"rows left out by data.source.{key}" for key in ("where", "sample")]
    assert counts[0][0] == far > 0
    assert rows == far + sum(counts[1])
    assert 0.3 < counts[1][1] / (rows - far) < 0.7


def test_rows_of_each_table_of_a_union_are_counted_and_one_without_rows_fails(night: Night, shop: Path) -> None:
    other = shop / "other"
    for back in range(DAYS):
        path = day_path(shop, LAST - timedelta(days=back))
        copied = other / path.parent.name / path.name
        copied.parent.mkdir(parents=True)
        table = pq.ParquetFile(path).read()
        odd = pc.equal(pc.bit_wise_and(table["search_id"], 1), 1)
        pq.write_table(table.filter(odd), copied)
        pq.write_table(table.filter(pc.invert(odd)), path)
    union = '    union:\n      - {table: others, kind: parquet, uri: "${SHOP_URI}/other", partition: "dt={date}"}\n'
    (counted,) = checks_of(night_with(night, shop, union), "data.union")
    rows = {name: sum(pq.read_metadata(path).num_rows for path in paths) for name, paths in files_of(shop).items()}
    assert (counted["status"], counted["observed"]) == ("passed", f"clicks {rows['clicks']:,}, others {rows['others']:,}")
    for path in files_of(shop)["others"]:
        pq.write_table(pq.ParquetFile(path).read()[:0], path)
    shutil.rmtree(night.folder / "store")
    error = night_with(night, shop, union).refused()
    assert error.code == "data.union"
    assert "others 0, allowed at least 1 each (without rows: others)" in error.message


def files_of(shop: Path) -> dict[str, list[Path]]:
    """Return the files of the window, by table."""
    days = [(LAST - timedelta(days=back)).isoformat() for back in range(DAYS)]
    return {
        name: [next((shop / folder / f"dt={day}").iterdir()) for day in days]
        for name, folder in (("clicks", "clicks"), ("others", "other"))
    }
