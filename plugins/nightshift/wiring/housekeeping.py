"""Hourly maintenance: expires requests for approval, aligns MLflow with the ledger, sends it metrics of trainings during which it was away,
and starts lost evaluations of canaries. It also copies metrics for SQL clients, and deletes by the retention settings (docs/retention.md).

`repair` is one process for all models. One model's failure fails the task, with its reason, after the others were repaired.
`python -m training.registry check` shows the same by hand.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from airflow.sdk import DAG, CronTriggerTimetable

from nightshift.operators.approval_expiry import ExpireOperator
from nightshift.operators.canary_runs import MissedCanaryRunsOperator
from nightshift.operators.cleaning import CleanHomeOperator, CollectOperator
from nightshift.operators.metrics import CopyMetricsOperator
from nightshift.operators.repair import RepairOperator
from nightshift.slots import HOUSEKEEPING as POOL
from nightshift.wiring.task_classes import task_class
from training.spec.rules.names import HELPER_TAG, HOUSEKEEPING
from training.stage_table import REPAIR

COLLECTION_LIMIT: Final = timedelta(hours=12)
"""A collection whose storage hangs gives its slot in the pool back."""


def housekeeping_dag() -> DAG:
    """Return the DAG `housekeeping`."""
    dag = DAG(
        dag_id=HOUSEKEEPING,
        description="Helper of all pipelines: ends expired requests, aligns MLflow with the ledger, deletes by the retention settings",
        doc_md=__doc__,
        schedule=CronTriggerTimetable("17 * * * *", timezone="UTC"),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        tags=["nightshift", HELPER_TAG],
    )
    with dag:
        expire = ExpireOperator(task_id="expire", pool=POOL, retries=2)
        repairing, arguments = task_class(RepairOperator, REPAIR, None)
        expire >> repairing(task_id=REPAIR, pool=POOL, retries=2, **arguments)
        CollectOperator(task_id="collect", pool=POOL, retries=2, execution_timeout=COLLECTION_LIMIT)
        CleanHomeOperator(task_id="clean", pool=POOL, retries=2)
        CopyMetricsOperator(task_id="metrics", pool=POOL, retries=2)
        MissedCanaryRunsOperator(task_id="canary_looks", pool=POOL, retries=2)
    return dag
