"""What a stage's work is: its inputs, its parameters, and so its fingerprint. Computed before anything starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from nightshift.execution.backend import backend_of
from nightshift.resolved_run import ResolvedRun
from nightshift.settings import Settings
from nightshift.work import Work
from training.code.closure import Code
from training.code.stages import stage_code
from training.contracts import JsonObject, JsonValue, StageResult, canonical_json, fingerprint, sha256_hex
from training.errors import DataError, DeniedError
from training.evaluation.record import Rival
from training.runtime.provenance import given_code_version
from training.sources.listing import listing_for, previous_snapshot, profile_ref_name
from training.spec import PipelineSpec, spec_part
from training.spec.fingerprints import import_part
from training.stage_table import TABLE
from training.store import Store
from training.store.addresses import StoreUri

if TYPE_CHECKING:
    from training.registry.ledger.gate_outcomes import ApprovedFinding
    from training.registry.ledger.ledger import AliasHolder


def needs_of(stage: str, spec: PipelineSpec) -> dict[str, str]:
    """Return a stage's inputs in a pipeline: name to the stage that makes it. A training after a study needs its settings."""
    return {name: maker for name, maker in TABLE[stage].inputs.items() if maker in spec.stages}


def work_of(stage: str, resolved: ResolvedRun, results: Mapping[str, StageResult], *, nonce: str, settings: Settings) -> Work:
    """Return the work of `stage`.

    Args:
        results: by input name, as `needs_of` lists them.
        nonce: that a forced run has settled, else empty.

    Raises:
        NightshiftError: sources, ledger or store do not answer.
    """
    spec = resolved.spec
    parameters, covered = _looked_up(stage, resolved, results, settings)
    inputs = {name: result.artifact_uri for name, result in results.items()}
    if stage == "promote":
        name = fingerprint(stage, spec_part={}, code_version="", inputs=covered, nonce=nonce)
        return Work(fingerprint=name, inputs=inputs, parameters=parameters)
    if stage == "evaluate":
        return _evaluation(spec, resolved.store, results, parameters, settings=settings, nonce=nonce)
    code = code_of(spec, stage, settings, families=families_of(resolved.store, parameters))
    # Nothing of the spec is in a model from outside but what its family is made with.
    part = import_part(spec) if stage == "train" and resolved.artifact is not None else spec_part(spec, stage)
    key = fingerprint(stage, spec_part=part, code_version=code.version, inputs=covered, nonce=nonce)
    return Work(fingerprint=key, inputs=inputs, parameters=parameters, code_version=code.version, code_files=code.files)


def _looked_up(
    stage: str, resolved: ResolvedRun, results: Mapping[str, StageResult], settings: Settings
) -> tuple[dict[str, object], dict[str, object]]:
    """Return (the request's parameters, what the fingerprint covers besides spec and code)."""
    spec = resolved.spec
    if stage == "ingest" and resolved.snapshot is not None:
        chosen = resolved.snapshot
        return {"snapshot": chosen.uri}, {"as_of": resolved.as_of.isoformat(), "snapshot": chosen.digest}
    if stage == "ingest":
        listing = listing_for(spec, resolved.as_of)
        return {"listing": listing}, {"as_of": resolved.as_of.isoformat(), "listing": listing}
    if stage == "validate":
        return _validation(resolved, results["snapshot"], settings)
    if stage == "prepare":
        return {}, {"snapshot": results["snapshot"].digest}
    if stage == "train":
        return _training(resolved, results, settings)
    if stage == "tune":
        raise ValueError("the work of `tune` is nightshift.operators.study's")
    if stage == "evaluate":
        return _tracking_of(resolved.store, results["model"]), {}
    if stage == "canary":
        rivals, since = rivals_of(spec, settings), canary_since(spec, settings)
        verdict = {"canary_since": since, "canary_approved": canary_approved(spec, settings)}
        return {**rivals, **verdict}, {"dataset": results["dataset"].digest, "seats": rivals}
    if stage == "promote":
        return _promotion(resolved, results, settings)
    return {}, {name: result.digest for name, result in results.items()}


def _training(resolved: ResolvedRun, results: Mapping[str, StageResult], settings: Settings) -> tuple[dict[str, object], dict[str, object]]:
    snapshot, dataset, given = results["snapshot"].digest, results["dataset"].digest, resolved.artifact
    if given is not None:
        return {"world_size": 1, "snapshot_digest": snapshot, "artifact": given.uri}, {"dataset": dataset, "artifact": given.digest}
    world_size = resolved.spec.train.placement.world_size
    device = backend_of(settings).device_of(resolved.spec)
    tuning = {"tuning": results["tuning"].digest} if "tuning" in results else {}
    parameters = {"world_size": world_size, "snapshot_digest": snapshot, **device}
    return parameters, {"dataset": dataset, "world_size": world_size, **tuning, **device}


def _validation(resolved: ResolvedRun, snapshot: StageResult, settings: Settings) -> tuple[dict[str, object], dict[str, object]]:
    spec = resolved.spec
    _refuse_deprecated(spec, snapshot, settings)
    deprecated = _deprecated(spec, settings)
    previous = previous_snapshot(resolved.store, spec.name, resolved.as_of, deprecated=deprecated)
    covered: dict[str, object] = {"snapshot": snapshot.digest, "previous": previous, "suites": suites_digest(spec, settings)}
    parameters: dict[str, object] = {"previous_snapshot": previous, "suites": stored_suites(spec, settings, resolved.store)}
    # Without a profile to compare with, what is done stays done.
    if earlier := _earlier_profiles(resolved, previous, deprecated, settings):
        parameters["earlier"] = covered["earlier"] = earlier
    return parameters, covered


def _earlier_profiles(resolved: ResolvedRun, previous: str | None, deprecated: tuple[str, ...], settings: Settings) -> list[JsonObject]:
    """Return what `validate.drift` compares with: `names`, what a snapshot is, and `profile`, the URI of its columns' profiles."""
    from training.registry.ledger.champion_data import champions_snapshot  # SQLAlchemy: a DAG file needs none of it
    from training.registry.ledger.ledger import Ledger

    spec = resolved.spec
    names: dict[str, list[JsonValue]] = {}
    for name in spec.validate_.drift.against:
        if name == "previous":
            digest = None if previous is None else StoreUri(previous).digest
        else:
            digest = champions_snapshot(Ledger(settings.database_url), spec.promote.model, resolved.as_of)
        if digest is not None and not digest.startswith(deprecated):
            names.setdefault(digest, []).append(name)
    found: list[JsonObject] = []
    for digest, of in names.items():
        head = resolved.store.ref(profile_ref_name(spec.name, digest)).read()
        if head is not None:
            found.append({"names": of, "profile": str(head.value)})
    return found


def _deprecated(spec: PipelineSpec, settings: Settings) -> tuple[str, ...]:
    """Return the versions of the pipeline's snapshots that are no reference for others."""
    from training.database import connect  # SQLAlchemy: a DAG file needs none of it
    from training.database.datasets import deprecated_versions

    return deprecated_versions(connect(settings.database_url), spec.name)


def _refuse_deprecated(spec: PipelineSpec, snapshot: StageResult, settings: Settings) -> None:
    """Refuse a deprecated snapshot, also one that an earlier run made: its ingest is not repeated, and could not say so."""
    from training.database import connect  # SQLAlchemy: a DAG file needs none of it
    from training.database.datasets import check_not_deprecated

    check_not_deprecated(connect(settings.database_url), spec.name, snapshot.digest)


def _promotion(
    resolved: ResolvedRun, results: Mapping[str, StageResult], settings: Settings
) -> tuple[dict[str, object], dict[str, object]]:
    spec = resolved.spec
    weights = results["model"].scalars["weights_digest"]
    key: dict[str, object] = {"model": spec.promote.model, "weights": weights, "evaluation": results["evaluation"].digest}
    report_uri = results["evaluation"].reports.get("evaluation")
    prepare_code = code_of(spec, "prepare", settings).version
    trained = results["model"]
    process_hours = trained.timings.get("total", 0.0) / 3600 * spec.train.placement.world_size
    parameters = {
        **_tracking_of(resolved.store, trained),
        "report_uri": report_uri,
        "prepare_code": prepare_code,
        "process_hours": process_hours,
    }
    if resolved.overrides:
        parameters["overrides"] = dict(resolved.overrides)
        # Other thresholds are another decision, also about the same model and the same evaluation.
        key |= {name: value for name, value in resolved.overrides.items() if name.startswith("evaluate.")}
    return parameters, key


def _tracking_of(store: Store, trained: StageResult) -> dict[str, object]:
    """Return where a stage finds the MLflow run of a training: its result cannot name a run that was made after it was committed."""
    address = store.address(trained.pipeline, trained.stage, trained.fingerprint)
    return {"mlflow_run_id": trained.scalars.get("mlflow_run_id"), "training_uri": address.uri}


def _evaluation(
    spec: PipelineSpec,
    store: Store,
    results: Mapping[str, StageResult],
    parameters: dict[str, object],
    *,
    settings: Settings,
    nonce: str,
) -> Work:
    """An evaluation's address contains the champion. Once the candidate itself is champion, the work is the one that made it so."""
    part = spec_part(spec, "evaluate")
    weights, dataset = results["model"].scalars["weights_digest"], results["dataset"].digest
    covered = {"weights": weights, "dataset": dataset}
    if not ("validation" in results and results["validation"].scalars.get("to_approve")):
        # Nothing of it is in the evaluation, and what is done stays done.
        results = {name: result for name, result in results.items() if name != "validation"}
    else:
        covered["validation"] = results["validation"].digest
    # By the candidate alone: which champion it was measured against is what is looked up here.
    own = code_of(spec, "evaluate", settings)
    ref = store.ref(f"evaluations/{fingerprint('evaluate', spec_part=part, code_version=own.version, inputs=covered)}")
    rivals = rivals_of(spec, settings)
    head = ref.read()
    if head is not None and weights in {rival["weights_digest"] for rival in rivals.values() if rival is not None}:
        rivals = {name: head.value.get(name) for name in rivals}
    elif head is None or {name: head.value.get(name) for name in rivals} != rivals:
        ref.move(rivals, expected=head.number if head else 0)
    against = {
        name: None if rival is None else {"weights": rival["weights_digest"], "revision": rival["revision"]}
        for name, rival in rivals.items()
    }
    parameters = {**parameters, **rivals}
    others = families_of(store, parameters) - {spec.train.model}
    code = code_of(spec, "evaluate", settings, families=others) if others else own
    key = fingerprint("evaluate", spec_part=part, code_version=code.version, inputs={**covered, **against}, nonce=nonce)
    inputs = {name: result.artifact_uri for name, result in results.items()}
    return Work(fingerprint=key, inputs=inputs, parameters=parameters, code_version=code.version, code_files=code.files)


def rivals_of(spec: PipelineSpec, settings: Settings) -> dict[str, JsonObject | None]:
    """Return the ledger's champion and canary of the pipeline's model as the evaluate stage's parameters; None where there is none."""
    from training.registry.ledger.ledger import Ledger  # SQLAlchemy: a DAG file needs none of it

    standing = Ledger(settings.database_url).standing(spec.promote.model)
    return {"champion": _rival(standing.champion, standing.revision), "canary": _rival(standing.canary, standing.revision)}


def canary_since(spec: PipelineSpec, settings: Settings) -> str | None:
    """Return when the canary of the pipeline's model became one, ISO 8601; None where there is none."""
    from training.registry.ledger.ledger import Ledger

    canary = Ledger(settings.database_url).standing(spec.promote.model).canary
    return None if canary is None else canary.since


def canary_approved(spec: PipelineSpec, settings: Settings) -> list[ApprovedFinding]:
    """Return what a person approved about the canary of the pipeline's model, as `approved_findings`."""
    from training.registry.ledger.decisions import approved_findings
    from training.registry.ledger.ledger import Ledger

    ledger = Ledger(settings.database_url)
    return approved_findings(ledger, ledger.standing(spec.promote.model))


def _rival(holder: AliasHolder | None, revision: int) -> JsonObject | None:
    if holder is None:
        return None
    return Rival.model_validate({**asdict(holder), "revision": revision}).to_json()


def code_of(spec: PipelineSpec, stage: str, settings: Settings, *, families: Iterable[str] = ()) -> Code:
    """Return what stands for the code of a stage: its image's digest where that is pinned, else the files that it imports and reads.

    Args:
        families: of champion and canary, where the stage loads them.

    Raises:
        SpecError: `code.missing`, `code.syntax`.
    """
    pinned = backend_of(settings).code_version(spec, stage) or given_code_version()
    return Code(version=pinned) if pinned else stage_code(stage, spec, families=families, cache=settings.home / "cache" / "imports.json")


def families_of(store: Store, parameters: Mapping[str, object]) -> set[str]:
    """Return the families of champion and canary, as their models say; one that cannot be read is the stage's to report."""
    found = set()
    for rival in (parameters.get(name) for name in ("champion", "canary")):
        if isinstance(rival, Mapping):
            with contextlib.suppress(DataError, DeniedError):
                found.add(str(store.manifests.get(rival["model_uri"], kind="model").meta["family"]))
    return found


def stored_suites(spec: PipelineSpec, settings: Settings, store: Store) -> dict[str, str]:
    """Store the pipeline's expectation suites; return name to URI, so that the stage uses exactly these files, on every backend."""
    found = {}
    for name in suite_names(spec):
        path = settings.expectations_path / f"{name}.json"
        if path.is_file():
            found[name] = store.objects.uri(store.objects.put_bytes(path.read_bytes()))
    return found


def suite_names(spec: PipelineSpec) -> list[str]:
    return [name for name in (spec.validate_.suite, *(table.suite for table in spec.data.features)) if name]


def suites_digest(spec: PipelineSpec, settings: Settings) -> str:
    """Return a SHA-256 over the pipeline's expectation suites; a missing one counts as absent, and the stage will say so."""
    found = {}
    for name in suite_names(spec):
        path = settings.expectations_path / f"{name}.json"
        found[name] = sha256_hex(path.read_bytes()) if path.is_file() else "absent"
    return sha256_hex(canonical_json(found))
