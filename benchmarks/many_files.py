"""Time, CPU and peak memory of ingest, validate and prepare by the number of files of a source.

    python -m benchmarks.many_files [--files 10000 100000] [--rows 10] [--limit 1GiB] [--folder /large/disk]

Each file is a small Parquet file of the 20 columns of `benchmarks.out_of_core`, spread over 30 days. Every stage is the process that a run
starts; its memory is read as there. CPU seconds are those of the process and its children.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from benchmarks.out_of_core import DAYS, MIB, Case, Stages, write_rows

STAGES: Final = ("ingest", "validate", "prepare")
CASE: Final = Case(split="time", test_days=2, has_many_values=False, is_grouped=False)


def write_files(folder: Path, num_files: int, rows: int) -> None:
    """Write the days of `benchmarks.out_of_core` as small files: equal arguments, equal bytes."""
    whole = folder / "whole"
    write_rows(whole, num_files * rows // DAYS * DAYS)
    for day in sorted(whole.iterdir()):
        table = pq.read_table(day / "rows.parquet", partitioning=None)
        place = folder / "rows" / day.name
        place.mkdir(parents=True)
        for number, first in enumerate(range(0, table.num_rows, rows)):
            pq.write_table(table.slice(first, rows), place / f"{number:06d}.parquet", compression="none")
    shutil.rmtree(whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--rows", type=int, default=10, help="of a file")
    parser.add_argument("--limit", default="1GiB", help="NIGHTSHIFT_STAGE_MEMORY of each stage")
    parser.add_argument("--folder", type=Path, help="on a disk with room; absent: TMPDIR")
    arguments = parser.parse_args()
    print("| files | rows | stage | s | CPU s | MiB | anonymous MiB |\n| --- | --- | --- | --- | --- | --- | --- |")
    for num_files in arguments.files:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            write_files(Path(folder), num_files, arguments.rows)
            stages = Stages(Path(folder), arguments.limit, CASE, "http://127.0.0.1:9")
            for stage in STAGES:
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                measured = stages.measure(stage)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                figures = f"{measured.seconds:.1f} | {cpu:.1f} | {measured.pss_bytes / MIB:.0f} | {measured.anonymous_bytes / MIB:.0f}"
                print(f"| {num_files:,} | {num_files * arguments.rows:,} | {stage} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
