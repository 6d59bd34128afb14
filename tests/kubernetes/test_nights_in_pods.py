"""Whole nights on a real cluster: training as one pod, and as a gang of two."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.given_weights import check_given_weights_are_judged_as_trained_ones
from tests.integration.installation import ENDED, FLIGHTS
from tests.kubernetes.cluster_installation import ClusterInstallation
from training.stage_table import ALL_STAGES, CANARY, REPAIR

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(2400)]

NIGHT = {"as_of": "2026-02-01T02:00:00+00:00", "train": {"epochs": 1}}
BY_SKLEARN = """
train:
  model: sklearn
  seed: 17
  refit: validation
  settings: {estimator: sklearn.ensemble.HistGradientBoostingClassifier, max_iter: 50, learning_rate: 0.05}

"""


@pytest.mark.parametrize(
    ("name", "placement"),
    [
        ("ranking_in_a_pod", {"nodes": 1, "processes_per_node": 2}),
        ("ranking_in_a_gang", {"nodes": 2, "processes_per_node": 1, "cpus": 0.4}),
    ],
)
def test_search_ranking_reaches_champion(on_cluster: ClusterInstallation, name: str, placement: dict[str, Any]) -> None:
    on_cluster.copy_with_placement("search_ranking", name, placement)
    run_id = on_cluster.trigger(name, NIGHT)
    assert on_cluster.wait(name, run_id, timeout_seconds=1500) == "success", on_cluster.why(name, run_id)
    assert on_cluster.result(name, run_id, "promote").scalars["decision"] == "accepted"
    standing = on_cluster.ledger.standing(name).champion
    assert standing is not None
    assert standing.version == "1"
    assert "epoch 1 of 1" in on_cluster.full_log(name, run_id, "train"), "the pod's log is in the task's"


def test_a_refitted_ranker_is_the_model_that_is_promoted(on_cluster: ClusterInstallation) -> None:
    changes = {"  precision: auto": "  refit: validation\n  precision: auto"}
    name = on_cluster.copy_with_placement("search_ranking", "ranking_refitted", {"nodes": 1, "processes_per_node": 2}, **changes)
    check_refitted_model_is_promoted(on_cluster, name, NIGHT)


def test_an_estimator_of_scikit_learn_that_is_refitted_is_the_model_that_is_promoted(on_cluster: ClusterInstallation) -> None:
    if not FLIGHTS.is_dir():
        pytest.skip(f"no flights in {FLIGHTS}")
    name = on_cluster.copy("flight_delay", "delay_by_sklearn", r"(?s)\ntrain:\n.*?\n\n", BY_SKLEARN)
    check_refitted_model_is_promoted(on_cluster, name, {"as_of": "2013-05-01T06:00:00+00:00"})


def check_refitted_model_is_promoted(on_cluster: ClusterInstallation, name: str, night: dict[str, Any]) -> None:
    run_id = on_cluster.trigger(name, night)
    assert on_cluster.wait(name, run_id, timeout_seconds=1500) == "success", on_cluster.why(name, run_id)
    (decision,) = on_cluster.ledger.history(name)
    assert decision.evidence["model_uri"] == on_cluster.result(name, run_id, "refit").artifact_uri
    standing = on_cluster.ledger.standing(name).champion
    assert standing is not None
    assert standing.version == "1"
    assert "launch 1: " in on_cluster.full_log(name, run_id, "refit"), "in a pod of its own"


def test_resources_of_one_run_are_those_of_its_pods(on_cluster: ClusterInstallation) -> None:
    name = on_cluster.copy_with_placement("search_ranking", "ranking_as_asked", {"nodes": 1, "processes_per_node": 1, "cpus": 0.4})
    placement = {"nodes": 2, "cpus": 0.3, "memory": "1100MiB"}
    run_id = on_cluster.trigger(name, {**NIGHT, "train": {"epochs": 1, "placement": placement}})
    asked = {}

    def look() -> bool:
        for pod in on_cluster.pods(pipeline=name, stage="train"):
            asked[pod["metadata"]["name"]] = pod["spec"]["containers"][0]["resources"]["requests"]
        return on_cluster.api.get(f"/dags/{name}/dagRuns/{run_id}")["state"] in ENDED

    on_cluster.until(look, f"end of {run_id}", timeout_seconds=1500)
    assert on_cluster.wait(name, run_id) == "success", on_cluster.why(name, run_id)
    assert list(asked.values()) == [{"cpu": "300m", "memory": "1100Mi"}] * 2
    assert on_cluster.ledger.history(name)[-1].evidence["overrides"] == {
        "train.epochs": 1,
        **{f"train.placement.{key}": value for key, value in placement.items()},
    }


def test_a_second_run_of_the_same_night_starts_no_pod(on_cluster: ClusterInstallation) -> None:
    name = on_cluster.add_pipeline("asked_twice")
    first = on_cluster.trigger(name, {"as_of": NIGHT["as_of"]})
    assert on_cluster.wait(name, first, timeout_seconds=1500) == "success", on_cluster.why(name, first)
    second = on_cluster.trigger(name, {"as_of": NIGHT["as_of"]})
    assert on_cluster.wait(name, second, timeout_seconds=1500) == "success", on_cluster.why(name, second)
    for stage in ("ingest", "validate", "prepare", "train", "evaluate", "promote"):
        found = on_cluster.result(name, second, stage)
        assert found.reused_from is not None
        assert found.reused_from.run_id == first
        assert "launch " not in on_cluster.full_log(name, second, stage)


def test_a_study_whose_trials_are_gangs_runs_with_what_the_pipeline_gives_each_stage(on_cluster: ClusterInstallation) -> None:
    name = on_cluster.copy_with_placement(
        "search_ranking",
        "ranking_with_a_study",
        {"nodes": 2, "processes_per_node": 1, "cpus": 0.4},
        **{
            "approval: automatic}": "approval: automatic}\n"
            "tune: {trials: 2, parallel: 1, space: {settings.dropout: {float: [0.0, 0.2]}}}\n"
            "resources: {tune: {memory: 1GiB}, evaluate: {cpus: 0.2}}"
        },
    )
    asked = {}
    run_id = on_cluster.trigger(name, NIGHT)

    def look() -> bool:
        for pod in on_cluster.pods(pipeline=name):
            asked[pod["metadata"]["labels"]["nightshift.io/stage"]] = pod["spec"]["containers"][0]["resources"]["requests"]
        return on_cluster.api.get(f"/dags/{name}/dagRuns/{run_id}")["state"] in ENDED

    on_cluster.until(look, f"end of {run_id}", timeout_seconds=2000)
    assert on_cluster.wait(name, run_id) == "success", on_cluster.why(name, run_id)
    assert on_cluster.result(name, run_id, "tune").scalars["trials"] == 2, "complete or pruned"
    assert asked["tune"] == {"cpu": "300m", "memory": "1Gi"}
    assert asked["evaluate"] == {"cpu": "200m", "memory": "1500Mi"}
    assert set(asked) == set(ALL_STAGES) - {CANARY, REPAIR}, "every stage ran in a pod"


def test_weights_from_outside_are_judged_in_pods(on_cluster: ClusterInstallation) -> None:
    check_given_weights_are_judged_as_trained_ones(on_cluster, on_cluster.put_into_shop)
