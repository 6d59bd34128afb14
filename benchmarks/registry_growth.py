"""CPU of what a decision reads of the ledger and of MLflow's registry, for models with many versions.

    python benchmarks/registry_growth.py [--versions 2000]

In process, MLflow on SQLite.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

MODEL = "growth"
EVIDENCE = {"slices": [{"slice": f"carrier {number}", "candidate": 0.7123, "champion": 0.7012, "rows": 1234} for number in range(40)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--versions", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        measure(Path(folder), options.versions)


def measure(folder: Path, num_versions: int) -> None:
    import mlflow

    from training.registry.ledger.ledger import Ledger
    from training.registry.ledger.version_weights import Noted, note
    from training.registry.mlflow.mirror import differences, mirror
    from training.registry.mlflow.versions import make_version
    from training.store import Store

    ledger, store, client = Ledger(f"sqlite:///{folder}/ledger.db"), Store(str(folder / "store")), mlflow.MlflowClient()
    for number in range(1, num_versions + 1):
        logged = mlflow.initialize_logged_model(name=MODEL)
        facts = Noted(weights_digest=f"w{number}", artifact_digest="f" * 64)
        note(store, logged.model_id, facts)
        ledger.note_registration(MODEL, f"w{number}", make_version(store, client, MODEL, logged.model_id, facts, run=None, tags={}))
        ledger.record(*decision(ledger, number))
    mirror(ledger, store, MODEL)
    ledger.record(*decision(ledger, num_versions))
    print(f"{num_versions} versions, CPU s, least of 5")
    print("| what | CPU s |\n| --- | --- |")
    print(f"| outline of all decisions | {least(lambda: ledger.outline(MODEL)):.3f} |")
    print(f"| history with all evidence (`show --json`) | {least(lambda: ledger.history(MODEL)):.3f} |")
    print(f"| mirror after a decision | {least(lambda: mirror(ledger, store, MODEL)):.3f} |")
    print(f"| differences of all versions | {least(lambda: differences(ledger, store, MODEL)):.3f} |")


def decision(ledger: Any, number: int) -> tuple[Any, Any]:
    """Return a decision that makes version `number` champion, and its move."""
    from training.registry.ledger.ledger import AliasHolder, Entry, Move, decision_key

    revision = ledger.standing(MODEL).revision
    holder = AliasHolder(
        version=str(number),
        semantic_version=f"1.{number}.0",
        weights_digest=f"w{number}",
        model_uri=f"store:///models/{number}",
        as_of=datetime(2026, 1, 1, tzinfo=UTC),
        bounds={},
    )
    entry = Entry(
        model=MODEL,
        key=decision_key(MODEL, f"w{number}", str(revision)),
        weights_digest=f"w{number}",
        version=str(number),
        semantic_version=holder.semantic_version,
        action="promoted",
        outcome="accepted",
        reasons=[{"gate": "improvement", "passed": True, "words": "auc gain 0.01, required > 0"}] * 6,
        evidence=EVIDENCE,
        decided_by=f"night/{number}",
    )
    return entry, Move(champion=holder, canary=None, expected_revision=revision)


def least(work: Callable[[], object]) -> float:
    found = []
    for _ in range(5):
        started_at = time.process_time()
        work()
        found.append(time.process_time() - started_at)
    return min(found)


if __name__ == "__main__":
    main()
