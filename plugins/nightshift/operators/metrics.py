"""Housekeeping's part for SQL clients (docs/sql.md): metrics that no task copied, and how runs have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow.sdk import BaseOperator

from nightshift.settings import Settings
from training.process.waiting import waiting_for_database
from training.store import Bucket

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context
    from sqlalchemy import Engine

ENDED: Final = frozenset({"success", "failed"})


class CopyMetricsOperator(BaseOperator):
    """Housekeeping's copy: what the operators of trainings did not copy, because the training failed or still works.

    It also notes how runs have ended.
    """

    @waiting_for_database()
    def execute(self, context: Context) -> int:
        """Return the number of points that were added.

        Raises:
            UnavailableError: store or database do not answer; Airflow tries again.
        """
        from training.database.run_metrics import copy_recent

        settings = Settings.from_environment()
        num_points = copy_recent(settings.database(), Bucket(settings.store_uri))
        self.log.info("%d points of metrics were added to run_metric", num_points)
        self._note_states(context, settings.database())
        return num_points

    def _note_states(self, context: Context, engine: Engine) -> None:
        """Note how runs have ended, and which failed ones go on: the scheduler ends them, and must not wait for our database."""
        from training.database.pipeline_runs import FAILED, LOST, QUEUED, RUNNING, note_state, unsettled_runs

        for pipeline, run_id, noted in unsettled_runs(engine):
            if context["ti"].get_dr_count(dag_id=pipeline, run_ids=[run_id]):
                state = str(context["ti"].get_dagrun_state(dag_id=pipeline, run_id=run_id))
            else:
                state = noted if noted == FAILED else LOST
            if state not in (*ENDED, LOST):
                # A run that is queued again, after its tasks were cleared, goes on; how one begins, its first task notes.
                state = QUEUED if noted == QUEUED else RUNNING
            if state != noted:
                note_state(engine, pipeline, run_id, state, noted=noted)
