"""docker/kubernetes/airflow-values.yaml and the Secrets of docs/kubernetes.md: what Airflow's official chart is given starts.

The chart is no part of the project. What a value changes in it is noted where a test relies on it (charts 1.18 to 1.22).
"""

import ipaddress
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import yaml
from airflow.sdk.execution_time.task_runner import _serialize_template_field
from sqlalchemy import create_engine

from nightshift.execution.kubernetes.config import load_cluster
from nightshift.execution.kubernetes.launch_request import launch_of
from nightshift.execution.kubernetes.manifests import job_manifest
from nightshift.mlflow_account import MLFLOW_PASSWORD, MLFLOW_USER
from nightshift.operators.pods import TrainingJobOperator
from tests.unit.docker.restricted_profile import SECRET
from training.installation import is_place_name
from training.runtime.provenance import CHECKOUT
from training.spec import load_spec
from training.spec.reader.loader import check_values
from training.spec.uris import names_of_places

ROOT = CHECKOUT / "docker" / "kubernetes"
VALUES = yaml.safe_load((ROOT / "airflow-values.yaml").read_text(encoding="utf-8"))
ENVIRONMENT = {variable["name"]: variable["value"] for variable in VALUES["env"]}
COMPONENTS = ("scheduler", "triggerer", "dagProcessor")
DISTRIBUTIONS = {"psycopg2": "psycopg2-binary", "asyncpg": "asyncpg"}


def test_airflows_chart_makes_no_user_no_role_and_no_secret_of_its_own() -> None:
    # The user "admin" with the password "admin" is made unless `defaultUser.enabled` is false; `enabled` alone does not prevent it.
    assert VALUES["createUserJob"]["defaultUser"] == {"enabled": False}
    assert VALUES["allowPodLaunching"] is False
    assert VALUES["postgresql"] == {"enabled": False}
    for name in ("fernetKeySecretName", "apiSecretKeySecretName", "jwtSecretName"):
        assert VALUES[name]
    assert VALUES["data"]["metadataSecretName"]
    assert ENVIRONMENT["NIGHTSHIFT_BACKEND"] == "kubernetes"
    assert not [name for name in ENVIRONMENT if SECRET.search(name)]


def test_airflows_chart_runs_as_the_accounts_that_have_the_rights() -> None:
    documents = yaml.safe_load_all((ROOT / "base" / "rbac.yaml").read_text(encoding="utf-8"))
    binding = next(document for document in documents if document["kind"] == "RoleBinding")
    accounts = {subject["name"] for subject in binding["subjects"] if subject["kind"] == "ServiceAccount"}
    assert {VALUES[part]["serviceAccount"]["name"] for part in ("scheduler", "triggerer")} <= accounts
    mount, volume = VALUES["volumeMounts"][0], VALUES["volumes"][0]
    assert mount["name"] == volume["name"]
    assert ENVIRONMENT["NIGHTSHIFT_KUBERNETES"] == f"{mount['mountPath']}/placement.yaml"


def test_every_pipeline_of_the_images_may_name_the_place_of_its_data() -> None:
    named = {name for path in (CHECKOUT / "dags" / "pipelines").glob("*.yaml") for name in names_of_places(load_spec(path))}
    assert named == set(ENVIRONMENT["NIGHTSHIFT_PLACES"].split(",")) == {name for name in ENVIRONMENT if is_place_name(name)}


def test_the_scheduler_has_the_account_at_mlflow_that_the_documented_commands_create() -> None:
    account = {each["name"]: each["valueFrom"]["secretKeyRef"] for each in VALUES["scheduler"]["env"]}
    assert set(account) == {MLFLOW_USER.name, MLFLOW_PASSWORD.name}
    text = (CHECKOUT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    (created,) = re.findall(r"create secret generic nightshift-mlflow +-n airflow (.*)", text)
    for name, reference in account.items():
        assert reference == {"name": "nightshift-mlflow", "key": name}
        assert f"--from-literal={name}=" in created
    assert re.search(r"deploy/airflow-scheduler -- nightshift doctor .*\bmlflow\b", text)


def test_every_documented_connection_string_has_a_driver_that_the_image_has() -> None:
    text = (CHECKOUT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"=(postgresql[+\w]*)://…", text))
    assert documented
    image = (CHECKOUT / "docker" / "requirements" / "airflow.txt").read_text(encoding="utf-8").splitlines()
    for scheme in documented:
        driver = create_engine(f"{scheme}://airflow:secret@postgres:5432/airflow").dialect.driver
        assert DISTRIBUTIONS[driver] in image, scheme


def test_no_container_of_the_chart_runs_a_script_that_the_image_lacks() -> None:
    # The sidecar "log-groomer" runs `bash /clean-logs`, which Airflow's own image has.
    assert [VALUES[component]["logGroomerSidecar"] for component in COMPONENTS] == [{"enabled": False}] * 3


def test_the_image_has_the_program_that_starts_the_charts_probes() -> None:
    # Probes of the chart run `sh -c "CONNECTION_CHECK_MAX_COUNT=0 … exec /entrypoint airflow jobs check …"`, a file of Airflow's image.
    text = (CHECKOUT / "docker" / "airflow.Dockerfile").read_text(encoding="utf-8")
    (program,) = re.findall(r"ln -s (\S+) /entrypoint$", text, re.MULTILINE)
    probe = f"CONNECTION_CHECK_MAX_COUNT=0 exec {program} sh -c 'exit 7'"
    assert subprocess.run(["/bin/sh", "-c", probe], check=False).returncode == 7


def test_a_component_that_imports_for_minutes_is_not_restarted_at_its_start() -> None:
    # The chart's own limit is six failures, 10 s apart.
    for component in ("apiServer", "scheduler"):
        assert VALUES[component]["startupProbe"]["failureThreshold"] >= 30


def test_no_component_waits_for_a_volume() -> None:
    # With LocalExecutor, `workers.celery.persistence` makes the scheduler a StatefulSet with a claim of 100 GiB. Where it is not set, the
    # deprecated `workers.persistence` counts, which is on. Charts before 1.19 have only that one.
    assert VALUES["workers"]["celery"]["persistence"] == VALUES["triggerer"]["persistence"] == {"enabled": False}


def test_the_log_of_a_waiting_task_is_asked_for_at_an_address() -> None:
    # Pods of a Deployment have names without a DNS entry. A process of its own: Airflow reads its configuration once per process.
    environment = {**os.environ, "AIRFLOW__CORE__HOSTNAME_CALLABLE": VALUES["config"]["core"]["hostname_callable"]}
    script = "from airflow.utils.net import get_hostname; print(get_hostname())"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert ipaddress.ip_address(done.stdout.split()[-1])


def test_rendered_template_has_room_for_the_manifest_of_a_gang_that_asks_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = load_cluster(ROOT / "placement.yaml")
    asked = {"nodes": 4, "gpus": 8, "accelerator": "a100", "topology": "nvlink", "priority": "production"}
    values = load_spec(CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml").model_dump(mode="json", by_alias=True)
    values["train"]["placement"] = {**asked, "processes_per_node": 8, "shared_memory": "16GiB", "spot": True}
    launch = launch_of(
        check_values(values, "test"), cluster, stage="train", name="n" * 52, attempt_id="a" * 32, request_uri="s" * 300, nodes=4, spot=True
    )
    launch = replace(launch, avoided_nodes=("n" * 60, "m" * 60), environment={"SHOP_URI": "s" * 300})
    operator = TrainingJobOperator(task_id="train", stage="train")
    operator.show(job_manifest(launch, cluster))
    assert len(str(operator.pod_template_dict)) > 4096, "Airflow's default would do"
    monkeypatch.setenv("AIRFLOW__CORE__MAX_TEMPLATED_FIELD_LENGTH", VALUES["config"]["core"]["max_templated_field_length"])
    shown = _serialize_template_field(operator.pod_template_dict, "pod_template_dict")
    assert shown["metadata"]["name"] == launch.name


def test_the_rendered_chart_has_deployments_of_one_container_without_claims() -> None:
    # NIGHTSHIFT_AIRFLOW_CHART: a folder with Airflow's official chart; it is no package of a registry that `make install-dev` uses.
    chart = os.environ.get("NIGHTSHIFT_AIRFLOW_CHART")
    if not chart or shutil.which("helm") is None:
        pytest.skip("helm is not at hand, or NIGHTSHIFT_AIRFLOW_CHART names no folder with Airflow's official chart")
    command = ["helm", "template", "airflow", chart, "-n", "airflow", "-f", str(ROOT / "airflow-values.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rendered = [document for document in yaml.safe_load_all(done.stdout) if document]
    assert not [document for document in rendered if document["kind"] in ("StatefulSet", "PersistentVolumeClaim")]
    deployments = {document["metadata"]["name"]: containers(document) for document in rendered if document["kind"] == "Deployment"}
    (scheduler,) = (
        document for document in rendered if document["metadata"]["name"] == "airflow-scheduler" and "template" in document.get("spec", {})
    )
    variables = scheduler["spec"]["template"]["spec"]["containers"][0]["env"]
    assert [one for one in variables if one["name"].startswith("MLFLOW_TRACKING_")][1:] == VALUES["scheduler"]["env"]
    assert deployments == {f"airflow-{name}": [name] for name in ("api-server", "dag-processor", "scheduler", "triggerer")}
    # Programs that are named by their path: the image has no other of those of Airflow's own image.
    assert set(re.findall(r"(?:exec|bash|sh) (/\S+)", done.stdout)) == {"/entrypoint"}
    (config,) = (document["data"]["airflow.cfg"] for document in rendered if document["metadata"]["name"] == "airflow-config")
    assert f"hostname_callable = {VALUES['config']['core']['hostname_callable']}" in config


def containers(document: dict[str, Any]) -> list[str]:
    return [container["name"] for container in document["spec"]["template"]["spec"]["containers"]]
