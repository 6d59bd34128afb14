"""Tables written as a snapshot's files, and their suites judged: by the product, and by Great Expectations on a frame of all rows."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import great_expectations as gx
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.validator.v1_validator import Validator

from training.sources.arrow_schema import schema_of
from training.sources.table_contract import TableContract
from training.spec.sections.data import Column
from training.sql.arrow_types import ARROW_TYPES
from training.store import Manifest
from training.store.manifests import FileEntry
from training.validation.columns.statistics import profile
from training.validation.results import CheckResult
from training.validation.snapshot_view import TableView, open_snapshot
from training.validation.suites.judging import SuiteJudge, judged_as
from training.validation.suites.wording import result_of

LIMIT = 2**30


def view_of(folder: Path, rows: pa.Table, kinds: dict[str, str], *, files: int = 1) -> TableView:
    """Write rows as files of a table."""
    (folder / "t").mkdir(parents=True)
    cuts = np.linspace(0, rows.num_rows, files + 1).astype(int)
    parts: dict[str, dict[str, Any]] = {}
    for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
        pq.write_table(rows.slice(start, stop - start), folder / f"t/{number:03}.parquet")
        parts[f"t/{number:03}.parquet"] = {"rows": int(stop - start), "partition": None}
    meta = {"tables": {"t": {"rows": rows.num_rows, "schema": kinds, "parts": parts}}}
    contract = TableContract(name="t", kind="parquet", uri="file:///t", columns={name: Column(type=kind) for name, kind in kinds.items()})
    manifest = Manifest(kind="snapshot", files={part: FileEntry(digest=part, size_bytes=1) for part in parts}, meta=meta)
    return open_snapshot(manifest, folder, [contract])[0]


def judged(view: TableView, suite: list[dict[str, Any]], *, limit: int = LIMIT) -> list[CheckResult]:
    judge = SuiteJudge({"expectations": suite}, name="s", table="t", types=view.contract.types)  # type: ignore[typeddict-item]
    judge.refuse_too_large(view, limit)
    return judge.judge(view, profile(view, (0, 1)), limit)


def judged_frame(suite: list[dict[str, Any]], frame: pd.DataFrame) -> list[CheckResult]:
    """Judge the rows of a frame as a table of one file."""
    rows = pa.Table.from_pandas(frame, preserve_index=False)
    kinds = schema_of(rows.schema, source="t")
    rows = rows.cast(pa.schema([(name, ARROW_TYPES[kind]) for name, kind in kinds.items()]))
    with tempfile.TemporaryDirectory() as folder:
        return judged(view_of(Path(folder), rows, kinds), suite)


def judged_by_great_expectations(suite: list[dict[str, Any]], frame: pd.DataFrame) -> list[CheckResult]:
    """Let Great Expectations judge a frame, as its users do; one on quantiles by itself: two of a column share what they find."""
    wide = {"float32": "float64", "int8": "int64", "int16": "int64", "int32": "int64"}
    given = judged_as(suite, [str(name) for name, kind in frame.dtypes.items() if kind == "float32"])  # type: ignore[arg-type]
    frame = frame.astype({name: wide[str(kind)] for name, kind in frame.dtypes.items() if str(kind) in wide})
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    rows = context.data_sources.add_pandas("t").add_dataframe_asset("t").add_batch_definition_whole_dataframe("t")
    placed = [{**expectation, "meta": {"position": number}} for number, expectation in enumerate(given)]
    groups = [[each for each in placed if "quantile" not in each["type"]], *([each] for each in placed if "quantile" in each["type"])]
    found = {}
    for group in groups:
        validator = Validator(rows, batch_parameters={"dataframe": frame}, result_format="SUMMARY")
        for result in validator.validate_expectation_suite(gx.ExpectationSuite(name="s", expectations=group)).results:
            number = result.expectation_config.meta["position"]
            # By metric, where it is not the expectation itself that raised.
            raised = [info for info in result.exception_info.values() if isinstance(info, dict) and info["raised_exception"]]
            result.exception_info = raised[0] if raised else result.exception_info
            found[number] = result_of(result, suite[number]["kwargs"], table="t")
    return [found[number] for number in range(len(suite))]
