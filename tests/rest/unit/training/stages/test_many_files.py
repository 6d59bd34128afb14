"""A table in thousands of tiny files is read with few open files at a time and little memory for each.

A process for each number of files: the limit of open files and the peak of memory are a process's.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.runtime.provenance import CHECKOUT

EXAMPLE = CHECKOUT / "docs" / "examples" / "cancelled_orders"
FEW, MANY = 300, 3000
OF_A_PROCESS = """
import resource, sys
from datetime import UTC, datetime
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
def print_peak():
    print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""
CHECK = """
from training.spec import parse_spec, resolve_uris
from training.stages.check_data import check_data
text = Path("{example}/cancelled_orders.yaml").read_text()
text = text.replace("/orders.csv", "/orders").replace("  suite: cancelled_orders/orders\\n", "").replace("freshness: 3d", "freshness: 40d")
spec = resolve_uris(parse_spec(text.encode()), {{"ORDERS_URI": "file://{folder}"}})
exit_code = check_data(spec, datetime(2026, 3, 15, 2, tzinfo=UTC), size_bytes=2**28, say=lambda line: sys.stderr.write(line + "\\n"))
assert exit_code == 0, exit_code
print_peak()
"""
PASSES = """
from training.validation.snapshot_view import ParquetParts
parts = ParquetParts(sorted(Path("{folder}").iterdir()))
for number in range(2):
    found = list(parts.chunks({{f"n{{column}}": "int64" for column in range(8)}}))
assert [table.num_rows for table in found] == [{count}]
assert found[0]["n7"].to_pylist() == list(range({count}))
print_peak()
"""
QUERIES = """
from training.validation.snapshot_view import MergedParts, ParquetParts
from training.sql.expressions import hardened
folder = Path("{folder}")
types = {{f"n{{column}}": "int64" for column in range(8)}}
source = MergedParts(ParquetParts(sorted(folder.glob("*.parquet"))), [1] * {count}, types, folder / "merged" / "rows.parquet")
with hardened([folder], threads=1, trusts_statistics=False) as connection:
    for name in types:
        (found,) = connection.execute(f"SELECT count(DISTINCT {{name}}), max({{name}}) FROM {{source.relation()}}").fetchall()
        assert found == ({count}, {count} - 1)
print_peak()
"""


def peak_kib(script: str) -> int:
    """Run a script in a process that may have 256 files open; return the most memory that it had, in KiB."""
    done = subprocess.run([sys.executable, "-c", OF_A_PROCESS + script], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.split()[-1])


def orders(folder: Path, count: int) -> int:
    """Write files of one order each; return the memory of the stages up to the dataset, in KiB."""
    header, *lines = (EXAMPLE / "data" / "orders.csv").read_text().splitlines()
    (folder / "orders").mkdir(parents=True)
    for number in range(count):
        line = lines[number * len(lines) // count % len(lines)]
        (folder / "orders" / f"{number:05d}.csv").write_text(f"{header}\n{10**6 + number},{line.partition(',')[2]}\n")
    return peak_kib(CHECK.format(example=EXAMPLE, folder=folder))


@pytest.mark.long
def test_stages_take_less_than_25_kib_for_a_file_and_few_open_files(tmp_path: Path) -> None:
    few, many = orders(tmp_path / "few", FEW), orders(tmp_path / "many", MANY)
    assert many - few < 25 * (MANY - FEW)


def small_files(folder: Path) -> dict[int, Path]:
    """Write folders of few and of many Parquet files with a row each, by their number of files."""
    folders = {count: folder / str(count) for count in (FEW, MANY)}
    for count, place in folders.items():
        place.mkdir()
        for number in range(count):
            pq.write_table(pa.table({f"n{column}": [number] for column in range(8)}), place / f"{number:05d}.parquet")
    return folders


@pytest.mark.slow
def test_a_pass_of_validation_keeps_nothing_of_a_file_that_it_has_read(tmp_path: Path) -> None:
    few, many = (peak_kib(PASSES.format(folder=folder, count=count)) for count, folder in small_files(tmp_path).items())
    assert many - few < 5 * (MANY - FEW)


@pytest.mark.slow
def test_queries_of_validation_take_no_memory_for_a_small_file(tmp_path: Path) -> None:
    few, many = (peak_kib(QUERIES.format(folder=folder, count=count)) for count, folder in small_files(tmp_path).items())
    assert many - few < 5 * (MANY - FEW)
