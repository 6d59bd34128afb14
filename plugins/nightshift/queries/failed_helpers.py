"""Helper DAGs whose last run failed: looks at canaries, housekeeping, approvals, rollbacks, studies. Nobody waits for their runs."""

from __future__ import annotations

from airflow.models import DagModel, DagRun
from sqlalchemy import func, select

from nightshift.queries.run_records import run_fields
from nightshift.queries.runs import airflow_session, pipeline_of, summaries, tagged_dags
from nightshift.queries.schemas import FailedHelper, RunSummary
from training.spec.rules.names import HELPER_TAG


def failed_helpers(names: set[str], *, first: str | None = None, limit: int | None = None) -> list[FailedHelper]:
    """Return those of some helper DAGs of which the newest run that has ended failed, by name.

    Args:
        first: name to begin with; None: the first one.
        limit: how many at most; None: all.
    """
    done = (
        select(DagRun.dag_id, func.max(DagRun.id).label("id"))
        .where(DagRun.dag_id.in_(names), DagRun.state == "success")
        .group_by(DagRun.dag_id)
        .subquery()
    )
    since = (
        select(DagRun.dag_id, func.min(DagRun.id), func.max(DagRun.id))
        .outerjoin(done, done.c.dag_id == DagRun.dag_id)
        .where(DagRun.state == "failed", DagRun.dag_id.in_(names), DagRun.id > func.coalesce(done.c.id, 0))
        .group_by(DagRun.dag_id)
    )
    with airflow_session() as session:
        ends = {dag_id: (oldest, newest) for dag_id, oldest, newest in session.execute(since)}
        wanted = {id for pair in ends.values() for id in pair}
        of_runs = {each.id: each for each in session.scalars(summaries().where(DagRun.id.in_(wanted)))}
        dags = tagged_dags(HELPER_TAG).where(DagModel.dag_id.in_(ends)).order_by(DagModel.dag_id).limit(limit)
        return [
            FailedHelper(
                **dict(pipeline_of(dag)),
                last_run=RunSummary.model_validate(run_fields(of_runs[ends[dag.dag_id][1]])),
                failed_since=of_runs[ends[dag.dag_id][0]].end_date,
            )
            for dag in session.scalars(dags if first is None else dags.where(DagModel.dag_id >= first))
        ]
