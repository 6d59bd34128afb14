"""Peak memory and CPU of `prepare` on clicks of the simulated shop, by the rows of their window.

    python -m benchmarks.prepare_memory [--rows 2000000]

The stage's work runs in a process of its own; its peak is VmHWM, the imports included.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

from devstack.shop import write_day
from training.contracts import RunIdentity, StageRequest
from training.data.snapshot.builder import SnapshotPlan, take_snapshot
from training.runtime.context import StageContext, StopFlag
from training.runtime.provenance import CHECKOUT
from training.sources.listing import listing_for
from training.sources.table_contract import contracts_of
from training.spec import PipelineSpec, parse_spec, resolve_uris, window
from training.store import Store

AS_OF: Final = datetime(2026, 2, 1, 2, tzinfo=UTC)
LAST_DAY: Final = date(2026, 1, 31)
DAYS: Final = 30
ROWS_PER_SEARCH: Final = 12


def spec_of(folder: Path) -> PipelineSpec:
    content = (CHECKOUT / "dags/pipelines/search_ranking.yaml").read_bytes()
    return resolve_uris(
        parse_spec(content, "search_ranking.yaml"), {"SHOP_URI": (folder / "shop").as_uri(), "ALERTS_URI": "http://127.0.0.1"}
    )


def take(folder: Path, rows: int) -> str:
    """Make the shop's days and a snapshot of them; return its URI."""
    for back in range(DAYS):
        write_day(folder / "shop", LAST_DAY - timedelta(days=back), searches=rows // DAYS // ROWS_PER_SEARCH)
    spec = spec_of(folder)
    start, end = window(spec, AS_OF)
    (folder / "ingest").mkdir()
    plan = SnapshotPlan(
        contracts=contracts_of(spec), listing=listing_for(spec, AS_OF), as_of=AS_OF, start=start, end=end, split={}, lookback={}
    )
    return take_snapshot(Store(str(folder / "store")), plan, folder / "ingest", on_file=lambda _done, _total: None)[0]


def prepare(folder: Path, snapshot_uri: str) -> None:
    from training.stages import prepare as stage

    store = Store(str(folder / "store"))
    scratch = folder / "scratch"
    scratch.mkdir()
    request = StageRequest(
        pipeline="search_ranking",
        stage="prepare",
        work_id="f" * 64,
        attempt_id="a",
        store_uri=store.root_uri,
        spec_uri="",
        as_of=AS_OF,
        inputs={"snapshot": snapshot_uri},
        run=RunIdentity(dag_id="search_ranking", run_id="benchmark", task_id="prepare"),
    )
    context = StageContext(store=store, request=request, spec=spec_of(folder), folder=scratch, stop=StopFlag())
    started = time.process_time()
    outcome = stage.work(context)
    measured = {
        "rows": outcome.scalars["rows"],
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "cpu_seconds": round(time.process_time() - started, 1),
        "digest": outcome.digest,
    }
    sys.stdout.write(json.dumps(measured) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--prepare", nargs=2, metavar=("FOLDER", "SNAPSHOT_URI"), help="what the process of its own does")
    options = parser.parse_args()
    if options.prepare:
        prepare(Path(options.prepare[0]), options.prepare[1])
        return
    with tempfile.TemporaryDirectory(prefix="nightshift-prepare-") as name:
        uri = take(Path(name), options.rows)
        subprocess.run([sys.executable, "-m", "benchmarks.prepare_memory", "--prepare", name, uri], cwd=CHECKOUT, check=True)


if __name__ == "__main__":
    main()
