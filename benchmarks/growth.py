"""What an installation's store holds after each of many nights, with retention and without.

    PYTHONPATH=. python benchmarks/growth.py [--nights 100] [--rows 3000] [--runs 14d]

Each night has new data, and takes ingest, prepare and train as shipped, in this process; a decision about its model is recorded,
every fourth one promotes it. Then all files of the store become a day older, and the collector runs. "Without" is what is there and
what was deleted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.unit.training.stages.evaluate_bench import AS_OF, SPEC, orders, run_stage, spec_for
from training.contracts import StageResult
from training.registry.ledger.decisions import record_candidate
from training.registry.ledger.ledger import AliasHolder, Ledger
from training.registry.ledger.retention import LedgerRoots
from training.retention.settings import Retention
from training.sources.listing import listing_for
from training.store import Store
from training.store.garbage_collector import Collector

DAY_SECONDS = 86_400
PROMOTED_EVERY = 4
SHOWN_EVERY = 10


class Nights:
    """A store and a ledger, and one night after the other."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder, self.rows = folder, rows
        (folder / "orders").mkdir()
        self.store = Store(str(folder / "store"))
        self.ledger = Ledger(os.environ["NIGHTSHIFT_DATABASE"])
        self.spec = spec_for(SPEC, "binary", (folder / "orders").as_uri())

    def stage(self, name: str, night: int, inputs: dict[str, str], parameters: dict[str, Any]) -> StageResult:
        code, work_folder = run_stage(
            self.store, self.spec, name, inputs, parameters, work_id=f"{night:064x}", run_id=f"night-{night}", as_of=AS_OF
        )
        result = work_folder.result()
        if result is None:
            raise SystemExit(f"{name} of night {night} ended with {code}: {work_folder.error('a1')}")
        return result

    def night(self, number: int) -> None:
        orders(seed=number).head(self.rows).to_csv(self.folder / "orders" / "orders.csv", index=False)
        snapshot = self.stage("ingest", number, {}, {"listing": listing_for(self.spec, AS_OF)})
        dataset = self.stage("prepare", number, {"snapshot": snapshot.artifact_uri}, {})
        model = self.stage("train", number, {"dataset": dataset.artifact_uri}, {"world_size": 1})
        uris = {"snapshot_uri": snapshot.artifact_uri, "dataset_uri": dataset.artifact_uri, "model_uri": model.artifact_uri}
        weights = str(model.scalars["weights_digest"])
        holder = AliasHolder(version=str(number), weights_digest=weights, model_uri=model.artifact_uri, as_of=AS_OF, bounds={"test": []})
        record_candidate(
            self.ledger,
            holder,
            model="orders",
            outcome="accepted" if number % PROMOTED_EVERY == 1 else "rejected",
            reasons=[],
            evidence={**uris, "evaluation_digest": str(number), "revision": self.ledger.standing("orders").revision, "has_canary": False},
            decided_by="night",
        )

    def deliver(self) -> None:
        """Let MLflow have the metrics: work whose metrics wait for it stays."""
        for entry in self.store.bucket.list("tracking"):
            self.store.bucket.delete(entry.key)

    def pass_a_day(self) -> None:
        for folder, _, names in os.walk(self.folder / "store"):
            for name in names:
                path = os.path.join(folder, name)
                then = os.stat(path).st_mtime - DAY_SECONDS
                os.utime(path, (then, then))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nights", type=int, default=100)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--runs", default="14d")
    given = parser.parse_args()
    os.environ["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:9"
    importlib.import_module("training.engine.tracking.tracker").CLOSE_SECONDS = 0.1  # type: ignore[attr-defined]
    retention = Retention.model_validate({"runs": given.runs, "attempts": given.runs})
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NIGHTSHIFT_DATABASE"] = f"sqlite:///{folder}/nightshift.db"
        nights, deleted, seconds = Nights(Path(folder), given.rows), Counter[str](), 0.0
        print(f"runs {given.runs}, former champions {retention.champions}, grace 2d; MB with retention (without)")
        for number in range(1, given.nights + 1):
            nights.night(number)
            nights.deliver()
            nights.pass_a_day()
            started_at = time.process_time()
            report = Collector(nights.store, retention.rules(), LedgerRoots(champions=retention.champions)).collect()
            seconds += time.process_time() - started_at
            deleted.update({kind: tally.deleted for kind, tally in report.by_kind.items()})
            if number % SHOWN_EVERY == 0:
                held = {kind: tally.kept + tally.condemned for kind, tally in report.by_kind.items()}
                cells = [f"{kind} {held[kind] / 1e6:.2f} ({(held[kind] + deleted[kind]) / 1e6:.2f})" for kind in sorted(held) if held[kind]]
                total, gone = sum(held.values()), sum(deleted.values())
                print(f"night {number:>3}: all {total / 1e6:.2f} ({(total + gone) / 1e6:.2f}); " + "; ".join(cells), flush=True)
        print(f"CPU of a collection: {seconds / given.nights:.2f} s on average, of {len(nights.store.bucket.list(''))} files at the end")


if __name__ == "__main__":
    main()
