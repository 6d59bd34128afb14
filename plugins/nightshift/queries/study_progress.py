"""How far the study of a run is, while it runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from nightshift.run_refs import planned_study, settled_spec
from nightshift.settings import Settings
from training.errors import NightshiftError
from training.spec.rules.names import TUNE_SUFFIX
from training.store import Store
from training.tuning.records import StudyStore
from training.tuning.settings import num_trials

logger = logging.getLogger(__name__)

TRIALS: Final = "trials"
"""The task of the workers: see `operators.study`."""
PATIENCE: Final = timedelta(seconds=5)
"""With a store that does not answer: a client waits for the run."""


def study_progress(dag_id: str, run_id: str, states: Iterable[str | None]) -> str | None:
    """Return how many trials are finished while one of the workers, whose states in Airflow are given, works; else None.

    None also where the store does not answer: a run is shown without it.
    """
    if not {"running", "deferred"} & set(states):
        return None
    try:
        store = Store(Settings.from_environment().store_uri, retry_timeout=PATIENCE)
        return trials_done(store, dag_id.removesuffix(TUNE_SUFFIX), dag_id, run_id)
    except NightshiftError as err:
        logger.warning("the trials of %s:%s are not counted: %s", dag_id, run_id, err)
        return None


def trials_done(store: Store, pipeline: str, dag_id: str, run_id: str) -> str | None:
    """Return `3 of 8 trials`; None while the study is not planned."""
    spec, planned = settled_spec(store, dag_id, run_id), planned_study(store, dag_id, run_id)
    if planned is None or spec is None or spec.tune is None:
        return None
    total, done = num_trials(spec.tune), StudyStore(store, pipeline, planned).slots()
    return f"{sum(slot < total for slot in done)} of {total} trials"
