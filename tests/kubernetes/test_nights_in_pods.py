"""Whole nights on a real cluster."""

from __future__ import annotations

import pytest

from tests.kubernetes.cluster_installation import ClusterInstallation

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(900)]

PIPELINE = "search_ranking"
NIGHT = {"as_of": "2026-02-01T02:00:00+00:00"}


def test_a_night_reaches_champion_with_every_stage_in_a_pod(on_cluster: ClusterInstallation) -> None:
    run_id = on_cluster.trigger(PIPELINE, {**NIGHT, "train": {"epochs": 1}})
    assert on_cluster.wait(PIPELINE, run_id, timeout_seconds=400) == "success", on_cluster.why(PIPELINE, run_id)
    assert on_cluster.result(PIPELINE, run_id, "promote").scalars["decision"] == "accepted"
    standing = on_cluster.ledger.standing(PIPELINE)
    assert standing is not None
    assert standing.version == "1"
    log = on_cluster.full_log(PIPELINE, run_id, "train")
    assert "epoch 1 of 1" in log, "the pod's log is in the task's"
