"""Two nights of the shop in a row, on a real installation."""

from __future__ import annotations

import psutil
import pytest
from mlflow import MlflowClient

from tests.integration.installation import Installation

pytestmark = [pytest.mark.integration, pytest.mark.slow]

RAN = ("ingest", "validate", "prepare", "train", "evaluate", "promote")
PIPELINE = "two_nights"
"""Its own, so that no other test has moved its champion."""


def test_first_night_makes_a_champion_and_the_second_is_compared_with_it(installation: Installation) -> None:
    installation.add_pipeline(PIPELINE)
    first = installation.trigger(PIPELINE, {"as_of": "2026-02-01T02:00:00+00:00"})
    assert installation.wait(PIPELINE, first) == "success", installation.tasks(PIPELINE, first)
    champion = installation.ledger.standing(PIPELINE).champion
    assert champion is not None
    assert champion.weights_digest == installation.result(PIPELINE, first, "train").scalars["weights_digest"]

    second = installation.trigger(PIPELINE, {"as_of": "2026-02-02T02:00:00+00:00"})
    assert installation.wait(PIPELINE, second) == "success", installation.tasks(PIPELINE, second)

    results = {stage: installation.result(PIPELINE, second, stage) for stage in RAN}
    assert all(result.reused_from is None for result in results.values())
    evaluation = installation.store.manifests.get(results["evaluate"].artifact_uri, kind="evaluation")
    assert evaluation.meta["champion"]["weights_digest"] == champion.weights_digest
    assert len(installation.ledger.history(PIPELINE)) == 2
    own_processes = [stage for stage in RAN if "the stage has a new process" in installation.log(PIPELINE, second, stage)]
    assert own_processes == [], "every stage of a laptop's night is forked from the template"
    # Another stage may be running: what it forks shows its own command.
    commands = [psutil.Process(process.pid).cmdline() for process in installation.pids("scheduler")]
    assert ["-m", "training.runtime.template"] in [command[1:3] for command in commands], "the supervisor finds it, and `make stop` ends it"


def test_housekeeping_as_shipped_registers_a_champion_again_that_mlflow_has_lost(installation: Installation) -> None:
    champion = installation.ledger.standing(PIPELINE).champion
    assert champion is not None
    mlflow = MlflowClient(installation.mlflow_uri)
    source = mlflow.get_model_version(PIPELINE, champion.version).source
    mlflow.delete_registered_model(PIPELINE)

    run_id = installation.trigger("housekeeping")

    assert installation.wait("housekeeping", run_id) == "success", installation.why("housekeeping", run_id)
    found = installation.api.get(f"/dags/housekeeping/dagRuns/{run_id}/taskInstances", limit=100)["task_instances"]
    assert [(task["map_index"], task["state"]) for task in found if task["task_id"] == "repair"] == [(-1, "success")]
    served = mlflow.get_model_version_by_alias(PIPELINE, "champion")
    assert (served.source, served.tags["lifecycle"]) == (source, "champion")
    assert len(installation.ledger.history(PIPELINE)) == 2, "nothing was decided"
