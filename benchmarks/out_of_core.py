"""Peak memory and time of each stage under a memory limit, by the rows of the window.

    python -m benchmarks.out_of_core [--sizes 1 4 16] [--stages ingest prepare] [--split time] [--test-days 2]
        [--many-values] [--grouped] [--family linear] [--limit 1GiB] [--folder /large/disk]

1 is 1 M rows of 20 columns, in 30 daily Parquet files. With `--many-values` there are three more: a number and a text with a value per
eight rows (`target_encode`, and `category` that keeps the top 1,000), and a weight; `--split group` divides by that number then, and
`--grouped` makes it the group. Every stage is the process that a run starts. Its memory is that of the process
and all its children, read five times a second: PSS, and of it what is anonymous, that is without the pages of files that the system
takes back where memory is short. `evaluate` and `canary` compare two models on the rows of the last `--test-days` days; the MLflow
server that they need is not part of their memory.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import duckdb

from training.contracts import RunIdentity, StageRequest
from training.evaluation import latency
from training.runtime.provenance import CHECKOUT
from training.runtime.stage_memory import STAGE_MEMORY
from training.sources.listing import listing_for
from training.sources.size_limits import TABLE_MEMORY
from training.spec import PipelineSpec, freeze, parse_spec, resolve_uris
from training.spec.scalar_types import parse_size
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
STAGES: Final = ("ingest", "validate", "prepare", "train", "evaluate", "canary")
INPUTS: Final[Mapping[str, Sequence[str]]] = {
    "ingest": [],
    "validate": ["snapshot"],
    "prepare": ["snapshot"],
    "train": ["dataset"],
    "evaluate": ["model", "dataset"],
    "canary": ["dataset"],
}
MADE: Final = {"ingest": "snapshot", "prepare": "dataset", "train": "model"}
"""Stage to the input that it makes."""
TREES: Final = "{model: boosted_trees, seed: 3, epochs: 2, learning_rate: 0.3, settings: {max_depth: 4}}"
LINEAR: Final = "{model: linear, seed: 3, epochs: 2}"
CHAMPION: Final = {"boosted_trees": ("max_depth: 4", "max_depth: 2"), "linear": ("epochs: 2", "epochs: 1")}
"""What differs in the champion's spec."""
MIB: Final = 2**20
ROWS_PER_VALUE: Final = 8
"""With `--many-values`."""
MANY_COLUMNS: Final = """\
      user: {type: int64}
      name: {type: string}
      worth: {type: double}
"""
MANY_FEATURES: Final = """\
    user: {transform: target_encode, max_categories: 10000000}
    name: {transform: category, top: 1000}
"""
SPLITS: Final = {
    "time": "{by: time, validation: 2d, test: TEST_DAYSd}",
    "random": "{by: random, validation: 0.1, test: 0.1}",
    "group": "{by: group, column: c0, validation: 0.1, test: 0.1}",
    "stratified": "{by: stratified, validation: 0.1, test: 0.1}",
}

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
MANY_COLUMNS\
  label: {{column: yes}}
OF_ROWS\
  split: SPLIT
prepare:
  features:
    word: {{transform: category}}
{"".join(f"    d{n}: {{transform: standard}}{chr(10)}" for n in range(DOUBLES))}\
{"".join(f"    f{n}: {{transform: number}}{chr(10)}" for n in range(FLOATS))}\
{"".join(f"    c{n}: {{transform: category}}{chr(10)}" for n in range(CODES))}\
MANY_FEATURES\
train: {TREES}
evaluate: {{task: binary, primary: auc, slices: [word, c0]}}
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


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a spec says beside its features."""

    split: str
    test_days: int
    has_many_values: bool
    is_grouped: bool
    family: str = "boosted_trees"

    def text(self) -> str:
        """Return the spec."""
        split = SPLITS[self.split].replace("TEST_DAYS", str(self.test_days))
        of_rows = ["  weight: worth\n"] if self.has_many_values and not self.is_grouped else []
        of_rows += ["  group: user\n"] if self.is_grouped else []
        if self.has_many_values:
            split = split.replace("column: c0", "column: user")
        text = SPEC.replace("SPLIT", split).replace("OF_ROWS", "".join(of_rows))
        if self.family == "linear":
            text = text.replace(TREES, LINEAR)
        if self.is_grouped:
            text = text.replace("task: binary, primary: auc", "task: ranking, primary: ndcg@10")
        for place, lines in (("MANY_COLUMNS", MANY_COLUMNS), ("MANY_FEATURES", MANY_FEATURES)):
            text = text.replace(place, lines if self.has_many_values else "")
        return text


def write_rows(folder: Path, rows: int, *, has_many_values: bool = False) -> None:
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
        if has_many_values:
            value = f"CAST(hash(i, 60) % {rows // ROWS_PER_VALUE} AS BIGINT)"
            columns += [f"{value} AS user", f"'name ' || {value} AS name", f"{numbers[2]} + 0.5 AS worth"]
        query = f"SELECT {', '.join(columns)} FROM range({first}, {first + per_day}) t(i)"  # noqa: S608 - numbers and own names
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"COPY ({query}) TO '{place / 'rows.parquet'}' (FORMAT parquet, ROW_GROUP_SIZE 122880)")
    connection.close()


class Stages:
    """The stages of one size, each in a process of its own."""

    def __init__(self, folder: Path, limit: str, case: Case, mlflow_url: str) -> None:
        self._folder, self._limit, self._mlflow_url = folder, limit, mlflow_url
        self._text, self._champion = case.text(), CHAMPION[case.family]
        self._since = AS_OF.replace(hour=0) - timedelta(days=case.test_days)
        self.store = Store(str(folder / "store"))
        self.spec = self._spec_of(self._text)
        self._made: dict[str, str] = {}

    def measure(self, stage: str) -> Measured:
        """Run a stage; return what it took."""
        if stage == "evaluate":
            candidate, self.spec = self._made["model"], self._spec_of(self._text.replace(*self._champion))
            self._run("train", {"world_size": 1}, work="champion")
            self._made["champion"], self._made["model"], self.spec = self._made["model"], candidate, self._spec_of(self._text)
        return self._run(stage, self._parameters(stage), work=stage)

    def _spec_of(self, text: str) -> PipelineSpec:
        return resolve_uris(parse_spec(text.encode()), {"ROWS_URI": (self._folder / "rows").as_uri()})

    def _parameters(self, stage: str) -> dict[str, Any]:
        if stage == "ingest":
            return {"listing": listing_for(self.spec, AS_OF)}
        if stage == "train":
            return {"world_size": 1}
        if stage == "evaluate":
            return {"champion": self._seat("champion")}
        return {"champion": self._seat("champion"), "canary": self._seat("model")} if stage == "canary" else {}

    def _seat(self, name: str) -> dict[str, Any]:
        """Return a model as a champion or canary that was made before the first of the test rows."""
        uri, before = self._made[name], self._since.isoformat()
        return {
            "version": "1",
            "model_uri": uri,
            "weights_digest": self.store.manifests.get(uri, kind="model").meta["weights_digest"],
            "as_of": before,
            "bounds": {split: [before, before] for split in ("train", "validation", "test")},
            "revision": 1,
        }

    def _run(self, stage: str, parameters: dict[str, Any], *, work: str) -> Measured:
        work_folder = self.store.work_folder("rows", stage, work.encode().hex().rjust(64, "0"))
        request = StageRequest(
            pipeline="rows",
            stage=stage,
            work_id=work_folder.uri.rsplit("/", 1)[-1],
            attempt_id="a",
            store_uri=self.store.root_uri,
            spec_uri=self.store.put_json(freeze(self.spec)),
            as_of=AS_OF,
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
            "MLFLOW_TRACKING_URI": self._mlflow_url if stage == "evaluate" else "http://127.0.0.1:9",
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
            # As the launch of a stage does: the process that measures the latency is forked with the family's libraries.
            **({latency.FAMILY.name: self.spec.train.model} if stage == "evaluate" else {}),
        }
        command = [sys.executable, "-m", f"training.stages.{stage}", work_folder.write_request(request)]
        started_at = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=output, stderr=subprocess.STDOUT)
            pss, anonymous = _watched(process)
        seconds = time.monotonic() - started_at
        text = log.read_text(encoding="utf-8", errors="replace")
        result = work_folder.result()
        if result is None:
            sys.exit(f"{stage} ended with {process.returncode}: {text[-2000:]}")
        self._made[MADE.get(stage, stage)] = str(result.artifact_uri)
        spilled = re.search(r"(\d+ MiB) spilled", text)
        return Measured(
            seconds=seconds,
            pss_bytes=pss,
            anonymous_bytes=anonymous,
            spilled="" if spilled is None else spilled[1],
            digest=str(result.digest)[:12],
        )


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """Run MLflow; yield its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}", "--artifacts-destination", (folder / "artifacts").as_uri()]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    url = f"http://127.0.0.1:{port}"
    with (folder / "mlflow.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        while not _answers(f"{url}/health"):
            if process.poll() is not None:
                sys.exit(f"MLflow ended: {(folder / 'mlflow.log').read_text(encoding='utf-8', errors='replace')[-2000:]}")
            time.sleep(LOOK_SECONDS)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - our own server
            return bool(answer.status == 200)
    except OSError:
        return False


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
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES, help="each needs those that make its inputs")
    parser.add_argument("--split", choices=SPLITS, default="time", help="how rows are divided")
    parser.add_argument("--test-days", type=int, default=2, help="of 30, 1 to 27, with --split time")
    parser.add_argument("--many-values", action="store_true", help="columns with a value per eight rows, and weights")
    parser.add_argument("--grouped", action="store_true", help="one of them is the group, without weights; not with --split stratified")
    parser.add_argument("--family", choices=sorted(CHAMPION), default="boosted_trees", help="what is trained")
    parser.add_argument("--limit", default="1GiB")
    parser.add_argument("--folder", type=Path, help="on a disk with about 1 GB per million rows")
    options = parser.parse_args()
    if options.grouped and not options.many_values:
        parser.error("--grouped needs --many-values")
    case = Case(
        split=options.split,
        test_days=options.test_days,
        has_many_values=options.many_values,
        is_grouped=options.grouped,
        family=options.family,
    )
    before: dict[str, tuple[int, float]] = {}
    missed: list[str] = []
    print(f"limit {options.limit}; s (growth per 4 times the rows) | MiB of PSS (of it anonymous) | spilled | digest", flush=True)
    for size in options.sizes:
        with tempfile.TemporaryDirectory(prefix="nightshift-out-of-core-", dir=options.folder) as name, mlflow_server(Path(name)) as url:
            os.environ["NIGHTSHIFT_DATABASE"] = f"sqlite:///{name}/nightshift.db"
            os.environ["NIGHTSHIFT_HOME"] = name
            write_rows(Path(name) / "rows", size * ROWS, has_many_values=options.many_values)
            stages = Stages(Path(name), options.limit, case, url)
            missed += measure_stages(stages, options.stages, size, before, parse_size(options.limit))
    print("goals missed: " + "; ".join(missed) if missed else "goals met: every stage below the limit, time in proportion")


def measure_stages(stages: Stages, names: Sequence[str], size: int, before: dict[str, tuple[int, float]], limit_bytes: int) -> list[str]:
    """Measure and print these stages of a size, and set its size and seconds in `before`; return the goals that were missed."""
    missed: list[str] = []
    for stage in names:
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
        print(f"{size:>3}x {stage:<9} {found.seconds:>7.1f}{growth:<8} | {memory:<14} | {found.spilled:<9} | {found.digest}", flush=True)
    return missed


if __name__ == "__main__":
    main()
