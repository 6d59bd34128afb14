"""Peak memory and time of each stage under a memory limit, by the rows of the window.

    python -m benchmarks.out_of_core [--sizes 1 4 16] [--limit 1GiB] [--folder /large/disk]

1 is 1 M rows of 20 columns, in 30 daily Parquet files. Every stage is the process that a run starts. Its memory is that of the process
and all its children, read five times a second: PSS, and of it what is anonymous, that is without the pages of files that the system
takes back where memory is short. `evaluate` and `canary` need MLflow and are not measured here.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import duckdb

from training.contracts import RunIdentity, StageRequest
from training.runtime.provenance import CHECKOUT
from training.runtime.stage_memory import STAGE_MEMORY
from training.sources.limits import TABLE_MEMORY
from training.sources.listing import listing_for
from training.spec import PipelineSpec, freeze, parse_spec, resolve_uris
from training.spec.types import parse_size
from training.store import Store

AS_OF: Final = datetime(2026, 2, 1, 2, tzinfo=UTC)
FIRST_DAY: Final = date(2026, 1, 2)
DAYS: Final = 30
ROWS: Final = 1_000_000
DOUBLES: Final = 8
FLOATS: Final = 5
CODES: Final = 3
GOAL_GROWTH: Final = 4.6
"""Time per four times the rows."""
LOOK_SECONDS: Final = 0.2
STAGES: Final = ("ingest", "validate", "prepare", "train")
INPUTS: Final = {
    "ingest": [],
    "validate": ["snapshot"],
    "prepare": ["snapshot"],
    "train": ["dataset"],
}
MIB: Final = 2**20

SPEC: Final = f"""
name: rows
owner: benchmarks
data:
  source:
    table: rows
    kind: parquet
    uri: "${{ROWS_URI}}"
    partition: "dt={{date}}"
    event_time: at
    window: {DAYS}d
    key: [id]
    columns:
      id: {{type: int64}}
      at: {{type: timestamp}}
      word: {{type: string}}
      yes: {{type: int8, known: after}}
{"".join(f"      d{n}: {{type: double}}{chr(10)}" for n in range(DOUBLES))}\
{"".join(f"      f{n}: {{type: float}}{chr(10)}" for n in range(FLOATS))}\
{"".join(f"      c{n}: {{type: int32}}{chr(10)}" for n in range(CODES))}\
  label: {{column: yes}}
  split: {{by: time, validation: 2d, test: 2d}}
prepare:
  features:
    word: {{transform: category}}
{"".join(f"    d{n}: {{transform: standard}}{chr(10)}" for n in range(DOUBLES))}\
{"".join(f"    f{n}: {{transform: number}}{chr(10)}" for n in range(FLOATS))}\
{"".join(f"    c{n}: {{transform: category}}{chr(10)}" for n in range(CODES))}\
train: {{model: boosted_trees, seed: 3, epochs: 2, learning_rate: 0.3, settings: {{max_depth: 4}}}}
evaluate: {{task: binary, primary: auc}}
promote: {{model: rows}}
"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One stage's process and its children."""

    seconds: float
    pss_bytes: int
    anonymous_bytes: int
    spilled: str
    digest: str


def write_rows(folder: Path, rows: int) -> None:
    """Write the days' files, a day at a time; equal sizes have equal bytes."""
    connection = duckdb.connect()
    connection.execute("SET threads = 2")
    connection.execute("SET memory_limit = '1GB'")
    per_day = rows // DAYS
    for number in range(DAYS):
        day = FIRST_DAY + timedelta(days=number)
        place = folder / f"dt={day.isoformat()}"
        place.mkdir(parents=True)
        # In no order, as tables come.
        first = number * per_day
        numbers = [f"hash(i, {column}) % 1000003 / 1000003.0" for column in range(DOUBLES + FLOATS)]
        doubles = [f"CAST({numbers[n]} * {10**n} - 0.37 AS DOUBLE) AS d{n}" for n in range(DOUBLES)]
        floats = [f"CAST({numbers[DOUBLES + n]} AS FLOAT) AS f{n}" for n in range(FLOATS)]
        codes = [f"CAST(hash(i, {100 + n}) % {10 ** (n + 1)} AS INTEGER) AS c{n}" for n in range(CODES)]
        instant = (
            f"CAST(TIMESTAMPTZ '{day.isoformat()} 00:00:00+00' + to_microseconds(CAST(hash(i, 50) % 86400000000 AS BIGINT)) AS TIMESTAMPTZ)"
        )
        yes = f"CAST({numbers[0]} + {numbers[1]} > 1 AS TINYINT) AS yes"
        columns = ["i AS id", f"{instant} AS at", "'w' || hash(i, 51) % 40 AS word", yes, *doubles, *floats, *codes]
        query = f"SELECT {', '.join(columns)} FROM range({first}, {first + per_day}) t(i)"  # noqa: S608 - numbers and own names
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"COPY ({query}) TO '{place / 'rows.parquet'}' (FORMAT parquet, ROW_GROUP_SIZE 122880)")
    connection.close()


class Stages:
    """The stages of one size, each in a process of its own."""

    def __init__(self, folder: Path, limit: str) -> None:
        self._folder, self._limit = folder, limit
        self.store = Store(str(folder / "store"))
        self.spec: PipelineSpec = resolve_uris(parse_spec(SPEC.encode()), {"ROWS_URI": (folder / "rows").as_uri()})
        self._made: dict[str, str] = {}

    def measure(self, stage: str) -> Measured:
        """Run a stage; return what it took."""
        address = self.store.address("rows", stage, stage.encode().hex().rjust(64, "0"))
        parameters: dict[str, Any] = {}
        if stage == "ingest":
            parameters["listing"] = listing_for(self.spec, AS_OF)
        if stage == "train":
            parameters["world_size"] = 1
        request = StageRequest(
            pipeline="rows",
            stage=stage,
            fingerprint=address.uri.rsplit("/", 1)[-1],
            attempt_id="a",
            store_uri=self.store.root_uri,
            spec_uri=self.store.put_json(freeze(self.spec)),
            as_of=AS_OF.isoformat(),
            inputs={name: self._made[name] for name in INPUTS[stage]},
            parameters=parameters,
            run=RunIdentity(dag_id="rows", run_id="benchmark", task_id=stage),
        )
        log = self._folder / f"{stage}.log"
        environment = {
            **os.environ,
            STAGE_MEMORY.name: self._limit,
            TABLE_MEMORY.name: "1TiB",
            "TMPDIR": str(self._folder),
            "OMP_NUM_THREADS": "1",
            # Nobody listens there, and nobody is asked twice.
            "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        }
        command = [sys.executable, "-m", f"training.stages.{stage}", address.write_request(request)]
        started_at = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=output, stderr=subprocess.STDOUT)
            pss, anonymous = _watched(process)
        seconds = time.monotonic() - started_at
        text = log.read_text(encoding="utf-8", errors="replace")
        result = address.result()
        if result is None:
            sys.exit(f"{stage} ended with {process.returncode}: {text[-2000:]}")
        self._made[{"ingest": "snapshot", "prepare": "dataset"}.get(stage, stage)] = str(result.artifact_uri)
        spilled = re.search(r"(\d+ MiB) spilled", text)
        return Measured(
            seconds=seconds,
            pss_bytes=pss,
            anonymous_bytes=anonymous,
            spilled="" if spilled is None else spilled[1],
            digest=str(result.digest)[:12],
        )


def _watched(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Wait for a process; return the largest PSS of it and its children, and the largest anonymous part."""
    pss, anonymous = 0, 0
    while process.poll() is None:
        sums = [0, 0]
        for pid in _tree(process.pid):
            with suppress(OSError, ValueError):
                text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
                for place, name in enumerate(("Pss", "Pss_Anon")):
                    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
                    sums[place] += int(found[1]) * 1024 if found else 0
        pss, anonymous = max(pss, sums[0]), max(anonymous, sums[1])
        time.sleep(LOOK_SECONDS)
    return pss, anonymous


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text(encoding="ascii").split():
                yield from _tree(int(child))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--limit", default="1GiB")
    parser.add_argument("--folder", type=Path, help="on a disk with about 1 GB per million rows")
    options = parser.parse_args()
    limit_bytes = parse_size(options.limit)
    before: dict[str, tuple[int, float]] = {}
    missed: list[str] = []
    print(f"limit {options.limit}; s (growth per 4 times the rows) | MiB of PSS (of it anonymous) | spilled | digest", flush=True)
    for size in options.sizes:
        with tempfile.TemporaryDirectory(prefix="nightshift-out-of-core-", dir=options.folder) as name:
            folder = Path(name)
            os.environ["NIGHTSHIFT_DATABASE"] = f"sqlite:///{name}/nightshift.db"
            os.environ["NIGHTSHIFT_HOME"] = name
            write_rows(folder / "rows", size * ROWS)
            stages = Stages(folder, options.limit)
            for stage in STAGES:
                found = stages.measure(stage)
                growth = ""
                if stage in before:
                    earlier, seconds = before[stage]
                    per_four = (found.seconds / seconds) ** (1 / math.log(size / earlier, 4))
                    growth = f" ({per_four:.2f})"
                    missed += [f"{stage} {size}x: time {per_four:.2f}"] if per_four > GOAL_GROWTH else []
                missed += [f"{stage} {size}x: {found.pss_bytes / MIB:.0f} MiB"] if found.pss_bytes > limit_bytes else []
                before[stage] = size, found.seconds
                memory = f"{found.pss_bytes / MIB:>6.0f} ({found.anonymous_bytes / MIB:.0f})"
                print(
                    f"{size:>3}x {stage:<9} {found.seconds:>7.1f}{growth:<8} | {memory:<14} | {found.spilled:<9} | {found.digest}",
                    flush=True,
                )
    print("goals missed: " + "; ".join(missed) if missed else "goals met: every stage below the limit, time in proportion")


if __name__ == "__main__":
    main()
