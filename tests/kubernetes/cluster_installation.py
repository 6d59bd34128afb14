"""An installation for tests with `NIGHTSHIFT_BACKEND=kubernetes`: store and sources on S3, ledger on PostgreSQL, stages in pods."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import yaml

from nightshift.doctor.cluster import GANG_API
from tests.integration.installation import FLIGHTS, ROOT, Installation, free_ports
from tests.kubernetes.servers import mlflow_server, postgres_server, s3_server

NAMESPACE = "nightshift"
MLFLOW_NAMESPACE = "airflow"
KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "only-for-tests"}
OWN = {"nightshift.io/tests": "true"}
"""Label of the namespace that the tests make: one that others made stays as it is."""
MLFLOW_PORT = 5000
"""The port of the shipped placement.yaml's MLFLOW_TRACKING_URI."""
SHIPPED = ROOT / "docker" / "kubernetes" / "placement.yaml"
RESOURCES = {"default": {"cpus": 0.3, "memory": "1500MiB"}, "train": {"cpus": 0.4, "memory": "1200MiB"}}
"""One node of two cores and a few GiB."""
SECRET_LINE = re.compile(r"^kubectl create secret generic (\S+) +-n nightshift (.+)$", re.MULTILINE)


def shipped_placement(*, image: str, s3_url: str) -> str:
    """Return docker/kubernetes/placement.yaml for this cluster: another image, endpoint, resources, scratch and node label."""
    values = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    values["image"] = values["gpu_image"] = image
    values["environment"]["AWS_ENDPOINT_URL"] = s3_url
    values["resources"] = RESOURCES
    values["scratch"] = "2GiB"
    del values["on_demand"]
    return str(yaml.safe_dump(values))


def documented_secrets(values: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the Secrets of the namespace that docs/kubernetes.md tells users to create, with `values` for the keys that it names."""
    text = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    return {name: {key: values[key] for key in re.findall(r"--from-literal=(\w+)=", rest)} for name, rest in SECRET_LINE.findall(text)}


def mlflow_service(host: str) -> list[dict[str, Any]]:
    """Return what makes the shipped `mlflow.airflow.svc` lead to this machine: a headless Service and its address."""
    metadata = {"name": "mlflow", "namespace": MLFLOW_NAMESPACE}
    ports = [{"name": "http", "port": MLFLOW_PORT}]
    labels = {"kubernetes.io/service-name": "mlflow"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": MLFLOW_NAMESPACE, "labels": OWN}},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"clusterIP": "None", "ports": ports}},
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**metadata, "labels": labels},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [host], "conditions": {"ready": True}}],
            "ports": ports,
        },
    ]


def kubectl(*arguments: str, check: bool = True, text: str | None = None) -> str:
    """Run kubectl as the admin; return its output."""
    done = subprocess.run(["kubectl", *arguments], capture_output=True, text=True, check=False, input=text)  # noqa: S607
    assert not check or done.returncode == 0, f"kubectl {arguments} ended with {done.returncode}: {done.stderr}"
    return done.stdout


def starts_gangs_as_a_whole() -> bool:
    """Return whether the cluster's scheduler places all members of a gang or none, as its alpha feature gates have it do."""
    groups = json.loads(kubectl("get", "--raw", "/apis"))["groups"]
    return GANG_API in {version["groupVersion"] for group in groups for version in group["versions"]}


def delete_own_namespace() -> None:
    """Delete the namespace of the tests' MLflow, if it is there.

    Raises:
        AssertionError: there is one that these tests did not make; nothing is deleted.
    """
    found = kubectl("get", "namespace", MLFLOW_NAMESPACE, "--ignore-not-found", "-o", "json")
    if found:
        labels = json.loads(found)["metadata"].get("labels", {})
        assert OWN.items() <= labels.items(), f"the cluster has a namespace {MLFLOW_NAMESPACE} that is not of these tests"
        kubectl("delete", "namespace", MLFLOW_NAMESPACE, "--wait")


class ClusterInstallation(Installation):
    """What a test may do to it, besides what it may do to any installation."""

    @classmethod
    def on(cls, stack: ExitStack, home: Path, *, image: str, host: str) -> ClusterInstallation:
        """Start the servers, install into the cluster as docs/kubernetes.md says, and start Airflow; `stack` ends all of it."""
        s3_port, postgres_port = free_ports(2)
        s3_url = stack.enter_context(s3_server(host, s3_port, home))
        account = {"MLFLOW_TRACKING_USERNAME": "stages", "MLFLOW_TRACKING_PASSWORD": "only-for-tests"}
        mlflow_url = stack.enter_context(mlflow_server(host, MLFLOW_PORT, home, account))
        database_url = stack.enter_context(postgres_server(host, postgres_port, home))
        store = {**KEYS, "AWS_ENDPOINT_URL": s3_url, "AWS_REGION": "eu-central-1"}
        for bucket in ("nightshift", "shop-data"):
            bucket_client(s3_url).create_bucket(Bucket=bucket)
        kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait")
        kubectl("apply", "-k", str(ROOT / "docker" / "kubernetes"))
        stack.callback(kubectl, "delete", "namespace", NAMESPACE, "--wait")
        for name, keys in documented_secrets({**KEYS, **account, "NIGHTSHIFT_DATABASE": database_url}).items():
            kubectl("create", "secret", "generic", name, "-n", NAMESPACE, *(f"--from-literal={key}={keys[key]}" for key in keys))
        delete_own_namespace()
        kubectl("create", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": mlflow_service(host)}))
        stack.callback(delete_own_namespace)
        # Some builds of the kubelet want this ConfigMap in every namespace, and wait for it.
        kubectl("create", "configmap", "openshift-service-ca.crt", "-n", NAMESPACE, check=False)
        placement = home / "placement.yaml"
        placement.write_text(shipped_placement(image=image, s3_url=s3_url), encoding="utf-8")
        os.environ.update(store)
        settings = home / "installation" / "airflow" / "config"
        settings.mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("airflow_local_settings.py"), settings)
        made = cls.start(
            home / "installation",
            NIGHTSHIFT_BACKEND="kubernetes",
            NIGHTSHIFT_KUBERNETES=str(placement),
            NIGHTSHIFT_STORE="s3://nightshift/store",
            NIGHTSHIFT_DATABASE=database_url,
            MLFLOW_TRACKING_URI=mlflow_url,
            SHOP_URI="s3://shop-data/shop",
            FLIGHTS_URI="s3://shop-data/flights",
            # Packages of one's own would have to be in the image.
            NIGHTSHIFT_MODEL_PACKAGES="",
            KUBECONFIG=os.environ.get("NIGHTSHIFT_TEST_KUBECONFIG", os.environ["KUBECONFIG"]),
            **store,
        )
        assert isinstance(made, cls)
        stack.callback(made.stop)
        made.placement, made.s3_url = placement, s3_url
        made.upload(made.shop, "shop")
        made.upload(FLIGHTS, "flights")
        return made

    placement: Path
    s3_url: str

    def upload(self, folder: Path, prefix: str) -> None:
        client = bucket_client(self.s3_url)
        for path in filter(Path.is_file, folder.rglob("*")):
            client.upload_file(str(path), "shop-data", f"{prefix}/{path.relative_to(folder).as_posix()}")

    def put_into_shop(self, place: str, content: bytes) -> None:
        bucket_client(self.s3_url).put_object(Bucket="shop-data", Key=f"shop/{place}", Body=content)

    def pods(self, **labels: str) -> list[dict[str, Any]]:
        """Return the namespace's pods whose labels below nightshift.io/ are these."""
        selector = ",".join(f"nightshift.io/{name}={value}" for name, value in labels.items())
        found = json.loads(kubectl("get", "pods", "-n", NAMESPACE, "-l", selector, "-o", "json"))["items"]
        return list(found)

    def full_log(self, dag_id: str, run_id: str, task_id: str) -> str:
        """Return what the task's log says, all tries, the triggerer's part included."""
        tries = self.tasks(dag_id, run_id)[task_id]["try_number"]
        return "\n".join(self.log(dag_id, run_id, task_id, number) for number in range(1, tries + 1))

    @contextmanager
    def placing(self, **changes: Any) -> Iterator[None]:
        """Change the cluster's file for a while: keys of its top level."""
        before = self.placement.read_text(encoding="utf-8")
        values = {**yaml.safe_load(before), **changes}
        self.placement.write_text(yaml.safe_dump(values), encoding="utf-8")
        try:
            yield
        finally:
            self.placement.write_text(before, encoding="utf-8")

    def copy_with_placement(self, pipeline: str, name: str, placement: Mapping[str, Any], **changes: str) -> str:
        """Add a pipeline like another one, with this placement and texts replaced; return its name."""
        inline = ", ".join(f"{key}: {json.dumps(value)}" for key, value in placement.items())
        return self.copy(pipeline, name, r"placement: \{.*\}", f"placement: {{{inline}}}", **changes)

    def copy(self, pipeline: str, name: str, pattern: str, replacement: str, **changes: str) -> str:
        """Add a pipeline like another one, with a model of its own, the only match of a pattern and texts replaced; return its name."""
        text = (self.dags / "pipelines" / f"{pipeline}.yaml").read_text(encoding="utf-8")
        text, count = re.subn(pattern, replacement, text)
        assert count == 1
        for old, new in {f"name: {pipeline}": f"name: {name}", f"model: {pipeline}": f"model: {name}", **changes}.items():
            assert old in text, old
            text = text.replace(old, new)
        (self.dags / "pipelines" / f"{name}.yaml").write_text(text, encoding="utf-8")
        shutil.copy(self.dags / f"{pipeline}.py", self.dags / f"{name}.py")
        return name


class filler:
    """A foreign pod that takes room."""

    def __init__(self, *, cpus: str) -> None:
        self._cpus = cpus

    def __enter__(self) -> None:
        container = {
            "name": "filler",
            "image": "localhost/busybox:1",
            "command": ["sleep", "100000"],
            "resources": {"requests": {"cpu": self._cpus}},
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "filler", "namespace": "default"},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
        }
        kubectl("apply", "-f", "-", text=json.dumps(pod))
        kubectl("wait", "--for=condition=Ready", "pod/filler", "-n", "default", "--timeout=60s")

    def __exit__(self, *_exc: object) -> None:
        kubectl("delete", "pod", "filler", "-n", "default", "--wait")


def bucket_client(url: str) -> Any:
    assert urlsplit(url).scheme == "http"
    return boto3.client("s3", endpoint_url=url, aws_access_key_id="tests", aws_secret_access_key="only-for-tests", region_name="us-east-1")
