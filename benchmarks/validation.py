"""What validation costs beside Great Expectations alone, and beside one pass of the columns.

    PYTHONPATH=. python benchmarks/validation.py [--rows 1000000] [--rounds 3]

The same Parquet file and the same suite of 24 expectations, each case in a process of its own, in turns. A case's CPU is counted from
after its imports; its memory is the peak beyond what the imports took.

floor   reads each column once, and takes its minimum, maximum and sum of valid rows (Arrow)
duckdb  the 24 expectations as one query by hand
polars  the 24 expectations as one lazy query by hand, where polars is installed
pandera the 24 expectations as checks of a schema, on pandas, where pandera is installed
gx      reads the table into a data frame, and runs the suite as a `ValidationDefinition`
stage   all of the stage: built-in checks, statistics, profiles for drift, the suite, and the report's page

Each but the floor says how many of the 24 expectations are not met. pandas, polars and DuckDB have one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from training.pages.validation import render_report
from training.sources.arrow_schema import schema_of
from training.sources.table_contract import TableContract
from training.spec.sections.data import Column
from training.store import Manifest
from training.store.manifests import FileEntry
from training.validation.all_checks import CheckRules, validate_snapshot
from training.validation.snapshot_view import open_snapshot
from training.validation.suites.judging import SuiteJudge

CASES = ("floor", "duckdb", "polars", "pandera", "gx", "stage")
NEEDS = {"polars": "polars", "pandera": "pandera"}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
START = datetime(2026, 1, 1, tzinfo=UTC)
DAYS = 10
PART = "rows/all.parquet"
DOUBLES, FLOATS, INTEGERS = 6, 5, 5


def write(folder: Path, rows: int) -> None:
    """Write a table of 20 columns, and its suite."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "id": np.arange(rows),
        "at": pa.array(round(START.timestamp() * 1e6) + np.arange(rows) * (DAYS * 86_400_000_000 // rows), pa.timestamp("us", tz="UTC")),
        "word": np.array(["one", "two", "three", "four"])[rng.integers(0, 4, rows)],
        "name": np.char.add("u", rng.integers(0, 50_000, rows).astype(str)),
    }
    columns |= {f"d{number}": rng.normal(size=rows) for number in range(DOUBLES)}
    columns |= {f"f{number}": rng.normal(size=rows).astype(np.float32) for number in range(FLOATS)}
    columns |= {f"i{number}": rng.integers(0, 100, rows).astype(np.int32) for number in range(INTEGERS)}
    (folder / "rows").mkdir()
    pq.write_table(pa.table(columns), folder / PART)
    numbers = [name for name in columns if name[0] in "dfi" and name != "id"]
    expectations = [{"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 1}}]
    expectations += [
        {"type": "expect_column_values_to_be_between", "kwargs": {"column": name, "min_value": -100, "max_value": 100}} for name in numbers
    ]
    expectations += [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": name}} for name in ("id", "d0", "f0", "i0")]
    expectations += [
        {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "word", "value_set": ["one", "two", "three", "four"]}},
        {"type": "expect_column_values_to_match_regex", "kwargs": {"column": "name", "regex": "^u[0-9]+$"}},
        {"type": "expect_column_mean_to_be_between", "kwargs": {"column": "d0", "min_value": -1, "max_value": 1}},
    ]
    (folder / "suite.json").write_text(json.dumps({"name": "suite", "expectations": expectations}))


def floor(folder: Path) -> str:
    file, found = pq.ParquetFile(folder / PART), []
    for name in file.schema_arrow.names:
        values = file.read(columns=[name]).column(name)
        found.append((pc.min_max(values).as_py(), pc.count(values).as_py()))
        if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
            found.append(pc.sum(values).as_py())
    return f"{len(found)} numbers"


def gx(folder: Path) -> str:
    import great_expectations

    suite = json.loads((folder / "suite.json").read_bytes())
    frame = pq.read_table(folder / PART).to_pandas()
    context = great_expectations.get_context(mode="ephemeral")
    definition = context.data_sources.add_pandas("p").add_dataframe_asset("rows").add_batch_definition_whole_dataframe("all")
    named = context.suites.add(great_expectations.ExpectationSuite(name="suite", expectations=suite["expectations"]))
    validation = context.validation_definitions.add(great_expectations.ValidationDefinition(name="v", data=definition, suite=named))
    results = validation.run(batch_parameters={"dataframe": frame}, result_format="SUMMARY").results
    return f"{len(results)} expectations, {sum(not result.success for result in results)} not met"


def _suite(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    expectations = json.loads((folder / "suite.json").read_bytes())["expectations"]
    return [(entry["type"], entry["kwargs"]) for entry in expectations]


def _verdicts(counts: list[Any], suite: list[tuple[str, dict[str, Any]]]) -> str:
    """Say how many are not met: counts of rows that do not meet one, or the number that has bounds."""
    missed = 0
    for (kind, arguments), value in zip(suite, counts, strict=True):
        low, high = arguments.get("min_value"), arguments.get("max_value")
        if kind in ("expect_column_mean_to_be_between", "expect_table_row_count_to_be_between"):
            missed += (low is not None and value < low) or (high is not None and value > high)
        else:
            missed += value > 0
    return f"{len(suite)} expectations, {missed} not met"


def duckdb(folder: Path) -> str:
    import duckdb as engine

    terms = {
        "expect_table_row_count_to_be_between": lambda _: "count(*)",
        "expect_column_values_to_be_between": lambda k: (
            f"count(*) FILTER (NOT ({k['column']} BETWEEN {k['min_value']} AND {k['max_value']}))"
        ),
        "expect_column_values_to_not_be_null": lambda k: f"count(*) - count({k['column']})",
        "expect_column_values_to_be_in_set": lambda k: f"count(*) FILTER ({k['column']} NOT IN {tuple(k['value_set'])})",
        "expect_column_values_to_match_regex": lambda k: f"count(*) FILTER (NOT regexp_matches({k['column']}, '{k['regex']}'))",
        "expect_column_mean_to_be_between": lambda k: f"avg({k['column']})",
    }
    suite = _suite(folder)
    connection = engine.connect(config={"threads": 1})
    query = f"SELECT {', '.join(terms[kind](arguments) for kind, arguments in suite)} FROM read_parquet('{folder / PART}')"  # noqa: S608
    return _verdicts(list(connection.execute(query).fetchall()[0]), suite)


def polars(folder: Path) -> str:
    import polars as pl

    terms = {
        "expect_table_row_count_to_be_between": lambda _: pl.len(),
        "expect_column_values_to_be_between": lambda k: (~pl.col(k["column"]).is_between(k["min_value"], k["max_value"])).sum(),
        "expect_column_values_to_not_be_null": lambda k: pl.col(k["column"]).null_count(),
        "expect_column_values_to_be_in_set": lambda k: (~pl.col(k["column"]).is_in(k["value_set"])).sum(),
        "expect_column_values_to_match_regex": lambda k: (~pl.col(k["column"]).str.contains(k["regex"])).sum(),
        "expect_column_mean_to_be_between": lambda k: pl.col(k["column"]).mean(),
    }
    suite = _suite(folder)
    columns = [terms[kind](arguments).alias(str(number)) for number, (kind, arguments) in enumerate(suite)]
    return _verdicts(list(pl.scan_parquet(folder / PART).select(columns).collect().row(0)), suite)


def pandera(folder: Path) -> str:
    import pandera.pandas as pr

    checks: dict[str, list[Any]] = {}
    not_null, tables = set(), []
    suite = _suite(folder)
    for kind, k in suite:
        if kind == "expect_table_row_count_to_be_between":
            tables.append(pr.Check(lambda frame, least=k["min_value"]: len(frame) >= least))
        elif kind == "expect_column_values_to_not_be_null":
            not_null.add(k["column"])
        else:
            made = {
                "expect_column_values_to_be_between": lambda k: pr.Check.in_range(k["min_value"], k["max_value"]),
                "expect_column_values_to_be_in_set": lambda k: pr.Check.isin(k["value_set"]),
                "expect_column_values_to_match_regex": lambda k: pr.Check.str_matches(k["regex"]),
                "expect_column_mean_to_be_between": lambda k: pr.Check(lambda s: k["min_value"] <= s.mean() <= k["max_value"]),
            }[kind](k)
            checks.setdefault(k["column"], []).append(made)
    columns = {name: pr.Column(checks=checks.get(name, []), nullable=name not in not_null) for name in {*checks, *not_null}}
    frame = pq.read_table(folder / PART, use_threads=False).to_pandas(use_threads=False)
    missed = 0
    try:
        pr.DataFrameSchema(columns, checks=tables).validate(frame, lazy=True)
    except pr.errors.SchemaErrors as err:
        missed = len(err.schema_errors)
    return f"{len(suite)} expectations, {missed} not met"


def stage(folder: Path) -> str:
    schema = schema_of(pq.read_schema(folder / PART), source="rows")
    contract = TableContract(
        name="rows",
        kind="parquet",
        uri="file:///rows",
        columns={name: Column(type=kind) for name, kind in schema.items()},
        key=("id",),
        event_time="at",
        suite="suite",
    )
    rows = pq.read_metadata(folder / PART).num_rows
    meta = {"tables": {"rows": {"rows": rows, "schema": schema, "parts": {PART: {"rows": rows, "partition": None}}}}}
    manifest = Manifest(kind="snapshot", files={PART: FileEntry(digest="0" * 64, size_bytes=1)}, meta=meta)
    end = START + timedelta(days=DAYS)
    rules = CheckRules(as_of=end, start=START, end=end, zone=ZoneInfo("UTC"), label="i0", volume_change=0.5, freshness=timedelta(days=1))
    views = open_snapshot(manifest, folder, [contract])
    findings = validate_snapshot(views, rules, None, on_table=lambda done, total: None, suites_path=folder)
    window = (START, end)
    page = render_report(findings, pipeline="rows", as_of=end, window=window, snapshot_digest="0" * 64)
    return f"{len(findings.checks)} checks, {len(findings.failed)} failed, page of {len(page)} bytes"


def measure(case: str, folder: Path) -> None:
    """Run a case in this process; print its CPU seconds, its memory in MB and what it found, as JSON."""
    if case in NEEDS or case == "duckdb":
        __import__({"pandera": "pandera.pandas"}.get(case, case))
    if case in ("gx", "stage"):
        import pandas  # noqa: F401

        tiny = {"expectations": [{"type": "expect_column_values_to_be_between", "kwargs": {"column": "x", "min_value": 0}}]}
        SuiteJudge(tiny, name="tiny", table="tiny", types={"x": "double"})
    work: dict[str, Callable[[Path], str]] = {
        **{"floor": floor, "duckdb": duckdb, "polars": polars, "pandera": pandera},
        **{"gx": gx, "stage": stage},
    }
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started_at = time.process_time()
    found = work[case](folder)
    cpu_s = time.process_time() - started_at
    peak_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
    print(json.dumps({"cpu_s": cpu_s, "peak_mb": peak_mb, "found": found}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        return measure(given.case, given.folder)
    cases = [case for case in CASES if case not in NEEDS or find_spec(NEEDS[case])]
    runs: dict[str, list[dict[str, Any]]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), given.rows)
        for _ in range(given.rounds):
            for case in cases:
                command = [sys.executable, __file__, "--case", case, "--folder", folder]
                output = subprocess.run(command, stdout=subprocess.PIPE, check=True, env={**os.environ, **ONE_THREAD}).stdout
                runs[case].append(json.loads(output.splitlines()[-1]))
    print(f"{given.rows:,} rows of 20 columns, {given.rounds} rounds, load {os.getloadavg()[0]:.0f}; least CPU and memory of the rounds")
    best = {case: min(run["cpu_s"] for run in found) for case, found in runs.items()}
    for case, found in runs.items():
        peak_mb = min(run["peak_mb"] for run in found)
        ratios = ", ".join(f"{best[case] / best[other]:.2f} of {other}" for other in ("floor", "gx", "stage") if other != case)
        print(f"{case:6} {best[case]:6.2f} s of CPU ({ratios}), {peak_mb:5.0f} MB: {found[0]['found']}", flush=True)
    return None


if __name__ == "__main__":
    main()
