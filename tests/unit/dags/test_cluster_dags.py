"""The grid of an installation on Kubernetes: every task that runs a stage is Airflow's KubernetesPodOperator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.operators.job import KubernetesJobOperator
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import DAG
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.serialization.serialized_objects import DagSerialization

from nightshift.operators.stage import StageOperator
from nightshift.wiring.housekeeping import housekeeping_dag
from nightshift.wiring.pipeline import build_dag, decision_dags
from nightshift.wiring.rollback import rollback_dag
from training.errors import SpecError
from training.runtime.provenance import CHECKOUT
from training.spec.reader.loader import parse_spec

SPEC_PATH = CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"
MORE = b"""
tune:
  trials: 2
  space: {learning_rate: {float: [1e-5, 1e-2]}}
resources: {ingest: {cpus: 3, memory: 5GiB}}
"""
CLUSTER = """
namespace: nightshift
image: registry/stage:{{ 1 }}
gpu_image: registry/stage:gpu
queues: {default: shared}
"""
WITHOUT_STAGE = {"resolve", "wait", "tune_plan", "ask", "next_look", "expire", "collect", "clean", "metrics", "canary_looks"}


@pytest.fixture
def placement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "placement.yaml"
    path.write_text(CLUSTER, encoding="utf-8")
    monkeypatch.setenv("NIGHTSHIFT_BACKEND", "kubernetes")
    monkeypatch.setenv("NIGHTSHIFT_KUBERNETES", str(path))
    return path


def dags_of(text: bytes = SPEC_PATH.read_bytes() + MORE) -> list[DAG]:
    spec = parse_spec(text, SPEC_PATH.name)
    return [build_dag(spec, SPEC_PATH), *decision_dags(spec, SPEC_PATH), housekeeping_dag(), rollback_dag()]


def operators(dags: list[DAG]) -> dict[str, type]:
    """Return `<dag>/<task>` to the class of each task, of a mapped one the class that its instances have."""
    found: dict[str, type] = {}
    for dag in dags:
        for task in dag.tasks:
            kind: Any = task.operator_class if isinstance(task, MappedOperator) else type(task)
            found[f"{dag.dag_id}/{task.task_id}"] = kind
    return found


@pytest.mark.usefixtures("placement")
def test_every_task_that_runs_a_stage_is_a_pod_operator_and_no_other_is() -> None:
    found = operators(dags_of())
    in_pods = {name for name, kind in found.items() if issubclass(kind, KubernetesPodOperator)}
    assert {name.partition("/")[2] for name in found.keys() - in_pods} <= WITHOUT_STAGE
    assert in_pods == {name for name, kind in found.items() if issubclass(kind, StageOperator)}
    stages = {"ingest", "validate", "prepare", "trials", "tune", "train", "evaluate", "promote"}
    assert stages <= {name.partition("/")[2] for name in in_pods}


@pytest.mark.usefixtures("placement")
def test_what_is_placed_as_a_training_is_a_job_also_on_one_node() -> None:
    jobs = {name.partition("/")[2] for name, kind in operators(dags_of()).items() if issubclass(kind, KubernetesJobOperator)}
    assert jobs == {"train", "trials"}


def test_no_task_of_a_laptop_knows_the_provider() -> None:
    assert not [name for name, kind in operators(dags_of()).items() if issubclass(kind, KubernetesPodOperator)]


@pytest.mark.usefixtures("placement")
def test_rendered_template_has_image_resources_namespace_and_labels_before_a_launch() -> None:
    task: Any = dags_of()[0].get_task("ingest")
    task.render_template_fields({})
    assert (task.image, task.namespace) == ("registry/stage:{{ 1 }}", "nightshift"), "a template in it is text"
    assert task.container_resources.requests == {"cpu": "3000m", "memory": "5Gi"}
    assert task.labels["nightshift.io/pipeline"] == "search_ranking"
    assert task.labels["kueue.x-k8s.io/queue-name"] == "shared"
    assert {"image", "namespace", "labels", "container_resources", "pod_template_dict"} <= set(task.template_fields)


@pytest.mark.usefixtures("placement")
def test_training_on_gpus_shows_their_image_and_number() -> None:
    text = SPEC_PATH.read_text(encoding="utf-8").replace("{nodes: 1, processes_per_node: 2}", "{gpus: 2, processes_per_node: 2}")
    task: Any = dags_of(text.encode())[0].get_task("train")
    task.render_template_fields({})
    assert task.image == "registry/stage:gpu"
    assert task.container_resources.limits["nvidia.com/gpu"] == "2"


@pytest.mark.usefixtures("placement")
def test_parsing_again_makes_no_new_version_of_the_dag() -> None:
    (first, second) = (json.dumps(DagSerialization.to_dict(dag), sort_keys=True, default=str) for dag in (dags_of()[0], dags_of()[0]))
    assert first == second
    # The provider's KubernetesJobOperator has its fields in the order of a set, another one in each process.
    assert dags_of()[0].get_task("train").template_fields == dags_of()[0].get_task("ingest").template_fields


def test_cluster_file_that_is_wrong_is_the_dag_files_import_error(placement: Path) -> None:
    placement.write_text("namespace: nightshift\n", encoding="utf-8")
    with pytest.raises(SpecError, match="image"):
        dags_of()
