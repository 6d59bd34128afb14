"""Runs that may not promote: what they leave, and that the same night with promotion, before or after, is as if they had not been."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.integration.installation import ROOT, Installation
from training.sources.listing import previous_snapshot

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PIPELINE = "not_promoted"
FIRST = datetime(2026, 2, 1, 2, tzinfo=UTC)
SECOND, THIRD = FIRST + timedelta(days=1), FIRST + timedelta(days=2)
SHARED = ("ingest", "prepare", "train", "evaluate")


def ran(installation: Installation, as_of: datetime, **conf: Any) -> str:
    run_id = installation.trigger(PIPELINE, {"as_of": as_of.isoformat(), **conf})
    assert installation.wait(PIPELINE, run_id) == "success", installation.why(PIPELINE, run_id)
    return run_id


def command(installation: Installation, *arguments: str) -> Any:
    words = [sys.executable, "-m", "nightshift.console", *arguments, "--json"]
    done = subprocess.run(words, env=installation.environment, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def reused(installation: Installation, run_id: str) -> dict[str, str]:
    found = {stage: installation.result(PIPELINE, run_id, stage).reused_from for stage in ("validate", *SHARED)}
    return {stage: owner.run_id for stage, owner in found.items() if owner is not None}


def reference(installation: Installation, as_of: datetime) -> str | None:
    """Return the digest of the snapshot that a night is compared with."""
    uri = previous_snapshot(installation.store, PIPELINE, as_of)
    return None if uri is None else uri.rpartition("/")[2].removesuffix(".json")


def test_same_night_promotes_after_and_before_a_run_that_may_not(installation: Installation) -> None:
    installation.add_pipeline(PIPELINE)

    tried = ran(installation, FIRST, promote=False)
    assert installation.tasks(PIPELINE, tried)["promote"]["state"] == "skipped"
    assert (installation.ledger.history(PIPELINE), reference(installation, SECOND)) == ([], None)
    assert command(installation, "runs", "show", f"{PIPELINE}:{tried}")["note"] == "not decided: the trigger says promote: false"

    # First without, then with.
    promoted = ran(installation, FIRST)
    assert reused(installation, promoted) == dict.fromkeys(SHARED, tried)
    weights = installation.result(PIPELINE, promoted, "train").scalars["weights_digest"]
    champion = installation.ledger.standing(PIPELINE).champion
    assert champion is not None
    assert (champion.weights_digest, len(installation.ledger.history(PIPELINE))) == (weights, 1)
    assert reference(installation, SECOND) == installation.result(PIPELINE, promoted, "ingest").digest

    # First with, then without.
    ran(installation, FIRST, promote=False)
    assert len(installation.ledger.history(PIPELINE)) == 1
    assert reference(installation, SECOND) == installation.result(PIPELINE, promoted, "ingest").digest

    # A later night: compared and shown as any, and no reference for the next one.
    other = ran(installation, SECOND, promote=False)
    evaluation = installation.result(PIPELINE, other, "evaluate")
    assert evaluation.reports["evaluation"]
    assert installation.store.manifests.get(evaluation.artifact_uri).meta["champion"]["weights_digest"] == weights
    sides = command(installation, "compare", f"{PIPELINE}:{promoted}", f"{PIPELINE}:{other}")
    assert sides["b"]["outcome"] == "not decided"
    assert (sides["a"]["weights_digest"], len(sides["b"]["weights_digest"])) == (weights, 64)
    assert sides["metrics"]
    assert sides["missing"] == []
    assert reference(installation, THIRD) == installation.result(PIPELINE, promoted, "ingest").digest
    assert len(installation.ledger.history(PIPELINE)) == 1
