"""An installation whose stages run on the cluster that KUBECONFIG names.

KUBECONFIG                      a cluster admin's, for making the namespace and looking from outside
NIGHTSHIFT_TEST_KUBECONFIG      Airflow's own, bound to docker/kubernetes' Role alone; absent: the admin's
NIGHTSHIFT_TEST_IMAGE           the stages' image, built from this checkout and present on the nodes
NIGHTSHIFT_TEST_HOST            address of this machine that pods reach
NIGHTSHIFT_TEST_API_SERVER_PID  process of the cluster's only API server, if it runs on this machine; absent: it is not stopped
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.kubernetes.cluster_installation import ClusterInstallation, kubectl

IMAGE = os.environ.get("NIGHTSHIFT_TEST_IMAGE", "localhost/nightshift-stage:test")
HOST = os.environ.get("NIGHTSHIFT_TEST_HOST", "10.244.0.1")


def reason_to_skip() -> str:
    """Return why there is no cluster to test on, empty if there is one."""
    if not os.environ.get("KUBECONFIG"):
        return "KUBECONFIG names no cluster"
    try:
        answer = subprocess.run(["kubectl", "get", "--raw", "/readyz"], capture_output=True, text=True, timeout=20, check=False)  # noqa: S607
    except (OSError, subprocess.TimeoutExpired) as err:
        return f"the cluster was not asked: {err}"
    return "" if answer.returncode == 0 else f"the cluster does not answer: {answer.stderr.strip()[:200]}"


@pytest.fixture(scope="session")
def on_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterInstallation]:
    """A running installation; its namespace enforces the restricted profile. Afterwards nothing of it is left in the cluster."""
    reason = reason_to_skip()
    if reason:
        pytest.skip(reason)
    with ExitStack() as stack:
        yield ClusterInstallation.on(stack, tmp_path_factory.mktemp("cluster"), image=IMAGE, host=HOST)


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test leaves the namespace as empty as it found it."""
    yield
    if "on_cluster" in request.fixturenames:
        request.getfixturevalue("on_cluster").until(lambda: not leftovers(), "an empty namespace", timeout_seconds=120, why=leftovers)


def leftovers() -> str:
    return kubectl("get", ",".join(kinds_of_launches()), "-n", "nightshift", "-o", "name")


@functools.cache
def kinds_of_launches() -> list[str]:
    """Return the kinds of what a launch may leave, as far as the cluster has them: kubectl lists nothing if it does not know one."""
    known = kubectl("api-resources", "--namespaced", "--verbs=list", "-o", "name", check=False).split()
    return [name for name in known if name.partition(".")[0] in ("pods", "jobs", "services", "podgroups", "workloads")]
