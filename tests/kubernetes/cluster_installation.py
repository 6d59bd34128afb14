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

from tests.integration.installation import ROOT, Installation, free_ports
from tests.kubernetes.servers import mlflow_server, postgres_server, s3_server

NAMESPACE = "nightshift"
KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "only-for-tests", "AWS_REGION": "us-east-1"}
PLACEMENT = """
namespace: nightshift
image: {image}
pull_policy: IfNotPresent
secrets: {{all: [nightshift-test]}}
resources:
  default: {{cpus: 0.3, memory: 1500MiB}}
  train: {{cpus: 0.4, memory: 1200MiB}}
scratch: 2GiB
shared_memory: 64MiB
image_timeout: 10s
schedule_timeout: 60s
elastic_wait: 15s
grace: 60s
"""


def kubectl(*arguments: str, check: bool = True, text: str | None = None) -> str:
    """Run kubectl as the admin; return its output."""
    done = subprocess.run(["kubectl", *arguments], capture_output=True, text=True, check=False, input=text)  # noqa: S607
    assert not check or done.returncode == 0, f"kubectl {arguments} ended with {done.returncode}: {done.stderr}"
    return done.stdout


class ClusterInstallation(Installation):
    """What a test may do to it, besides what it may do to any installation."""

    @classmethod
    def on(cls, stack: ExitStack, home: Path, *, image: str, host: str) -> ClusterInstallation:
        """Start the servers, make the namespace, its Role and its Secret, and start Airflow; `stack` ends all of it."""
        s3_port, mlflow_port, postgres_port = free_ports(3)
        s3_url = stack.enter_context(s3_server(host, s3_port, home))
        mlflow_url = stack.enter_context(mlflow_server(host, mlflow_port, home))
        database_url = stack.enter_context(postgres_server(host, postgres_port, home))
        store = {**KEYS, "AWS_ENDPOINT_URL": s3_url}
        for bucket in ("nightshift", "shop-data"):
            bucket_client(s3_url).create_bucket(Bucket=bucket)
        kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait")
        kubectl("apply", "-k", str(ROOT / "docker" / "kubernetes"))
        stack.callback(kubectl, "delete", "namespace", NAMESPACE, "--wait")
        literals = [f"--from-literal={name}={value}" for name, value in {**store, "NIGHTSHIFT_DATABASE": database_url}.items()]
        kubectl("create", "secret", "generic", "nightshift-test", "-n", NAMESPACE, *literals)
        # Some builds of the kubelet want this ConfigMap in every namespace, and wait for it.
        kubectl("create", "configmap", "openshift-service-ca.crt", "-n", NAMESPACE, check=False)
        placement = home / "placement.yaml"
        placement.write_text(PLACEMENT.format(image=image), encoding="utf-8")
        os.environ.update(store)
        made = cls.start(
            home / "installation",
            NIGHTSHIFT_BACKEND="kubernetes",
            NIGHTSHIFT_KUBERNETES=str(placement),
            NIGHTSHIFT_STORE="s3://nightshift/store",
            NIGHTSHIFT_DATABASE=database_url,
            MLFLOW_TRACKING_URI=mlflow_url,
            SHOP_URI="s3://shop-data/shop",
            # Packages of one's own would have to be in the image.
            NIGHTSHIFT_MODEL_PACKAGES="",
            KUBECONFIG=os.environ.get("NIGHTSHIFT_TEST_KUBECONFIG", os.environ["KUBECONFIG"]),
            **store,
        )
        assert isinstance(made, cls)
        stack.callback(made.stop)
        made.placement = placement
        made.upload_shop(s3_url)
        return made

    placement: Path

    def upload_shop(self, s3_url: str) -> None:
        client = bucket_client(s3_url)
        for path in sorted(self.shop.rglob("*.parquet")):
            client.upload_file(str(path), "shop-data", f"shop/{path.relative_to(self.shop).as_posix()}")

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
        """Add a pipeline like another one, with a model of its own, this placement, and texts replaced; return its name."""
        text = (self.dags / "pipelines" / f"{pipeline}.yaml").read_text(encoding="utf-8")
        inline = ", ".join(f"{key}: {json.dumps(value)}" for key, value in placement.items())
        text, count = re.subn(r"placement: \{.*\}", f"placement: {{{inline}}}", text)
        assert count == 1
        for old, new in {f"name: {pipeline}": f"name: {name}", f"model: {pipeline}": f"model: {name}", **changes}.items():
            assert old in text, old
            text = text.replace(old, new)
        (self.dags / "pipelines" / f"{name}.yaml").write_text(text, encoding="utf-8")
        shutil.copy(self.dags / f"{pipeline}.py", self.dags / f"{name}.py")
        return name


def bucket_client(url: str) -> Any:
    assert urlsplit(url).scheme == "http"
    return boto3.client("s3", endpoint_url=url, aws_access_key_id="tests", aws_secret_access_key="only-for-tests", region_name="us-east-1")
