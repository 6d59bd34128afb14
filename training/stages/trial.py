"""Trial: one training of a study, judged on the validation rows, ended early where it is not worth going on.

python -m training.stages.trial REQUEST_URI
torchrun --nproc-per-node=2 --max-restarts=0 -m training.stages.trial REQUEST_URI

A trial that is killed keeps its settings and its checkpoints, and resumes; its slot has one record, so it is never counted twice.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import asdict
from typing import Any

from training.code.carried import check_own_class
from training.contracts import StageRequest, canonical_json, instant_text
from training.engine.tracking.tracker import Parent, Tracker
from training.errors import DivergedError, NightshiftError
from training.format import local_moment
from training.models.base import FitResult
from training.runtime.runner import StageContext, StageOutput, main
from training.stages.train import fetch_dataset, fit_dataset, join_gang, layout_of, parameters_of, tags_of, tuned
from training.store import Manifest, Store
from training.tuning.objective import objective_value
from training.tuning.records import StudyStore, TrialRecord
from training.tuning.settings import Settings
from training.tuning.storage import open_storage
from training.tuning.study import PruningCallback, Search, most_epochs

logger = logging.getLogger(__name__)

NOT_FIRST = StageOutput(artifact_uri="", digest="")


def work(context: StageContext) -> StageOutput:
    """Do trial `parameters["slot"]` of study `parameters["study"]` on `inputs["dataset"]`.

    Raises:
        UnavailableError: `tuning.storage`, `database.unavailable`: the study's storage is away, and nothing is begun.
        SpecError: `tuning.database`, pods need PostgreSQL; `model.not_isolated`.
        PreemptedError: stopped by a signal; the next attempt resumes from the last checkpoint.
    """
    check_own_class(context.spec.train.model)
    gang = join_gang(context.spec.train, context.request.parameters.get("device"), num_processes=context.world_size)
    dataset = fetch_dataset(context, gang)
    trial = _Trial(context) if gang.is_first else None
    # One rank gets the settings from the study, all train with them.
    settings = json.loads(gang.text_from_first(json.dumps(trial.settings if trial is not None else None)))
    if settings is None:
        return trial.output() if trial is not None else NOT_FIRST
    spec = tuned(context.spec, settings)
    layout = layout_of(spec, gang, context.folder, dataset)
    tags, parent = tags_of(context.request, dataset, gang), _parent(context.store, context.request, spec.timezone)
    tracker = Tracker(context, tags=tags, parameters=parameters_of(spec), parent=parent)
    try:
        result = fit_dataset(context, spec, dataset, gang, tracker, layout=layout, judge=None if trial is None else trial.judge)
    except DivergedError as err:
        # All ranks see it at the same step: the gradients that they share are not finite.
        return NOT_FIRST if trial is None else trial.failed(err)
    return NOT_FIRST if trial is None else trial.finished(result, dataset)


class _Trial:
    """What rank 0 does about the study. `settings` is None where the trial is finished already."""

    def __init__(self, context: StageContext) -> None:
        request = context.request
        if context.spec.tune is None:
            raise ValueError("the spec has no tune")
        self._context = context
        self._tune = context.spec.tune
        self._slot = int(request.parameters["slot"])
        self._study = StudyStore(context.store, request.pipeline, request.parameters["study"])
        self._record = self._study.find(self._slot)
        self.settings: Settings | None = None
        self.judge: PruningCallback | None = None
        if self._record is not None:
            # Killed between its record and its result.
            return
        train = context.spec.train
        storage = open_storage(request.parameters["study"], shared=bool(request.parameters.get("shared")))
        self._search = Search(self._tune, train, name=request.parameters["study"], slot=self._slot, storage=storage)
        restored = self._search.restore(self._study.records())
        if restored:
            logger.info("%d finished trials were not known to the study's storage, and are again", restored)
        self._trial, self.settings = self._search.begin(self._search.given(train, self._champion_settings()))
        self.judge = PruningCallback(self._trial, most_epochs(self._tune, train))
        logger.info("trial %d: %s", self._slot, self.settings)

    def finished(self, result: FitResult, dataset: Manifest) -> StageOutput:
        """Record the trial as complete, or as pruned where the judge ended it."""
        is_pruned = self.judge is not None and self.judge.is_pruned
        value = None if is_pruned else objective_value(self._context.spec, self._context.folder, dataset, result, self._tune.objective)
        if value is not None and not math.isfinite(value):
            return self._end("failed", None, result, reason=f"{self._tune.objective} is {value}")
        return self._end("pruned" if is_pruned else "complete", value, result)

    def failed(self, error: NightshiftError) -> StageOutput:
        """Record settings with which no model can be trained: a finding, and no fault of the study."""
        return self._end("failed", None, None, reason=str(error))

    def output(self) -> StageOutput:
        """Return the result of a trial that is recorded."""
        if self._record is None:
            raise ValueError("the trial has no record")
        record = self._record
        meta = {"study": self._context.request.parameters["study"], "slot": record.slot, "state": record.state, "value": record.value}
        scalars = {"slot": record.slot, "state": record.state, "value": record.value, "epochs": record.epochs, "steps": record.steps}
        return self._context.store_artifact("trial", {"trial.json": canonical_json(asdict(record))}, meta, scalars)

    def _champion_settings(self) -> Settings | None:
        """Return the section `train` that the champion was made with, None where there is no champion, or it is of another family."""
        context = self._context
        uri = context.request.parameters.get("champion")
        if uri is None:
            return None
        settings: Settings | None = context.store.manifests.get(uri, kind="model").meta.get("settings")
        return settings if settings is not None and settings.get("model") == context.spec.train.model else None

    def _end(self, state: Any, value: float | None, result: FitResult | None, *, reason: str = "") -> StageOutput:
        losses = () if self.judge is None else tuple(self.judge.losses)
        record = TrialRecord(
            slot=self._slot,
            state=state,
            value=value,
            settings=self.settings or {},
            epochs=len(result.history) if result is not None else (losses[-1][0] if losses else 0),
            steps=0 if result is None else result.num_steps,
            losses=losses,
            reason=reason[:500],
        )
        self._context.check_code()
        if self._context.lease is not None:
            # Refused where a newer attempt has the slot: what that one measures is what counts.
            self._context.lease.commit("trial", {"slot": self._slot, "state": state})
        self._record = self._study.add(record)
        self._search.finish(self._trial, self._record)
        logger.info("trial %d is %s after %d epochs: %s %s", self._slot, state, record.epochs, self._tune.objective, value)
        return self.output()


def _parent(store: Store, request: StageRequest, timezone: str) -> Parent:
    study = str(request.parameters["study"])
    return Parent(
        key=StudyStore(store, request.pipeline, study).tracking_key,
        name=f"study {local_moment(request.as_of, timezone)}",
        child_name=f"trial {request.parameters['slot']}",
        tags={"nightshift.pipeline": request.pipeline, "nightshift.study": study, "nightshift.as_of": instant_text(request.as_of)},
    )


if __name__ == "__main__":
    main(work, polls_stop=True)
