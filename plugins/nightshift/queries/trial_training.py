"""The training of a trial, as far as readers of its metrics have to know: where its journal is, and whether it still trains."""

from __future__ import annotations

from airflow.models import DagRun
from sqlalchemy import select

from nightshift.queries.run_training import ENDED_RUN, Training
from nightshift.queries.runs import airflow_session, unknown_run
from nightshift.run_refs import planned_study, settled_spec
from training.errors import DeniedError
from training.spec.rules.names import TUNE_SUFFIX
from training.store import Store
from training.store.metric_journal import trial_journal
from training.tuning.records import StudyStore
from training.tuning.settings import num_trials


class TrialLook:
    """Looks at a trial again and again; what a run has settled once is read once."""

    def __init__(self, store: Store, pipeline: str, run_id: str, slot: int) -> None:
        """Look at nothing yet.

        Args:
            run_id: of a run of `<pipeline>.tune`, or of the pipeline where its YAML has `tune`.
            slot: number of the trial in the study, from 0.
        """
        self._store = store
        self._pipeline, self._run_id, self._slot = pipeline, run_id, slot
        self._num_trials: int | None = None
        self._study: str | None = None

    def __call__(self) -> Training:
        """Return the state of the trial's training; it has ended where the trial is finished, or the study's run.

        Raises:
            DeniedError: `run.unknown`; `trial.unknown`, the study will never have it.
            UnavailableError: `airflow.database`, or the store does not answer.
        """
        dag_id, has_ended = self._run()
        self._settle(dag_id)
        if self._num_trials is not None and self._slot >= self._num_trials:
            message = f"the study of {self._pipeline}:{self._run_id} has {self._num_trials} trials, and no trial {self._slot}"
            raise DeniedError("trial.unknown", message, hint="GET /hpo/studies/{id} lists the trials; numbers begin at 0")
        if self._study is None:
            return Training(journals=(), has_ended=has_ended)
        is_finished = StudyStore(self._store, self._pipeline, self._study).find(self._slot) is not None
        return Training(journals=(trial_journal(self._study, self._slot),), has_ended=has_ended or is_finished)

    def _run(self) -> tuple[str, bool]:
        """Return the DAG that does the study, and whether its run has ended."""
        ids = (f"{self._pipeline}{TUNE_SUFFIX}", self._pipeline)
        with airflow_session() as session:
            found = session.execute(select(DagRun.dag_id, DagRun.state).where(DagRun.dag_id.in_(ids), DagRun.run_id == self._run_id))
            states = {dag_id: str(state) in ENDED_RUN for dag_id, state in found}
        dag_id = next((each for each in ids if each in states), None)
        if dag_id is None:
            raise unknown_run(self._pipeline, self._run_id)
        return dag_id, states[dag_id]

    def _settle(self, dag_id: str) -> None:
        # From the store: users of Airflow's API may write XCom.
        if self._num_trials is None and (spec := settled_spec(self._store, dag_id, self._run_id)) is not None:
            self._num_trials = 0 if spec.tune is None else num_trials(spec.tune)
        if self._study is None:
            self._study = planned_study(self._store, dag_id, self._run_id)
