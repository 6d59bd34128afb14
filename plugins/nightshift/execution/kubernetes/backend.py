"""What an operator needs to run its stage in the cluster: imported by tasks alone, since Airflow's provider takes seconds to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nightshift.execution.kubernetes.client import Submitter
from nightshift.execution.kubernetes.config import Cluster
from nightshift.execution.kubernetes.launches import Asker, RemoteWork, Waiting
from nightshift.execution.kubernetes.trigger import WatchLaunch
from nightshift.resolved_run import ResolvedRun
from nightshift.work import Work
from training.contracts import RunIdentity
from training.store import StageAddress

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context


def remote_work(
    context: Context, run: RunIdentity, frozen: ResolvedRun, work: Work, address: StageAddress, cluster: Cluster, *, stage: str
) -> RemoteWork:
    """Return a task's work in the cluster."""
    ti: Any = context["ti"]
    return RemoteWork(
        # A clear raises the number of tries that a task may have, and nothing else does.
        asker=Asker(run=run, generation=int(getattr(ti, "max_tries", 0) or 0)),
        frozen=frozen,
        stage=stage,
        work=work,
        address=address,
        cluster=cluster,
        submitter=Submitter(cluster, context, task_id=run.task_id),
    )


def watching(waiting: Waiting) -> WatchLaunch:
    """Return the trigger that waits for a launch."""
    return WatchLaunch(
        number=waiting.number,
        name=waiting.name,
        kind=waiting.kind,
        namespace=waiting.namespace,
        limits=waiting.limits.to_json(),
        connection=waiting.connection,
        in_cluster=waiting.in_cluster,
    )
