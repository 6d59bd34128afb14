"""What one launch asks of the cluster: the spec's resources of a stage, completed by the cluster's defaults, and its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from nightshift.execution.kubernetes.config import Cluster
from training.contracts import sha256_hex
from training.spec import PipelineSpec
from training.spec.sections.resources import StageResources
from training.stage_table import TRAININGS

Kind = Literal["Pod", "Job"]
MAX_NAME_CHARS: Final = 52
"""A member's host name is the Job's name, a dash and its index, and has at most 63 characters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One start of one attempt, as it is requested from the cluster."""

    name: str
    """Of Pod, Job and Service: noted when the launch is claimed, so that it cannot be submitted twice."""
    pipeline: str
    stage: str
    owner: str
    """Whose pipeline it is: queues and fair shares go by it."""
    attempt_id: str
    request_uri: str
    nodes: int = 1
    processes_per_node: int = 1
    cpus: float = 1.0
    """Per node, as all amounts."""
    memory_bytes: int = 2**31
    gpus: int = 0
    shared_memory_bytes: int = 0
    spot: bool = False
    accelerator: str | None = None
    topology: str | None = None
    priority: str | None = None
    avoided_nodes: tuple[str, ...] = ()
    """Names of nodes that it is not to run on."""
    excludes_avoided: bool = False
    """Whether it waits for others; False: others are preferred."""
    environment: Mapping[str, str] | None = None
    """Of this launch besides the cluster's: addresses of services, the code's version."""

    @property
    def is_gang(self) -> bool:
        return self.nodes > 1

    @property
    def kind(self) -> Kind:
        return kind_of(self.stage)


def kind_of(stage: str) -> Kind:
    """Return what the cluster is asked for: one Pod, or for each training a Job of one or more members, as its nodes may change."""
    return "Job" if stage in TRAININGS else "Pod"


def launch_name(pipeline: str, stage: str, attempt_id: str, number: int) -> str:
    """Return the name of the launch `number` of a piece of work: readable, at most 52 characters.

    The attempt's random digits make it unlike any other in the namespace. A work id would not: another installation with the same
    code and data has the same one.
    """
    tail = f"{stage}-{attempt_id[-12:]}-{number}"
    head = re.sub(r"[^a-z0-9]+", "-", pipeline.lower()).strip("-")
    # The whole of a long name is in the launch's request; the digest distinguishes two pipelines with the same beginning.
    room = MAX_NAME_CHARS - len(tail) - 1
    if len(head) > room:
        head = f"{head[: room - 5]}-{sha256_hex(pipeline.encode())[:4]}"
    return f"{head}-{tail}"


def launch_of(
    spec: PipelineSpec, cluster: Cluster, *, stage: str, name: str, attempt_id: str, request_uri: str, nodes: int, spot: bool
) -> Launch:
    """Return the spec's resources of a stage, completed by the cluster's defaults.

    Args:
        nodes: number of nodes of this launch: fewer than the spec's where an elastic training continues with those that are left.
        spot: whether nodes that may be taken away will do this time.
    """
    launch = partial(Launch, name=name, pipeline=spec.name, stage=stage, owner=spec.owner, attempt_id=attempt_id, request_uri=request_uri)
    amount = cluster.amount_of(stage)
    if stage not in TRAININGS:
        asked = spec.resources.get(stage) or StageResources()
        return launch(cpus=asked.cpus or amount.cpus, memory_bytes=asked.memory or amount.memory)
    placement = spec.train.placement
    processes = placement.processes_per_node
    needs_shared_memory = processes > 1 or nodes > 1 or placement.gpus > 0
    default_shared_bytes = cluster.shared_memory if needs_shared_memory else 0
    return launch(
        nodes=nodes,
        processes_per_node=processes,
        cpus=placement.cpus or amount.cpus,
        memory_bytes=placement.memory or amount.memory,
        gpus=placement.gpus,
        shared_memory_bytes=placement.shared_memory or default_shared_bytes,
        spot=spot,
        accelerator=placement.accelerator,
        topology=placement.topology,
        priority=placement.priority,
    )
