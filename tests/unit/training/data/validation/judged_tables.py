"""Tables written as a snapshot's files, and their suites judged."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from training.data.validation.column_statistics import profile
from training.data.validation.results import CheckResult
from training.data.validation.snapshot_view import TableView, open_snapshot
from training.data.validation.suites import SuiteJudge
from training.sources.table_contract import TableContract
from training.spec.sections.data import Column
from training.store import Manifest
from training.store.manifests import FileEntry

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
    return judge.judge(view, profile(view, (0, 1), judge.wanted), limit)
