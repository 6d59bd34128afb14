"""What one launch is in Kubernetes: a Pod, or a headless Service and an Indexed Job. Pure functions to plain JSON.

Every pod passes the restricted Pod Security profile, with a read-only root besides; user values travel in the request's file alone.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from nightshift.execution.attempt_end import SIGNALS_START
from nightshift.execution.kubernetes.config import Cluster, Nodes
from nightshift.execution.kubernetes.launch_request import Launch
from training.contracts import ExitCode
from training.installation import STOP_NOTICE
from training.spec.scalar_types import size_text

Manifest = dict[str, Any]

CONTAINER: Final = "stage"
SCRATCH_PATH: Final = "/tmp"  # noqa: S108 - a volume of the pod's own
SHARED_MEMORY_PATH: Final = "/dev/shm"  # noqa: S108 - likewise
RENDEZVOUS_PORT: Final = 29500
PREFIX: Final = "nightshift.io"
LAUNCH_LABEL: Final = f"{PREFIX}/launch"
PIPELINE_LABEL: Final = f"{PREFIX}/pipeline"
STAGE_LABEL: Final = f"{PREFIX}/stage"
OWNER_LABEL: Final = f"{PREFIX}/owner"
ATTEMPT_LABEL: Final = f"{PREFIX}/attempt"
REQUEST_ANNOTATION: Final = f"{PREFIX}/request"
INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
KUEUE_TOPOLOGY: Final = "kueue.x-k8s.io/podset-required-topology"
PREFERENCE: Final = 100
"""Weight of the preference for other nodes than those that were slow: the highest."""
STOPPED: Final = (int(ExitCode.PREEMPTED), SIGNALS_START + signal.SIGTERM)
"""Exit codes of a member that was asked to stop, rising, as the API requires."""
HANDOVER: Final = timedelta(minutes=5)
"""From when the trigger saw a launch end until a worker's task has deleted it, where workers are busy."""
KEPT_SECONDS: Final = 86_400
"""After which Kubernetes itself removes a finished gang that no task came back for."""


def pod_manifest(launch: Launch, cluster: Cluster) -> Manifest:
    """Return the Pod of a launch of one node."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(launch, cluster), "spec": pod_spec(launch, cluster)}


def _metadata(launch: Launch, cluster: Cluster) -> Manifest:
    return {
        "name": launch.name,
        "namespace": cluster.namespace,
        "labels": labels_of(launch, cluster, queued=True),
        "annotations": {REQUEST_ANNOTATION: launch.request_uri},
    }


def job_manifest(launch: Launch, cluster: Cluster) -> Manifest:
    """Return the Indexed Job of a training, of one member or a gang.

    One failed member fails the whole at once: Nightshift starts it again from the last commit. A member that was asked to stop does not:
    a queue that takes the nodes of a Job suspends it, its members end, and the same Job goes on when the queue admits it again. A
    parallelism that equals the completions is what lets a cluster with native gang scheduling start all members or none.
    """
    queue = cluster.queue_of(launch.owner)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(launch, cluster),
        "spec": {
            "completionMode": "Indexed",
            "completions": launch.nodes,
            "parallelism": launch.nodes,
            "backoffLimit": 0,
            # Kueue unsuspends it when all of it is admitted.
            "suspend": queue is not None,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "podFailurePolicy": {
                "rules": [
                    {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {"action": "Ignore", "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": list(STOPPED)}},
                    {"action": "FailJob", "onExitCodes": {"containerName": CONTAINER, "operator": "NotIn", "values": [0]}},
                ]
            },
            # The first member commits; nothing that the others do after that is of account.
            "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
            "template": member_template(launch, cluster),
        },
    }


def member_template(launch: Launch, cluster: Cluster) -> Manifest:
    """Return the template of a Job's members."""
    annotations = {REQUEST_ANNOTATION: launch.request_uri}
    if launch.topology and cluster.queue_of(launch.owner):
        annotations[KUEUE_TOPOLOGY] = cluster.topologies[launch.topology]
    meeting = {"subdomain": launch.name} if launch.is_gang else {}
    # The Job as a whole is in the queue.
    return {
        "metadata": {"labels": labels_of(launch, cluster), "annotations": annotations},
        "spec": {**pod_spec(launch, cluster), **meeting},
    }


def service_manifest(launch: Launch, cluster: Cluster, *, job_uid: str) -> Manifest:
    """Return the headless Service by which members find the first one; it goes when its Job goes."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": launch.name,
            "namespace": cluster.namespace,
            "labels": labels_of(launch, cluster),
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": launch.name, "uid": job_uid}],
        },
        "spec": {
            "clusterIP": "None",
            # Members look the first one up before it is ready; it is ready when all have met.
            "publishNotReadyAddresses": True,
            "selector": {LAUNCH_LABEL: launch.name},
            "ports": [{"name": "rendezvous", "port": RENDEZVOUS_PORT}],
        },
    }


def labels_of(launch: Launch, cluster: Cluster, *, queued: bool = False) -> dict[str, str]:
    queue = cluster.queue_of(launch.owner) if queued else None
    return {
        "app.kubernetes.io/name": CONTAINER,
        "app.kubernetes.io/part-of": "nightshift",
        "app.kubernetes.io/managed-by": "nightshift",
        LAUNCH_LABEL: launch.name,
        ATTEMPT_LABEL: launch.attempt_id,
        PIPELINE_LABEL: label_value(launch.pipeline),
        STAGE_LABEL: launch.stage,
        OWNER_LABEL: label_value(launch.owner),
        **({QUEUE_LABEL: queue} if queue else {}),
    }


def label_value(text: str) -> str:
    """Return text as a label's value: what Kubernetes does not take becomes a dash, and ends at 63 characters."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:63].strip("._-")


def pod_spec(launch: Launch, cluster: Cluster) -> Manifest:
    priority = cluster.priorities.get(launch.priority or "default")
    nodes = _nodes(launch, cluster)
    affinity = _affinity(launch, cluster)
    selector = {name: value for place in nodes for name, value in place.node_selector.items()}
    tolerations = [toleration.model_dump(exclude_none=True) for place in nodes for toleration in place.tolerations]
    return {
        "restartPolicy": "Never",
        "serviceAccountName": cluster.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds(cluster),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": cluster.user_id,
            "runAsGroup": cluster.user_id,
            "fsGroup": cluster.user_id,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(launch, cluster)],
        "volumes": _volumes(launch, cluster),
        **({"imagePullSecrets": [{"name": name} for name in cluster.pull_secrets]} if cluster.pull_secrets else {}),
        **({"priorityClassName": priority} if priority else {}),
        **({"nodeSelector": selector} if selector else {}),
        **({"tolerations": tolerations} if tolerations else {}),
        **({"affinity": affinity} if affinity else {}),
    }


def grace_seconds(cluster: Cluster) -> int:
    """Return the time between SIGTERM and SIGKILL."""
    return math.ceil(cluster.grace.total_seconds())


def meeting_seconds(cluster: Cluster) -> int:
    """Return how long a member waits for the others: longer than the trigger leaves it a node while they have none, or do not start.

    torchrun's own limit, a quarter of an hour, would end a gang that the cluster's file lets wait, and use a relaunch.
    """
    placing = max(cluster.partial_wait, cluster.elastic_wait)
    return math.ceil((placing + cluster.start_timeout + HANDOVER).total_seconds())


def command_of(launch: Launch, cluster: Cluster) -> list[str]:
    """Return the command of a pod's only container.

    torchrun with a static rendezvous, so that the first rank is on the member with index 0, whose log is the one to follow.
    """
    module = f"training.stages.{launch.stage}"
    tini = ["tini", "-g", "--", "python", "-m"]
    torchrun = ["training.runtime.torchrun", f"--nproc-per-node={launch.processes_per_node}", "--max-restarts=0"]
    # Without the option, torchrun kills its ranks 30 s after SIGTERM.
    torchrun.append(f"--shutdown-timeout={grace_seconds(cluster)}")
    if launch.is_gang:
        first = f"{launch.name}-0.{launch.name}.{cluster.namespace}.svc"
        meeting = ["--rdzv-backend=static", f"--rdzv-conf=timeout={meeting_seconds(cluster)}", f"--nnodes={launch.nodes}"]
        meeting += [f"--master-addr={first}", f"--master-port={RENDEZVOUS_PORT}"]
        # $(NAME) is filled in by Kubernetes, not by a shell: there is none.
        return [*tini, *torchrun, *meeting, "--node-rank=$(JOB_COMPLETION_INDEX)", "-m", module, launch.request_uri]
    if launch.processes_per_node > 1:
        return [*tini, *torchrun, "--standalone", "-m", module, launch.request_uri]
    return [*tini, module, launch.request_uri]


def _container(launch: Launch, cluster: Cluster) -> Manifest:
    environment = _environment(launch, cluster)
    return {
        "name": CONTAINER,
        "image": cluster.image_of(gpus=launch.gpus),
        "imagePullPolicy": cluster.pull_policy,
        "command": command_of(launch, cluster),
        "env": [{"name": name, "value": value} for name, value in sorted(environment.items())] + _index(launch) + [_node()],
        "envFrom": [{"secretRef": {"name": name}} for name in cluster.secrets_of(launch.stage)],
        "resources": resources_of(launch, cluster),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        },
        # The end of the log travels in the pod's status, so that it outlives the pod's log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "scratch", "mountPath": SCRATCH_PATH},
            *([{"name": "shared-memory", "mountPath": SHARED_MEMORY_PATH}] if launch.shared_memory_bytes else []),
        ],
    }


def resources_of(launch: Launch, cluster: Cluster) -> Manifest:
    """Return requests and limits of the container: memory is limited; processors are shared, and only requested."""
    amounts = {"cpu": _cpus(launch.cpus), "memory": _quantity(launch.memory_bytes)}
    devices = {cluster.gpu_resource: str(launch.gpus)} if launch.gpus else {}
    return {"requests": {**amounts, **devices}, "limits": {"memory": amounts["memory"], **devices}}


def _environment(launch: Launch, cluster: Cluster) -> dict[str, str]:
    meeting = {} if launch.is_gang else {"GLOO_SOCKET_IFNAME": "lo"}
    return {
        STOP_NOTICE.name: str(grace_seconds(cluster)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        # As in `nightshift.execution.local`: waiting threads sleep instead of using up the pod's CPU.
        "OMP_WAIT_POLICY": "PASSIVE",
        "HOME": SCRATCH_PATH,
        "TMPDIR": SCRATCH_PATH,
        **meeting,
        **cluster.environment,
        # No file of a model is ever unpickled, regardless of the installation's settings.
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        **(launch.environment or {}),
    }


def _node() -> Manifest:
    """So that an error names the node of a rank."""
    return {"name": "NIGHTSHIFT_NODE", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}}


def _index(launch: Launch) -> list[Manifest]:
    """The Job controller sets it too, but after our own variables are resolved: the command's `$(…)` needs it here."""
    if not launch.is_gang:
        return []
    path = f"metadata.labels['{INDEX_LABEL}']"
    return [{"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}]


def _volumes(launch: Launch, cluster: Cluster) -> list[Manifest]:
    volumes: list[Manifest] = [{"name": "scratch", "emptyDir": {"sizeLimit": _quantity(cluster.scratch)}}]
    if launch.shared_memory_bytes:
        memory = {"medium": "Memory", "sizeLimit": _quantity(launch.shared_memory_bytes)}
        volumes.append({"name": "shared-memory", "emptyDir": memory})
    return volumes


def _nodes(launch: Launch, cluster: Cluster) -> list[Nodes]:
    place: Nodes = cluster.spot if launch.spot and cluster.spot else cluster.on_demand
    return [place, *([cluster.accelerators[launch.accelerator]] if launch.accelerator else [])]


def _affinity(launch: Launch, cluster: Cluster) -> Manifest:
    found: Manifest = {}
    if launch.avoided_nodes:
        found["nodeAffinity"] = _node_affinity(launch.avoided_nodes, is_required=launch.excludes_avoided)
    if launch.topology and launch.is_gang and not cluster.queue_of(launch.owner):
        together = {"labelSelector": {"matchLabels": {LAUNCH_LABEL: launch.name}}, "topologyKey": cluster.topologies[launch.topology]}
        found["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [together]}
    return found


def _node_affinity(nodes: Sequence[str], *, is_required: bool) -> Manifest:
    """Return the node affinity of a pod that is to run elsewhere.

    By the node's name, which is what a rank knows: its label `kubernetes.io/hostname` can be another one.
    """
    # The API takes one value for each of these.
    term = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]}
    if is_required:
        return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": PREFERENCE, "preference": term}]}


def _cpus(amount: float) -> str:
    return f"{math.ceil(amount * 1000)}m"


def _quantity(size_bytes: int) -> str:
    """Return bytes as Kubernetes writes them: `2Gi`."""
    return size_text(size_bytes).removesuffix("B")
