"""Tune: the end of a study: its best settings, which of them mattered, how the search went; on one page.

python -m training.stages.tune REQUEST_URI
"""

from __future__ import annotations

import logging
from dataclasses import asdict

from training.contracts import Scalar, canonical_json
from training.engine.tracking.tracker import finish_parent
from training.errors import DataError
from training.format import figure, local_moment
from training.pages.study import render_study
from training.process import liveness
from training.runtime.runner import StageContext, StageOutput, main
from training.spec.sections.tuning import Tune
from training.tuning.records import StudyStore, TrialRecord, best_of, objective_value
from training.tuning.study import importance_of

logger = logging.getLogger(__name__)


def work(context: StageContext) -> StageOutput:
    """Sum up study `parameters["study"]`.

    Raises:
        DataError: `tune.no_trial`, not one of its trials came to an end with a value.
    """
    request, store, tune = context.request, context.store, context.spec.tune
    if tune is None:
        raise ValueError("the spec has no tune")
    study = StudyStore(store, request.pipeline, request.parameters["study"])
    records = [record for record in study.records() if record.slot < tune.trials]
    best = best_of(records)
    if best is None or best.value is None:
        reasons = sorted({record.reason for record in records if record.reason})[:3]
        message = f"none of {len(records)} trials has a value: {'; '.join(reasons) or 'none was begun'}"
        raise DataError("tune.no_trial", message, hint="look at the trials' logs, and at tune.space")
    importance = importance_of(tune, records)
    value = objective_value(tune.objective, best.value)
    counts = {state: sum(record.state == state for record in records) for state in ("complete", "pruned", "failed")}
    page = render_study(
        tune, records, best, importance, pipeline=request.pipeline, as_of=local_moment(request.as_of, context.spec.timezone)
    )
    num_steps = sum(record.steps for record in records)
    meta = {
        "study": request.parameters["study"],
        "slot": best.slot,
        "settings": dict(best.settings),
        "objective": tune.objective,
        "value": value,
        "trials": counts,
        "steps": num_steps,
        "importance": importance,
    }
    files = {"trials.json": canonical_json([asdict(record) for record in records])}
    with liveness.phase("mlflow", "study"):
        finish_parent(store.bucket, study.tracking_key, _parameters(tune, best), {"best_value": value, "trials": float(len(records))})
    logger.info(
        "best of %d trials (%s) is %d: %s %s with %s", len(records), counts, best.slot, tune.objective, figure(value), best.settings
    )
    scalars: dict[str, Scalar] = {
        **{"best_slot": best.slot, "best_value": value, "trials": len(records), **counts, "steps": num_steps},
        "headline": f"best of {len(records)} trials: {best.slot}, {tune.objective} {figure(value)}, with {_settings(best)}",
    }
    return context.store_artifact("tuning", files, meta, scalars, ref="tuning", pages={"tuning": page})


def _settings(best: TrialRecord) -> str:
    return ", ".join(f"{name} {figure(value) if isinstance(value, float) else value}" for name, value in best.settings.items())


def _parameters(tune: Tune, best: TrialRecord) -> dict[str, str]:
    return {"sampler": tune.sampler, "pruner": tune.pruner, "objective": tune.objective} | {
        f"best.{name}": str(value) for name, value in best.settings.items()
    }


if __name__ == "__main__":
    main(work)
