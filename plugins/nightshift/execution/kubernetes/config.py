"""What an installation says of its cluster: image, resources, kinds of nodes, queues. A platform engineer's file, never a trigger's."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, ValidationError

from nightshift.settings import SOURCE, Settings
from training.errors import Problem, SpecError, spec_error
from training.installation import Variable
from training.spec import PipelineSpec
from training.spec.reader.problems import in_order, problem_at, problems_of
from training.spec.reader.yaml import Document, read_document
from training.spec.scalar_types import (
    Bytes,
    Line,
    Many,
    PositiveDuration,
    Section,
    in_yaml,
    refusal,
)
from training.stage_table import ALL_STAGES, TABLE

VARIABLE: Final = "NIGHTSHIFT_KUBERNETES"
EVERY_STAGE: Final = "all"
ANY_STAGE: Final = "default"
POD: Final = Variable(
    name="KUBERNETES_SERVICE_HOST", set_by="others", meaning="Kubernetes: the process runs in a pod, whose account it uses"
)
KUBECONFIG: Final = Variable(
    name="KUBECONFIG", kind="path", set_by="others", meaning="Kubernetes: the cluster's file; it comes before the pod's account"
)
SECRET_NAME: Final = re.compile(r"(?i).*(PASSWORD|SECRET|TOKEN|CREDENTIAL|PRIVATE_KEY|ACCESS_KEY_ID).*")
DIGEST: Final = re.compile(r".+@(sha256:[0-9a-f]{64})")


def _label(value: str) -> str:
    # RFC 1123: what Kubernetes takes as the name of a namespace, a Secret or a ServiceAccount.
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", value):
        raise refusal("name.invalid", f"{in_yaml(value)} is not a name in Kubernetes", hint="lower-case letters, digits, '-' and '.'")
    return value


KubernetesName = Annotated[str, AfterValidator(_label)]


class Amount(Section):
    """The resources of a stage whose pipeline requests none."""

    cpus: Annotated[float, Field(gt=0, le=1024)] = 1.0
    """Requested, and not limited: a pod may use idle processors of its node. Unit: cores."""
    memory: Bytes = Field(default="2GiB", validate_default=True)
    """Requested, and the limit; /dev/shm is within it."""


class Toleration(Section):
    """A taint that pods tolerate, as Kubernetes writes it."""

    key: Line
    """Of the taint. Example: `nvidia.com/gpu`."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """`Exists`: any value of the taint; `Equal`: `value` alone."""
    value: Line | None = None
    """Of the taint, with `Equal`. Example: `"true"`."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Of the taint; absent: any."""


class Nodes(Section):
    """Which nodes: labels that they have, taints that are tolerated."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: Many[Toleration] = ()
    """Taints that a node may have."""


class Spot(Nodes):
    """Which nodes that may be taken away."""

    fallback_after: Annotated[int, Field(ge=1, le=1000)] = 2
    """Number of preemptions of one piece of work after which it runs on nodes that are not preempted. Unit: preemptions."""


class Cluster(Section):
    """The file that `NIGHTSHIFT_KUBERNETES` names."""

    namespace: KubernetesName
    """Of all pods, Jobs and Services."""
    image: Line
    """Of the stages; with a digest (`…@sha256:…`) that digest stands for the code in work ids."""
    gpu_image: Line | None = None
    """For stages with GPUs; absent: `image`."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """Of the image, as Kubernetes' `imagePullPolicy`."""
    pull_secrets: Many[KubernetesName] = ()
    """Secrets of the namespace with the accounts of registries (`imagePullSecrets`). Example: `[registry]`."""
    connection: Line | None = None
    """Airflow connection of type kubernetes; absent: the pod's own ServiceAccount, or KUBECONFIG. Example: `kubernetes_default`."""
    service_account: KubernetesName = "nightshift-stage"
    """Of the pods, for workload identity; no token of it is mounted."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Of every stage's process; nothing secret. Example: `{AWS_REGION: eu-central-1}`."""
    secrets: dict[str, Many[KubernetesName]] = Field(default_factory=dict)
    """Stage, or `all`, to the Secrets whose keys become environment variables of its process.
    Example: `{all: [nightshift-store], ingest: [nightshift-database]}`."""
    resources: dict[str, Amount] = Field(default_factory=dict)
    """Stage, or `default`, to its resources. Without its own, `trial` and `refit` have train's, `canary` evaluate's, `repair` promote's."""
    gpu_resource: Line = "nvidia.com/gpu"
    """Name by which the nodes offer GPUs, or parts of them (`nvidia.com/mig-3g.40gb`)."""
    scratch: Bytes = Field(default="20GiB", validate_default=True)
    """Most that a pod may write to its disk: staged shards, temporary files."""
    shared_memory: Bytes = Field(default="1GiB", validate_default=True)
    """For a training with several processes or GPUs, unless its pipeline requests another size. It counts as memory."""
    on_demand: Nodes = Field(default_factory=Nodes)
    """Nodes of all stages, and of trainings without `spot`."""
    spot: Spot | None = None
    """Nodes of trainings with `train.placement.spot`; absent: `spot` is ignored."""
    accelerators: dict[str, Nodes] = Field(default_factory=dict)
    """Name that pipelines use (`a100`) to the nodes that have it."""
    topologies: dict[str, Line] = Field(default_factory=dict)
    """Name that pipelines use (`nvlink`, `zone`) to the nodes' label whose value all members of a gang share.
    Example: `{zone: topology.kubernetes.io/zone}`."""
    priorities: dict[str, KubernetesName] = Field(default_factory=dict)
    """Name that pipelines use to a PriorityClass; `default` is for those that name none. Example: `{production: nightshift-production}`."""
    queues: dict[str, KubernetesName] = Field(default_factory=dict)
    """Owner of pipelines, or `default`, to a Kueue LocalQueue of `namespace`. Empty: no Kueue; else every owner needs a queue.
    Example: `{search: team-search, default: shared}`."""
    schedule_timeout: PositiveDuration = Field(default="1d", validate_default=True)
    """Longest wait for a place, queues included, after which the stage fails with the scheduler's reason."""
    elastic_wait: PositiveDuration = Field(default="5m", validate_default=True)
    """How long an elastic gang that was lost waits for all of its nodes before it continues with fewer; it keeps those it has."""
    partial_wait: PositiveDuration = Field(default="5m", validate_default=True)
    """How long a gang keeps some of its nodes while others are missing, before it gives them back, and asks for all again later."""
    image_timeout: PositiveDuration = Field(default="5m", validate_default=True)
    """Longest time of failed pulls of the image."""
    start_timeout: PositiveDuration = Field(default="30m", validate_default=True)
    """Longest time from having a node to a running container: pulling a large image takes minutes."""
    grace: PositiveDuration = Field(default="90s", validate_default=True)
    """Between SIGTERM and SIGKILL: time for a last checkpoint."""
    user_id: Annotated[int, Field(ge=1, le=2**31 - 1)] = 65532
    """User and group of the processes: the one of the image. Unit: user id."""

    @property
    def in_cluster(self) -> bool | None:
        """True where this process is to use its pod's account, None elsewhere: `connection` or KUBECONFIG says where the cluster is."""
        return True if POD.text() and not KUBECONFIG.text() and not self.connection else None

    def amount_of(self, stage: str) -> Amount:
        return self.resources.get(stage) or self.resources.get(TABLE[stage].sized_like) or self.resources.get(ANY_STAGE) or Amount()

    def secrets_of(self, stage: str) -> tuple[str, ...]:
        return (*self.secrets.get(EVERY_STAGE, ()), *self.secrets.get(stage, ()))

    def queue_of(self, owner: str) -> str | None:
        return self.queues.get(owner) or self.queues.get(ANY_STAGE)

    def image_of(self, *, gpus: int) -> str:
        return self.gpu_image or self.image if gpus else self.image

    def code_version(self, *, gpus: int) -> str | None:
        """Return the digest that the image is pinned to, None where it is named by a tag."""
        found = DIGEST.fullmatch(self.image_of(gpus=gpus))
        return found[1] if found else None


def check_placement(spec: PipelineSpec, cluster: Cluster) -> None:
    """Check that the cluster has everything that a pipeline requests by name.

    Raises:
        SpecError: `placement.unknown`, every name that its file does not have.
    """
    placement = spec.train.placement
    problems = []
    for key, names in (("accelerator", cluster.accelerators), ("topology", cluster.topologies), ("priority", cluster.priorities)):
        name = getattr(placement, key)
        if name is not None and name not in names:
            message = f"this cluster has no {key} {in_yaml(name)}"
            hint = f"known here: {', '.join(sorted(names)) or 'none'}; {VARIABLE} names the file that says so"
            problems.append(Problem(code="placement.unknown", field=f"train.placement.{key}", message=message, hint=hint))
    if cluster.queues and cluster.queue_of(spec.owner) is None:
        # Without the queue's label, its pods would use the teams' nodes outside of every quota.
        hint = f"add it, or `{ANY_STAGE}`, to `queues:` of the file of {VARIABLE}; known there: {', '.join(sorted(cluster.queues))}"
        problems.append(
            Problem(code="placement.unknown", field="owner", message=f"no queue for the owner {in_yaml(spec.owner)}", hint=hint)
        )
    if problems:
        raise SpecError(spec.name, problems)


def cluster_of(settings: Settings) -> Cluster:
    """Return what an installation states of its cluster.

    Raises:
        SpecError: `settings.kubernetes`, no file is named; or everything that is wrong with it.
    """
    if settings.kubernetes_path is None:
        message = "names no file, and the backend is kubernetes"
        hint = "docker/kubernetes/placement.yaml is one to begin with"
        raise spec_error(SOURCE, "settings.kubernetes", message, hint=hint, field=VARIABLE)
    return load_cluster(settings.kubernetes_path)


def load_cluster(path: str | os.PathLike[str]) -> Cluster:
    """Read the file, as strictly as a pipeline's.

    Raises:
        SpecError: every problem, in the order of its lines.
    """
    source = os.fspath(path)
    try:
        text = Path(path).read_bytes()
    except OSError as err:
        message = f"cannot be read: {err.strerror}"
        raise spec_error(source, "cluster.unreadable", message, hint=f"{VARIABLE} names the file") from err
    document = read_document(text, source)
    problems = list(document.problems)
    try:
        cluster = Cluster.model_validate(document.value)
    except ValidationError as err:
        raise SpecError(source, in_order([*problems, *problems_of(err, Cluster, document)])) from err
    problems += _broken_rules(cluster, document)
    if problems:
        raise SpecError(source, in_order(problems))
    return cluster


def _broken_rules(cluster: Cluster, document: Document) -> list[Problem]:
    found = []
    for section, others in (("secrets", EVERY_STAGE), ("resources", ANY_STAGE)):
        for name in getattr(cluster, section):
            if name not in (*ALL_STAGES, others):
                hint = f"one of {', '.join(ALL_STAGES)}, {others}"
                found.append(problem_at(document, (section, name), "stage.unknown", f"there is no stage {in_yaml(name)}", hint=hint))
    for name in cluster.environment:
        if SECRET_NAME.fullmatch(name):
            message = f"{name} looks like a secret; this file is none"
            found.append(problem_at(document, ("environment", name), "environment.secret", message, hint="put it into a Secret: secrets"))
    return found
