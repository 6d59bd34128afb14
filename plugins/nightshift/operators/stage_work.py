"""What a stage's work is: its inputs, its parameters, and so its id. Looked up before anything starts, and without a write to the store.

A stage whose work depends on its inputs, its sections of the spec and its code alone needs no line here: its row in
`training.stage_table` says it all. What else is to be looked up for a stage is a function of `_LOOK_UPS`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nightshift.execution.backend import backend_of
from nightshift.execution.code_version import code_of, families_of
from nightshift.operators.study_work import StudyWork
from nightshift.resolved_run import ResolvedRun
from nightshift.settings import Settings
from nightshift.work import RefPin, Work
from training.code.closure import Code
from training.contracts import JsonObject, JsonValue, StageResult, canonical_json, instant_text, sha256_hex, work_id
from training.evaluation.record import Rival
from training.sources.listing import listing_for, previous_snapshot, profile_ref_name
from training.spec import PipelineSpec, spec_part
from training.spec.covered_keys import import_part
from training.stage_table import TABLE
from training.store import Store
from training.store.work_folder import StoreUri

if TYPE_CHECKING:
    from training.registry.ledger.ledger import AliasHolder

logger = logging.getLogger(__name__)


def needs_of(stage: str, spec: PipelineSpec) -> dict[str, str]:
    """Return a stage's inputs in a pipeline: name to the stage that makes it. A training after a study needs its settings."""
    replaced = {TABLE[other].in_place_of: other for other in spec.stages if other != stage}
    return {name: replaced.get(maker, maker) for name, maker in TABLE[stage].inputs.items() if maker in spec.stages}


def work_of(stage: str, resolved: ResolvedRun, results: Mapping[str, StageResult], *, settings: Settings) -> Work:
    """Return the work of `stage`. The store is read and not written: `Work.pin` writes what has to be there before the work starts.

    Args:
        results: by input name, as `needs_of` lists them.

    Raises:
        NightshiftError: sources, ledger or store do not answer.
    """
    return _LOOK_UPS.get(stage, _inputs_alone)(StageOfRun(stage, resolved, results, settings))


@dataclass(frozen=True, slots=True)
class StageOfRun:
    """A stage of one run: what its work is looked up from."""

    stage: str
    resolved: ResolvedRun
    results: Mapping[str, StageResult]
    settings: Settings

    @property
    def spec(self) -> PipelineSpec:
        return self.resolved.spec

    @property
    def store(self) -> Store:
        return self.resolved.store

    @property
    def inputs(self) -> dict[str, str]:
        return {name: result.artifact_uri for name, result in self.results.items()}

    def digest(self, name: str) -> str:
        """Return the digest of an input."""
        return self.results[name].digest

    def code(self, families: Iterable[str] = ()) -> Code:
        return code_of(self.spec, self.stage, self.settings, families=families)

    def work(self, covered: Mapping[str, object], *, code: Code | None = None, part: JsonObject | None = None, **fields: Any) -> Work:
        """Return the work whose id covers `covered`, the stage's part of the spec and its code; arguments as those of `Work.of`."""
        return Work.of(
            self.resolved,
            self.stage,
            covered,
            part=part or spec_part(self.spec, self.stage),
            code=code or self.code(),
            nonce=self.resolved.force,
            **{"inputs": self.inputs, **fields},
        )


def _inputs_alone(run: StageOfRun) -> Work:
    return run.work({name: result.digest for name, result in run.results.items()})


def _ingest(run: StageOfRun) -> Work:
    as_of, chosen = run.resolved.as_of.isoformat(), run.resolved.snapshot
    if chosen is not None:
        return run.work({"as_of": as_of, "snapshot": chosen.digest}, parameters={"snapshot": chosen.uri})
    listing = listing_for(run.spec, run.resolved.as_of)
    return run.work({"as_of": as_of, "listing": listing}, parameters={"listing": listing})


def _validate(run: StageOfRun) -> Work:
    from training.database.datasets import check_not_deprecated, deprecated_versions

    spec, engine, snapshot = run.spec, run.settings.database(), run.digest("snapshot")
    # Also one that an earlier run made: its ingest is not repeated, and could not say so.
    check_not_deprecated(engine, spec.name, snapshot)
    deprecated = deprecated_versions(engine, spec.name)
    previous = previous_snapshot(run.store, spec.name, run.resolved.as_of, deprecated=deprecated)
    suites = _suites(spec, run.settings)
    stored = {name: run.store.objects.uri(sha256_hex(data)) for name, data in suites.items() if data is not None}
    covered: dict[str, object] = {"snapshot": snapshot, "previous": previous, "suites": _suites_digest(suites)}
    parameters: dict[str, object] = {"previous_snapshot": previous, "suites": stored, "ingest": dict(run.results["snapshot"].scalars)}
    if not run.resolved.is_reference:
        # Other work than that of a run that is: what is reused has all of its refs.
        parameters["is_reference"] = covered["is_reference"] = False
    # Without a profile to compare with, what is done stays done.
    if earlier := _earlier_profiles(run, previous, deprecated):
        parameters["earlier"] = covered["earlier"] = earlier
    return run.work(covered, parameters=parameters, file_pins=tuple(data for data in suites.values() if data is not None))


def _suites(spec: PipelineSpec, settings: Settings) -> dict[str, bytes | None]:
    """Return the pipeline's expectation suites, so that the stage uses exactly these files, on every backend; None: missing."""
    names = [name for name in (spec.validate_.suite, *(table.suite for table in spec.data.features)) if name]
    paths = {name: settings.expectations_path / f"{name}.json" for name in names}
    return {name: path.read_bytes() if path.is_file() else None for name, path in paths.items()}


def _suites_digest(suites: Mapping[str, bytes | None]) -> str:
    """Return a SHA-256 over expectation suites; a missing one counts as absent, and the stage will say so."""
    return sha256_hex(canonical_json({name: "absent" if data is None else sha256_hex(data) for name, data in suites.items()}))


def _earlier_profiles(run: StageOfRun, previous: str | None, deprecated: tuple[str, ...]) -> list[JsonObject]:
    """Return what `validate.drift` compares with: `names`, what a snapshot is, and `profile`, the URI of its columns' profiles."""
    from training.registry.ledger.decisions import champions_snapshot  # SQLAlchemy: a DAG file needs none of it

    spec = run.spec
    names: dict[str, list[JsonValue]] = {}
    for name in spec.validate_.drift.against:
        if name == "previous":
            digest = None if previous is None else StoreUri(previous).digest
        else:
            digest = champions_snapshot(run.settings.ledger(), spec.promote.model, run.resolved.as_of)
        if digest is not None and not digest.startswith(deprecated):
            names.setdefault(digest, []).append(name)
    found: list[JsonObject] = []
    for digest, of in names.items():
        head = run.store.ref(profile_ref_name(spec.name, digest)).read()
        if head is not None:
            found.append({"names": of, "profile": str(head.value)})
    return found


def _prepare(run: StageOfRun) -> Work:
    return run.work({"snapshot": run.digest("snapshot")})


def _tune(run: StageOfRun) -> Work:
    study = StudyWork.of(run.resolved, run.results["dataset"], run.settings).name
    return run.work({"study": study}, parameters={"study": study})


def _train(run: StageOfRun) -> Work:
    given, dataset = run.resolved.artifact, run.digest("dataset")
    parameters: dict[str, object] = {"snapshot_digest": run.digest("snapshot")}
    if given is not None:
        parameters |= {"world_size": 1, "artifact": given.uri}
        # Nothing of the spec is in a model from outside but what its family is made with.
        return run.work({"dataset": dataset, "artifact": given.digest}, parameters=parameters, part=import_part(run.spec))
    placed = _placed(run)
    return run.work({"dataset": dataset, **placed, **_tuning(run)}, parameters=parameters | placed)


def _refit(run: StageOfRun) -> Work:
    """Of the training it has the number of epochs alone: how long that took changes no weight."""
    placed, trained = _placed(run), run.results["model"]
    covered = {"dataset": run.digest("dataset"), "epochs": trained.scalars["best_epoch"], **placed, **_tuning(run)}
    seconds = trained.timings.get("total", 0.0)
    return run.work(covered, parameters={"snapshot_digest": run.digest("snapshot"), "trained_seconds": seconds, **placed})


def _placed(run: StageOfRun) -> dict[str, object]:
    return {"world_size": run.spec.train.placement.world_size, **backend_of(run.settings).device_of(run.spec)}


def _tuning(run: StageOfRun) -> dict[str, object]:
    return {"tuning": run.digest("tuning")} if "tuning" in run.results else {}


def _evaluate(run: StageOfRun) -> Work:
    """An evaluation's id covers the champion. Once the candidate itself is champion, the work is the one that made it so."""
    weights, inputs = run.results["model"].scalars["weights_digest"], run.inputs
    covered: dict[str, object] = {"weights": weights, "dataset": run.digest("dataset")}
    if "validation" in run.results and run.results["validation"].scalars.get("to_approve"):
        covered["validation"] = run.digest("validation")
    else:
        # Nothing of it is in the evaluation, and what is done stays done.
        inputs.pop("validation", None)
    part, code = spec_part(run.spec, run.stage), run.code()
    # By the candidate alone: which champion it was measured against is what is looked up here.
    candidate = work_id(run.stage, spec_part=part, code_version=code.version, inputs=covered)
    rivals, pins = _pinned_rivals(run, f"evaluations/{candidate}", weights)
    against = {
        name: None if rival is None else {"weights": rival["weights_digest"], "revision": rival["revision"]}
        for name, rival in rivals.items()
    }
    if others := families_of(run.store, rivals) - {run.spec.train.model}:
        code = run.code(others)
    parameters = {**_tracking_of(run.store, run.results["model"]), **rivals}
    return run.work(covered | against, code=code, inputs=inputs, parameters=parameters, ref_pins=pins)


def _pinned_rivals(run: StageOfRun, name: str, weights: object) -> tuple[dict[str, JsonObject | None], tuple[RefPin, ...]]:
    """Return champion and canary, and what the ref is to get: its own once the candidate is one of them, else the ledger's."""
    rivals = rivals_of(run.spec, run.settings)
    head = run.store.ref(name).read()
    known = None if head is None else {alias: head.value.get(alias) for alias in rivals}
    if known is not None and weights in {rival["weights_digest"] for rival in rivals.values() if rival is not None}:
        return known, ()
    return rivals, () if known == rivals else (RefPin(name=name, value=rivals, expected=head.number if head else 0),)


def _canary(run: StageOfRun) -> Work:
    from training.registry.ledger.decisions import approved_findings  # SQLAlchemy: a DAG file needs none of it

    ledger, rivals = run.settings.ledger(), rivals_of(run.spec, run.settings)
    aliases = ledger.standing(run.spec.promote.model)
    since = None if aliases.canary is None else aliases.canary.since
    if aliases.canary is not None and run.resolved.simulated:
        since = instant_text(aliases.canary.as_of)
    parameters = {**rivals, "canary_since": since, "canary_approved": approved_findings(ledger, aliases), **run.resolved.simulated}
    covered = {"dataset": run.digest("dataset"), "seats": rivals, **run.resolved.simulated}
    return run.work(covered, code=run.code(families_of(run.store, rivals)), parameters=parameters)


def _promote(run: StageOfRun) -> Work:
    """A decision's id covers no code: it is about a model and an evaluation, and is made once."""
    trained, evaluation, overrides = run.results["model"], run.results["evaluation"], dict(run.resolved.overrides)
    covered: dict[str, object] = {
        "model": run.spec.promote.model,
        "weights": trained.scalars["weights_digest"],
        "evaluation": evaluation.digest,
        # Other thresholds are another decision, also about the same model and the same evaluation.
        **{name: value for name, value in overrides.items() if name.startswith("evaluate.")},
    }
    hours = (trained.timings.get("total", 0.0) + float(trained.scalars.get("trained_seconds") or 0)) / 3600
    parameters = {
        **_tracking_of(run.store, trained),
        "report_uri": evaluation.reports.get("evaluation"),
        "prepare_code": code_of(run.spec, "prepare", run.settings).version,
        "process_hours": hours * run.spec.train.placement.world_size,
        **({"overrides": overrides} if overrides else {}),
    }
    work = Work.of(run.resolved, run.stage, covered, nonce=run.resolved.force, inputs=run.inputs, parameters=parameters)
    if (newest := _newest_of_other_ledger(run, work)) is None:
        return work
    return Work.of(run.resolved, run.stage, covered, nonce=newest, inputs=run.inputs, parameters=parameters)


def _newest_of_other_ledger(run: StageOfRun, work: Work) -> str | None:
    """Return the key of the ledger's newest decision where the store has a decision that the ledger has not, else None.

    The ledger is an earlier one, or another one, than the store's result says: it is decided there, too.
    """
    found = work.folder.committed()
    if found is None:
        return None
    said, ledger = found.scalars, run.settings.ledger()
    kept = ledger.decision(str(said.get("model")), str(said.get("key")))
    if kept is not None and (kept.outcome, kept.action) == (said.get("decision"), said.get("action")):
        return None
    logger.warning(
        "the store has the decision %s (%s) of %s, the ledger does not", said.get("decision"), said.get("action"), found.run.owner
    )
    return next((entry.key for entry in ledger.newest_first(run.spec.promote.model)), "no decision")


def _tracking_of(store: Store, trained: StageResult) -> dict[str, object]:
    """Return where a stage finds the MLflow run of a training: its result cannot name a run that was made after it was committed."""
    work_folder = store.work_folder(trained.pipeline, trained.stage, trained.work_id)
    return {"mlflow_run_id": trained.scalars.get("mlflow_run_id"), "training_uri": work_folder.uri}


def rivals_of(spec: PipelineSpec, settings: Settings) -> dict[str, JsonObject | None]:
    """Return the ledger's champion and canary of the pipeline's model as the evaluate stage's parameters; None where there is none."""
    aliases = settings.ledger().standing(spec.promote.model)
    return {"champion": _rival(aliases.champion, aliases.revision), "canary": _rival(aliases.canary, aliases.revision)}


def _rival(holder: AliasHolder | None, revision: int) -> JsonObject | None:
    if holder is None:
        return None
    return Rival.model_validate({**holder.to_json(), "revision": revision}).to_json()


_LOOK_UPS: Final[Mapping[str, Callable[[StageOfRun], Work]]] = {
    "ingest": _ingest,
    "validate": _validate,
    "prepare": _prepare,
    "tune": _tune,
    "train": _train,
    "refit": _refit,
    "evaluate": _evaluate,
    "promote": _promote,
    "canary": _canary,
}
"""Stages whose work depends on more than their inputs, or on less."""
