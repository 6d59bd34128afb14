"""Metrics from the journals of trainings to MLflow, beside the work: by the training, a later attempt or stage, or housekeeping.

If the deliverer is killed, the next one sends points again: MLflow's table of metrics has run, name, step, time and value as its primary
key, and its server keeps one of two equal points. The token of a run is looked up before the run is made, so that a run whose maker was
killed is found; of two made at the same time one is deleted.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from training.contracts import JsonObject
from training.engine.tracking.mlflow_journal import ID_TAG, RunDescription, RunJournal, pending_journals
from training.errors import NightshiftError, first_line, shown
from training.store import Bucket
from training.store.metric_journal import JournalPoint

logger = logging.getLogger(__name__)

KIND_TAG: Final = "mlflow.experimentKind"
KIND: Final = "custom_model_development"
"""MLflow's name for experiments that train models."""
MAX_PARAMS: Final = 100
MAX_PARAM_CHARS: Final = 500
FAILING_SECONDS: Final = 60.0
"""Time that deliveries that fail may take together."""
QUICK: Final = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Beside the work an unreachable server may take its time, but not the default's four minutes."""


class DeletedExperimentError(LookupError):
    """A user deleted the experiment in MLflow: no run can be made in it. The message has the command that restores it."""


def open_run(client: Any, journal: RunJournal) -> str:
    """Return the id of the journal's MLflow run, which is made where there is none.

    Raises:
        LookupError: nothing says how to make it; `DeletedExperimentError`; what MLflow's client raises.
    """
    known = journal.run_id()
    if known is not None:
        return known
    description = journal.description()
    if description is None:
        raise LookupError(f"{journal.key} has no description of an MLflow run")
    experiment_id = _experiment(description.experiment)
    tags = {**description.tags, ID_TAG: description.token}
    if description.parent is not None:
        tags["mlflow.parentRunId"] = open_run(client, RunJournal(journal.bucket, description.parent))
    made = _made(client, experiment_id, description)
    if made:
        run_id = made[0]
    else:
        info = client.create_run(experiment_id, start_time=description.started_at_ms, run_name=description.name, tags=tags).info
        run_id = str(info.run_id)
    _log_parameters(client, run_id, description.parameters)
    settled = journal.settle(run_id)
    if settled != run_id:
        client.delete_run(run_id)
    return settled


def deliver(client: Any, journal: RunJournal, names: Sequence[str] | None = None, *, is_running: bool = False) -> int:
    """Send MLflow what it lacks; return the number of points.

    Args:
        names: of what is sent, of `RunJournal.backlogs`; None: all.
        is_running: the caller is a training that goes on: how attempts before it ended says nothing about it.

    Raises:
        LookupError: as `open_run`; what MLflow's client raises. What was not sent stays.
    """
    run_id, num_points = open_run(client, journal), 0
    found = [(name, journal.backlog(name)) for name in (journal.backlogs() if names is None else names)]
    # The newest end last, also for a later delivery where this one is killed between two deletions.
    found.sort(key=lambda each: 0 if each[1].end is None else each[1].end.ended_at_ms)
    for name, backlog in found:
        for batch in journal.batches(name, backlog.after):
            send(client, run_id, batch)
            num_points += len(batch)
    end = found[-1][1].end if found and not is_running else None
    if end is not None:
        _log_parameters(client, run_id, end.parameters)
        send(client, run_id, [JournalPoint(0, 0, name, value, 0, end.ended_at_ms) for name, value in end.metrics.items()])
        client.set_terminated(run_id, end.status, end.ended_at_ms)
        if names is None:
            _delete_twins(client, journal, run_id)
    for name, _ in found:
        journal.forget(name)
    return num_points


def send(client: Any, run_id: str, points: Sequence[JournalPoint]) -> None:
    """Send at most `MAX_BATCH` points. A point that MLflow refuses, for its name, is left out; the others are sent."""
    from mlflow.entities import Metric

    if not points:
        return
    try:
        client.log_batch(run_id, metrics=[Metric(point.name, float(point.value), point.logged_at_ms, point.step) for point in points])
    except Exception as err:
        if getattr(err, "error_code", "") != "INVALID_PARAMETER_VALUE" or _is_deleted(client, run_id):
            raise
        if len(points) == 1:
            logger.warning("MLflow refuses the metric %r of step %d, which is dropped: %s", points[0].name, points[0].step, first_line(err))
            return
        middle = len(points) // 2
        send(client, run_id, points[:middle])
        send(client, run_id, points[middle:])


def delivered_run(bucket: Bucket, parameters: JsonObject) -> str | None:
    """Return the id of the MLflow run of the training that a request's parameters name; what waits for it is delivered first.

    Args:
        parameters: `training_uri`, the training's work folder, and `mlflow_run_id`, which the training knew; neither: there is no training.
    """
    known, training_uri = (None if (value := parameters.get(key)) is None else str(value) for key in ("mlflow_run_id", "training_uri"))
    return known if training_uri is None else deliver_if_reachable(RunJournal(bucket, bucket.key(training_uri))) or known


def tracked_run(bucket: Bucket, parameters: JsonObject) -> str | None:
    """Return the run as `delivered_run`; None where MLflow answers that it has no such run, or that a user deleted it."""
    run_id = delivered_run(bucket, parameters)
    if run_id is None:
        return None
    import mlflow

    with quick_requests():
        if not _is_deleted(mlflow.MlflowClient(), run_id):
            return run_id
    logger.warning("MLflow does not have the run %s of this training any more", run_id)
    return None


def deliver_all(bucket: Bucket, *, clock: Callable[[], float] = time.monotonic) -> None:
    """Send MLflow what it lacks of all runs; what cannot be sent stays, with a warning.

    A training that is under way sends its points itself.
    A server that takes requests and does not answer them costs 40 s for each journal: after `FAILING_SECONDS` of that the others wait, too.
    """
    journals = [journal for journal in pending_journals(bucket) if not journal.is_under_way()]
    failing_seconds = 0.0
    for number, journal in enumerate(journals, 1):
        began = clock()
        deliver_if_reachable(journal)
        if journal.backlogs():
            failing_seconds += clock() - began
        if failing_seconds > FAILING_SECONDS and number < len(journals):
            logger.warning("MLflow does not answer: metrics of %d more trainings wait for the next delivery", len(journals) - number)
            return


def deliver_if_reachable(journal: RunJournal) -> str | None:
    """Send MLflow what a journal keeps; return its run's id, None while there is none. Never fails a stage."""
    try:
        run_id = journal.run_id()
        if run_id is not None and not journal.backlogs():
            return run_id
        if run_id is None and journal.description() is None:
            _drop(journal, "nothing says which run they are of")
            return None
        with quick_requests():
            _deliver_or_drop(journal)
    except Exception as err:
        logger.warning("metrics of %s still wait for MLflow: %s", journal.key, first_line(err))
    with suppress(NightshiftError):
        return journal.run_id()
    return None


def _deliver_or_drop(journal: RunJournal) -> None:
    import mlflow

    client = mlflow.MlflowClient()
    try:
        num_points = deliver(client, journal)
        logger.info("MLflow now has %d points of %s that waited for it", num_points, journal.key)
    except DeletedExperimentError as err:
        _drop(journal, str(err))
    except Exception:
        if not _is_deleted(client, journal.run_id()):
            raise
        _drop(journal, "a user deleted their run from MLflow")


@contextmanager
def quick_requests() -> Iterator[None]:
    """Make MLflow's client give up soon in the block, unless the installation sets its time-outs."""
    added = {name: value for name, value in QUICK.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _experiment(name: str) -> str:
    import mlflow

    try:
        experiment = mlflow.set_experiment(name)
    except Exception as err:
        # What MLflow raises for a deleted one: an unreachable server is not asked a second time.
        if getattr(err, "error_code", "") != "INVALID_PARAMETER_VALUE":
            raise
        found = mlflow.MlflowClient().get_experiment_by_name(name)
        if found is None or found.lifecycle_stage != "deleted":
            raise
        remedy = f"mlflow experiments restore --experiment-id {found.experiment_id}"
        message = f"a user deleted their experiment {shown(name)} from MLflow; so that later trainings are tracked: {remedy}"
        raise DeletedExperimentError(message) from err
    if KIND_TAG not in experiment.tags:
        try:
            mlflow.MlflowClient().set_experiment_tag(experiment.experiment_id, KIND_TAG, KIND)
        except Exception as err:
            # Of two that add the same tag at the same moment the database refuses one.
            if getattr(err, "error_code", "") != "BAD_REQUEST":
                raise
    return str(experiment.experiment_id)


def _made(client: Any, experiment_id: str, description: RunDescription) -> list[str]:
    """Return the runs that carry the description's token, in an order that is the same for all readers."""
    found = client.search_runs([experiment_id], filter_string=f"tags.`{ID_TAG}` = '{description.token}'")
    return sorted(str(run.info.run_id) for run in found)


def _delete_twins(client: Any, journal: RunJournal, run_id: str) -> None:
    """Delete runs whose makers were killed before they could see that another one's stands."""
    description = journal.description()
    if description is None:
        return
    for twin in _made(client, _experiment(description.experiment), description):
        if twin != run_id:
            client.delete_run(twin)


def _log_parameters(client: Any, run_id: str, parameters: Mapping[str, str]) -> None:
    from mlflow.entities import Param

    values = [Param(name, value[:MAX_PARAM_CHARS]) for name, value in parameters.items()]
    for start in range(0, len(values), MAX_PARAMS):
        client.log_batch(run_id, params=values[start : start + MAX_PARAMS])


def _is_deleted(client: Any, run_id: str | None) -> bool:
    """Return whether MLflow answers that it has no such run, or that a user deleted it."""
    if run_id is None:
        return False
    try:
        return str(client.get_run(run_id).info.lifecycle_stage) == "deleted"
    except Exception as err:
        return getattr(err, "error_code", "") == "RESOURCE_DOES_NOT_EXIST"


def _drop(journal: RunJournal, why: str) -> None:
    names = journal.backlogs()
    for name in names:
        journal.forget(name)
    if names:
        logger.warning("metrics of %s are dropped: %s", journal.key, why)
