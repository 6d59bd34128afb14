"""Pods, Jobs and Services as data: what is asked of a cluster for which placement."""

from pathlib import Path
from typing import Any

import pytest
from torch.distributed.run import config_from_args, parse_args

from nightshift.execution.kubernetes.config import Cluster
from nightshift.execution.kubernetes.launch_request import Launch, launch_name, launch_of
from nightshift.execution.kubernetes.manifests import (
    command_of,
    job_manifest,
    member_template,
    pod_manifest,
    service_manifest,
)
from nightshift.execution.kubernetes.remote_work import pod_environment
from nightshift.settings import Settings
from tests.unit.docker.restricted_profile import violations
from training.runtime.provenance import CHECKOUT
from training.spec import load_spec
from training.spec.reader.loader import check_values
from training.stage_table import ALL_STAGES, TABLE, Need

URI = "s3://bucket/store/stages/p/train/" + "a" * 64 + "/attempts/1/_REQUEST.json"


def cluster_of(**more: Any) -> Cluster:
    return Cluster.model_validate({"namespace": "nightshift", "image": "registry/stage:1", **more})


FULL = cluster_of(
    gpu_image="registry/stage:1-cuda",
    pull_secrets=["registry"],
    secrets={"all": ["store"], "promote": ["database"]},
    environment={"AWS_REGION": "eu-central-1"},
    on_demand={"node_selector": {"lifecycle": "on-demand"}},
    spot={"node_selector": {"lifecycle": "spot"}, "tolerations": [{"key": "spot", "effect": "NoSchedule"}]},
    accelerators={"a100": {"node_selector": {"gpu": "a100"}, "tolerations": [{"key": "gpu"}]}},
    topologies={"nvlink": "clique"},
    priorities={"production": "nightshift-production", "default": "nightshift-default"},
)
QUEUED = cluster_of(queues={"default": "shared", "search": "team-search"}, topologies={"nvlink": "clique"})


def launch(**more: Any) -> Launch:
    values = {"name": "p-train-abc-1", "pipeline": "p", "stage": "train", "owner": "search", "attempt_id": "1", "request_uri": URI, **more}
    return Launch(**values)


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["spec"]["containers"][0]
    return found


def gang_job(asked: Launch, cluster: Cluster) -> dict[str, Any]:
    return job_manifest(asked, cluster)


def test_a_pod_of_one_process_is_this() -> None:
    pod = pod_manifest(launch(stage="ingest", cpus=0.5, memory_bytes=2**30), cluster_of())
    assert pod == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p-train-abc-1",
            "namespace": "nightshift",
            "labels": {
                "app.kubernetes.io/name": "stage",
                "app.kubernetes.io/part-of": "nightshift",
                "app.kubernetes.io/managed-by": "nightshift",
                "nightshift.io/launch": "p-train-abc-1",
                "nightshift.io/attempt": "1",
                "nightshift.io/pipeline": "p",
                "nightshift.io/stage": "ingest",
                "nightshift.io/owner": "search",
            },
            "annotations": {"nightshift.io/request": URI},
        },
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": "nightshift-stage",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 90,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "stage",
                    "image": "registry/stage:1",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["tini", "-g", "--", "python", "-m", "training.stages.ingest", URI],
                    "env": [
                        {"name": "GLOO_SOCKET_IFNAME", "value": "lo"},
                        {"name": "HOME", "value": "/tmp"},
                        {"name": "MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "value": "false"},
                        {"name": "NIGHTSHIFT_STOP_NOTICE_SECONDS", "value": "90"},
                        {"name": "OMP_NUM_THREADS", "value": "1"},
                        {"name": "OMP_WAIT_POLICY", "value": "PASSIVE"},
                        {"name": "PYTHONHASHSEED", "value": "0"},
                        {"name": "PYTHONUNBUFFERED", "value": "1"},
                        {"name": "TMPDIR", "value": "/tmp"},
                        {"name": "NIGHTSHIFT_NODE", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}},
                    ],
                    "envFrom": [],
                    "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "privileged": False,
                        "readOnlyRootFilesystem": True,
                        "runAsNonRoot": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
                }
            ],
            "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "20Gi"}}],
        },
    }


def test_a_gpu_training_on_spot_nodes_names_what_the_cluster_calls_them() -> None:
    asked = launch(gpus=8, processes_per_node=8, shared_memory_bytes=2**33, spot=True, accelerator="a100", priority="production")
    pod = pod_manifest(asked, FULL)
    assert container(pod)["image"] == "registry/stage:1-cuda"
    assert container(pod)["resources"]["limits"] == {"memory": "2Gi", "nvidia.com/gpu": "8"}
    assert container(pod)["resources"]["requests"]["nvidia.com/gpu"] == "8"
    assert container(pod)["volumeMounts"][1] == {"name": "shared-memory", "mountPath": "/dev/shm"}
    assert pod["spec"]["volumes"][1] == {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
    assert pod["spec"]["nodeSelector"] == {"lifecycle": "spot", "gpu": "a100"}
    assert pod["spec"]["tolerations"] == [
        {"key": "spot", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "gpu", "operator": "Exists"},
    ]
    assert pod["spec"]["priorityClassName"] == "nightshift-production"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert command_of(asked, FULL)[5:8] == ["training.runtime.torchrun", "--nproc-per-node=8", "--max-restarts=0"]


def test_what_is_not_on_spot_nodes_goes_where_nothing_is_taken_away() -> None:
    assert pod_manifest(launch(), FULL)["spec"]["nodeSelector"] == {"lifecycle": "on-demand"}


def test_a_stage_sees_the_secrets_that_are_its_own() -> None:
    assert container(pod_manifest(launch(stage="train"), FULL))["envFrom"] == [{"secretRef": {"name": "store"}}]
    names = [entry["secretRef"]["name"] for entry in container(pod_manifest(launch(stage="promote"), FULL))["envFrom"]]
    assert names == ["store", "database"]


@pytest.mark.parametrize(
    ("limits", "longest_wait_seconds"),
    [({}, 2100), ({"partial_wait": "25m"}, 3300), ({"elastic_wait": "20m", "start_timeout": "1h"}, 4800)],
    ids=["as shipped", "nodes that an autoscaler brings one by one", "an image that is pulled for an hour"],
)
def test_a_member_waits_for_the_others_as_long_as_the_cluster_lets_its_gang_wait(
    limits: dict[str, str], longest_wait_seconds: float
) -> None:
    command = command_of(launch(nodes=2), cluster_of(**limits))
    options = command[command.index("training.runtime.torchrun") + 1 :]
    config, _, _ = config_from_args(parse_args([option.replace("$(JOB_COMPLETION_INDEX)", "1") for option in options]))
    assert config.rdzv_configs["rank"] == 1
    assert int(config.rdzv_configs["timeout"]) > longest_wait_seconds


def test_a_gang_fails_as_a_whole_and_meets_at_its_first_member() -> None:
    asked = launch(nodes=4, processes_per_node=2)
    job = gang_job(asked, cluster_of())
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"], spec["backoffLimit"]) == ("Indexed", 4, 4, 0)
    assert spec["suspend"] is False
    assert [rule["action"] for rule in spec["podFailurePolicy"]["rules"]] == ["FailJob", "Ignore", "FailJob"]
    assert spec["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"] == [75, 143], "asked to stop, by its queue's suspension"
    assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    member = spec["template"]["spec"]
    assert member["subdomain"] == "p-train-abc-1"
    assert member["containers"][0]["command"] == [
        *("tini", "-g", "--", "python", "-m", "training.runtime.torchrun", "--nproc-per-node=2", "--max-restarts=0"),
        "--shutdown-timeout=90",
        *("--rdzv-backend=static", "--rdzv-conf=timeout=2400", "--nnodes=4"),
        *("--master-addr=p-train-abc-1-0.p-train-abc-1.nightshift.svc", "--master-port=29500"),
        *("--node-rank=$(JOB_COMPLETION_INDEX)", "-m", "training.stages.train", URI),
    ]
    names = [variable["name"] for variable in member["containers"][0]["env"]]
    assert "JOB_COMPLETION_INDEX" in names
    assert "GLOO_SOCKET_IFNAME" not in names, "members meet over the network, not the loopback"
    service = service_manifest(asked, cluster_of(), job_uid="u")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"nightshift.io/launch": "p-train-abc-1"}
    assert service["metadata"]["ownerReferences"] == [{"apiVersion": "batch/v1", "kind": "Job", "name": "p-train-abc-1", "uid": "u"}]


@pytest.mark.parametrize("stage", ALL_STAGES)
def test_a_pod_gets_these_variables_and_nothing_of_airflows_process(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NIGHTSHIFT_TOKEN", "NIGHTSHIFT_WEBHOOK_SECRET", "AWS_SECRET_ACCESS_KEY", "SHOP_URI", "AIRFLOW_CONN_X"):
        monkeypatch.setenv(name, "secret")
    of_the_stage = pod_environment(FULL, Settings.from_environment({}), stage, gpus=0)
    found = container(pod_manifest(launch(stage=stage, environment=of_the_stage), FULL))
    assert {variable["name"] for variable in found["env"]} == {
        *(
            "HOME",
            "TMPDIR",
            "PYTHONUNBUFFERED",
            "PYTHONHASHSEED",
            "OMP_NUM_THREADS",
            "OMP_WAIT_POLICY",
            "GLOO_SOCKET_IFNAME",
        ),
        *("NIGHTSHIFT_STOP_NOTICE_SECONDS", "NIGHTSHIFT_NODE", "MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "AWS_REGION"),
        *(["MLFLOW_TRACKING_URI"] if Need.MLFLOW in TABLE[stage].services else []),
    }
    assert [source["secretRef"]["name"] for source in found["envFrom"]] == ["store", *(["database"] if stage == "promote" else [])]


def test_a_gang_in_one_domain_is_kept_together() -> None:
    job = gang_job(launch(nodes=2, topology="nvlink"), FULL)
    (term,) = job["spec"]["template"]["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term == {"labelSelector": {"matchLabels": {"nightshift.io/launch": "p-train-abc-1"}}, "topologyKey": "clique"}


def test_nodes_that_were_slow_are_excluded_by_name_one_value_each() -> None:
    pod = pod_manifest(launch(nodes=2, avoided_nodes=("b", "c"), excludes_avoided=True), cluster_of())
    terms = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in ("b", "c")]
    assert pod["spec"]["affinity"] == {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": terms}]}}
    }


def test_where_a_gang_could_not_do_without_them_other_nodes_are_preferred_to_slow_ones() -> None:
    job = gang_job(launch(nodes=2, topology="nvlink", avoided_nodes=("b",)), FULL)
    affinity = job["spec"]["template"]["spec"]["affinity"]
    preference = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["b"]}]}
    assert affinity["nodeAffinity"] == {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": preference}]}
    assert "podAffinity" in affinity, "the members stay together"


def test_a_gang_in_a_queue_of_kueue_waits_suspended_and_leaves_the_domain_to_it() -> None:
    job = gang_job(launch(nodes=2, topology="nvlink"), QUEUED)
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-search"
    template = job["spec"]["template"]
    assert "affinity" not in template["spec"]
    assert template["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"] == "clique"
    assert "kueue.x-k8s.io/queue-name" not in template["metadata"]["labels"], "Kueue would count the members twice"
    assert pod_manifest(launch(owner="others"), QUEUED)["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "shared"


@pytest.mark.parametrize("cluster", [cluster_of(), FULL, QUEUED], ids=["plain", "full", "queued"])
@pytest.mark.parametrize(
    "asked",
    [
        launch(stage="ingest"),
        launch(processes_per_node=2, shared_memory_bytes=2**26),
        launch(nodes=2, avoided_nodes=("b",)),
        launch(gpus=8, spot=True),
        launch(nodes=3),
    ],
    ids=["stage", "processes", "without a node", "gpus", "gang"],
)
def test_every_pod_passes_the_restricted_profile(asked: Launch, cluster: Cluster) -> None:
    pod = pod_manifest(asked, cluster)
    assert violations(pod["spec"]) == []
    assert violations(member_template(asked, cluster)["spec"]) == []


def test_a_launch_asks_for_what_the_pipeline_says_and_else_what_the_cluster_gives() -> None:
    values = load_spec(CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml").model_dump(mode="json", by_alias=True)
    values["train"]["placement"] = {"nodes": 2, "processes_per_node": 2, "cpus": 3.5, "memory": "6GiB", "spot": True, "priority": "high"}
    spec = check_values(values, "test")
    cluster = cluster_of(resources={"default": {"cpus": 2, "memory": "3GiB"}, "train": {"cpus": 8, "memory": "9GiB"}})
    asked = {"name": "n", "attempt_id": "1", "request_uri": URI, "nodes": 2, "spot": True}
    train = launch_of(spec, cluster, stage="train", **asked)
    assert (train.cpus, train.memory_bytes, train.nodes, train.processes_per_node) == (3.5, 6 * 2**30, 2, 2)
    assert (train.spot, train.priority, train.shared_memory_bytes) == (True, "high", 2**30)
    ingest = launch_of(spec, cluster, stage="ingest", **asked)
    assert (ingest.cpus, ingest.memory_bytes, ingest.nodes, ingest.spot) == (2, 3 * 2**30, 1, False)


@pytest.mark.parametrize("pipeline", ["p", "Search.Ranking_v2", "a" * 63, "ranking-of-everything-in-the-northern-hemisphere"])
def test_a_name_is_short_readable_and_of_this_attempt_alone(pipeline: str) -> None:
    name = launch_name(pipeline, "validate", "0199aaaabbbb0123456789ab", 12)
    assert len(f"{name}-1023") <= 63
    assert name.endswith("-validate-0123456789ab-12")
    assert name == name.lower()
    assert launch_name(pipeline + "x", "validate", "0199aaaabbbb0123456789ab", 12) != name
    assert Path(name).name == name
