"""What no other task looks at: requests for approval whose time is over, MLflow where it differs from the ledger, and metrics of
trainings during which MLflow was away. It also deletes what retention lets go (docs/retention.md).

`repair` is one process for all models. One model's failure fails the task, with its reason, after the others were repaired.
`python -m training.registry check` shows the same by hand.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from airflow.sdk import DAG, BaseOperator, CronTriggerTimetable

from nightshift.cleaning import CleanHomeOperator, CollectOperator
from nightshift.pools import CPU
from nightshift.repair import RepairOperator
from nightshift.settings import Settings
from training.errors import DataError, DeniedError, SpecError
from training.patience import waiting_for_database
from training.spec import PipelineSpec
from training.spec.names import HOUSEKEEPING
from training.store import Store

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from training.registry.ledger import Entry, Ledger

COLLECTION_LIMIT: Final = timedelta(hours=12)
"""A collection whose storage hangs gives its slot in the pool back."""


def housekeeping_dag() -> DAG:
    """Return the DAG `housekeeping`."""
    dag = DAG(
        dag_id=HOUSEKEEPING,
        description="Ends expired requests, sets MLflow right where it differs from the ledger, deletes what retention no longer keeps",
        doc_md=__doc__,
        schedule=CronTriggerTimetable("17 * * * *", timezone="UTC"),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        tags=["nightshift"],
    )
    with dag:
        expire = ExpireOperator(task_id="expire", pool=CPU.name, retries=2)
        expire >> RepairOperator(task_id="repair", pool=CPU.name, retries=2)
        CollectOperator(task_id="collect", pool=CPU.name, retries=2, execution_timeout=COLLECTION_LIMIT)
        CleanHomeOperator(task_id="clean", pool=CPU.name, retries=2)
    return dag


class ExpireOperator(BaseOperator):
    """Ends the requests whose time is over; returns the models that have decisions."""

    @waiting_for_database()
    def execute(self, context: Context) -> list[str]:
        from training.registry.ledger import Ledger

        settings = Settings.from_environment()
        ledger = Ledger(settings.database_url)
        models = ledger.models()
        for model in models:
            for request in ledger.open_requests(model):
                self._expire(ledger, request, Store(settings.store_uri))
        return models

    def _expire(self, ledger: Ledger, request: Entry, store: Store) -> None:
        from training.registry.decisions import answer_request

        try:
            spec = PipelineSpec.thaw(store.get_json(str(request.evidence["spec_uri"])))
        except (SpecError, DataError, KeyError) as err:
            self.log.error("the request for version %s of %s cannot be read: %s", request.version, request.model, err)
            return
        if datetime.now(UTC) < request.decided_at + spec.promote.approve_within:
            self.log.info("version %s of %s has waited for an answer since %s", request.version, request.model, request.decided_at)
            return
        try:
            answer_request(ledger, request, "expired", by="nobody", words=f"nobody answered within {spec.promote.approve_within}")
            self.log.warning("the request for version %s of %s has expired", request.version, request.model)
        except DeniedError as err:
            self.log.info("%s", err)
