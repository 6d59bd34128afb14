"""Consecutive real nights of flight_delay by `make backfill`: what the gate did, and what it was worth.

    FLIGHTS_URI=file:///path/to/nycflights13 python benchmarks/flight_delay_nights.py [--first DAY] [--nights 22] [--home FOLDER]

Three policies are scored on the flights of the day that followed each night, all days pooled: the gated champion, the newest model
whatever the gate said of it, and the first night's model for ever. The models are those that the backfill trained; nothing is trained
for this comparison.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from benchmarks.scored import compare, score_metrics
from training.data.dataset.reader import DatasetReader
from training.data.join.contract import LABEL
from training.models.predictor import Predictor, load_predictor
from training.registry.ledger.decisions import champions, holder_of
from training.registry.ledger.ledger import Entry, Ledger
from training.store import Store

ROOT = Path(__file__).resolve().parent.parent
PORTS = {"NIGHTSHIFT_AIRFLOW_PORT": "28280", "NIGHTSHIFT_MLFLOW_PORT": "28250"}
PIPELINE = "flight_delay"
ZONE = ZoneInfo("America/New_York")
POLICIES = ("gated champion", "always promote", "never retrain")
METRICS = ("auc", "log_loss", "brier")
CONFIDENCE = 0.95
SEED = 17


@dataclass(frozen=True)
class Night:
    """One decision, and who would score the day that follows under each policy."""

    entry: Entry
    as_of: datetime
    model_uris: Mapping[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--first", type=date.fromisoformat, default=date(2013, 5, 1))
    parser.add_argument("--nights", type=int, default=22)
    parser.add_argument("--home", type=Path, help="keep the installation there, and go on where it was")
    options = parser.parse_args()
    if "FLIGHTS_URI" not in os.environ:
        print("skipped: FLIGHTS_URI says where nycflights13 is, and is not set")
        return
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as folder:
        home = (options.home or Path(folder)).resolve()
        environment = {
            **os.environ,
            **PORTS,
            "NIGHTSHIFT_HOME": str(home),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plugins")]),
        }
        os.environ.update({"NIGHTSHIFT_HOME": str(home)})
        ledger = Ledger(f"sqlite:///{home / 'nightshift.db'}")
        started_at = time.monotonic()
        if len(ledger.history(PIPELINE)) < options.nights:
            backfill(environment, options.first, options.nights)
            print(f"{options.nights} nights in {time.monotonic() - started_at:.0f} s\n")
        report(ledger, Store((home / "store").as_uri()), home / "scratch")


def backfill(environment: Mapping[str, str], first: date, num_nights: int) -> None:
    """Run the nights one after the other on a real scheduler."""
    services = [sys.executable, "-m", "devstack"]
    last = first + timedelta(days=num_nights - 1)
    try:
        subprocess.run([*services, "backfill", PIPELINE, "--from", str(first), "--to", str(last)], env=environment, check=True)
    finally:
        subprocess.run([*services, "stop"], env=environment, check=True, stdout=subprocess.DEVNULL)


def report(ledger: Ledger, store: Store, scratch: Path) -> None:
    """Print each decision, and the three policies on the pooled following days."""
    nights = read_nights(ledger.history(PIPELINE))
    print("| night | version | decision | candidate AUC | champion AUC | gain, 95 % interval |\n| --- | --- | --- | --- | --- | --- |")
    for night in nights:
        evidence = night.entry.evidence
        comparison = evidence["comparison"]
        gain = (
            "no champion yet" if comparison is None else f"{comparison['gain']:+.4f}, [{comparison['low']:+.4f}, {comparison['high']:+.4f}]"
        )
        old = evidence["champion_metrics"].get("auc")
        day, new = f"{night.as_of.astimezone(ZONE):%Y-%m-%d}", f"{evidence['metrics']['auc']:.4f}"
        print(
            f"| {day} | {night.entry.semantic_version} | {night.entry.outcome} | {new} | {'-' if old is None else f'{old:.4f}'} | {gain} |"
        )
    labels, scores, num_days = score_days(nights, store, scratch)
    print(f"\n{len(labels)} flights of {num_days} days, each scored by the models of the night before:\n")
    print("| policy | models used | " + " | ".join(METRICS) + " | AUC less never retrain, 95 % interval |")
    print("| --- | --- | " + "--- | " * len(METRICS) + "--- |")
    for policy in POLICIES:
        metrics = score_metrics("binary", "auc", labels, scores[policy], None)
        shown = " | ".join(f"{metrics[name]:.4f}" for name in METRICS)
        num_models = len({night.model_uris[policy] for night in nights[:-1]})
        print(f"| {policy} | {num_models} | {shown} | {difference(labels, scores[policy], scores['never retrain'])} |")
    print(f"\ngated champion less always promote: {difference(labels, scores['gated champion'], scores['always promote'])}")


def difference(labels: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> str:
    found = compare("auc", labels, ours, theirs, None, confidence=CONFIDENCE, seed=SEED)
    return f"{found.gain:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"


def read_nights(history: list[Entry]) -> list[Night]:
    """Return the nights in the order of their days, each with the models that the policies would use after it."""
    nights = []
    for number, entry in enumerate(history, start=1):
        uris = {
            "gated champion": holder_of(champions(history[:number])[-1]).model_uri,
            "always promote": entry.evidence["model_uri"],
            "never retrain": history[0].evidence["model_uri"],
        }
        nights.append(Night(entry, datetime.fromisoformat(entry.evidence["as_of"]), uris))
    if any(earlier.as_of > later.as_of for earlier, later in pairwise(nights)):
        raise SystemExit("nights were decided out of order")
    return nights


def score_days(nights: list[Night], store: Store, scratch: Path) -> tuple[np.ndarray, dict[str, np.ndarray], int]:
    """Score each day's flights, as the last night's dataset has them, by the models of the night before."""
    last = store.manifests.get(nights[-1].entry.evidence["dataset_uri"], kind="dataset")
    reader = DatasetReader(store, last, scratch / "dataset")
    frame = reader.columns(reader.schema.names)
    times = pd.to_datetime(frame["scheduled_departure"], utc=True)
    predictors: dict[str, Predictor] = {}
    labels, scores, num_days = [], {policy: [] for policy in POLICIES}, 0
    for number, night in enumerate(nights[:-1]):
        # Known at two in the morning: whatever departs from then on until the next night.
        rows = frame[(times >= night.as_of.astimezone(UTC)) & (times < nights[number + 1].as_of.astimezone(UTC))]
        if rows.empty:
            continue
        num_days += 1
        labels.append(rows[LABEL].to_numpy(dtype=np.float64))
        for policy, uri in night.model_uris.items():
            if uri not in predictors:
                folder = scratch / uri.rsplit("/", 1)[-1]
                predictors[uri] = load_predictor(store.manifests.fetch(store.manifests.get(uri, kind="model"), folder))
            scores[policy].append(predictors[uri].predict(rows))
    return np.concatenate(labels), {policy: np.concatenate(parts) for policy, parts in scores.items()}, num_days


if __name__ == "__main__":
    main()
