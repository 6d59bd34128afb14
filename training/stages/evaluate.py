"""Evaluate: candidate and champion score the same test rows, each through its own preprocessing.

python -m training.stages.evaluate REQUEST_URI
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from training.contracts import JsonObject, Scalar, json_number
from training.data.dataset.manifest import meta_of
from training.data.dataset.reader import DatasetReader
from training.data.dataset.scratch_arrays import ScratchArrays
from training.data.features.classes import Classes
from training.data.join.contract import LABEL
from training.data.snapshot.label_delay import META_KEY
from training.data.split.by_time import SPLITS
from training.data.split.kinds import division_words
from training.engine.tracking.mlflow_delivery import tracked_run
from training.evaluation import latency, leakage_checks
from training.evaluation.baselines import Splits, log_record, naive_record, named_entries
from training.evaluation.compared_models import Compared, compared, load_rival, rivals_in
from training.evaluation.measures import Measures
from training.evaluation.metrics.per_class import by_class
from training.evaluation.raw_rows import RawRows
from training.evaluation.record import (
    FILE,
    FORMAT_VERSION,
    META_KEYS,
    Baselines,
    Candidate,
    EvaluationRecord,
    Latency,
    ResultChecks,
    Rival,
    UnknownLabelCounts,
)
from training.evaluation.rows import LabelledRows
from training.format import local_moment, moment, number
from training.installation import TRACKING
from training.models.predictor import Predictor, load_predictor
from training.pages.evaluation import EvaluationPage, render_report
from training.pages.evaluation_view import mlflow_facts
from training.pages.plots import task_plots
from training.registry.gates.judging import decide
from training.runtime.lazy_imports import MLFLOW_DEFERRED, MLFLOW_MODELS_OPTIONAL, lean_imports
from training.runtime.runner import Outcome, StageContext, main
from training.spec.registration import registered_words
from training.store import Manifest, set_run_ref

if TYPE_CHECKING:
    import pandas as pd

    from training.registry.ledger.version_weights import MLflowRegistration

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]
LATENCY_ROWS: Final = 4_096


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Scores of the test rows; None where there is no such model, or it cannot be compared on them."""

    candidate: Floats
    champion: Floats | None
    canary: Floats | None


def work(context: StageContext) -> Outcome:
    """Evaluate `inputs["model"]` on the test rows of `inputs["dataset"]`, against `parameters["champion"]` and `["canary"]`.

    Raises:
        DataError: a model or the rows cannot be read: nothing is promoted on what was not measured; `metric.failed`.
        UnavailableError: `mlflow.unavailable`.
    """
    request, store = context.request, context.store
    dataset = store.manifests.get(request.inputs["dataset"], kind="dataset")
    model = store.manifests.get(request.inputs["model"], kind="model")
    rivals = rivals_in(request.parameters)
    with context.timed("fetch"):
        reader, data = _read(context, dataset)
        alike = compared(store, dataset, reader, data.test, rivals, as_of=request.as_of, folder=context.folder)
        data = replace(data, test=alike.test)
        raw = RawRows(reader, data.test)
        rows = LabelledRows.of(context.spec, raw, data.labels[data.test], dataset.meta["group"])
        first_rows = raw.at(np.arange(min(LATENCY_ROWS, len(raw)))).frame()
        measures = Measures(context.spec.evaluate, rows, seed=context.spec.train.seed)
        predictor = load_predictor(store.manifests.fetch(model, context.folder / "candidate"))
    with context.timed("tracking", kind="mlflow"):
        run_id = tracked_run(store.bucket, request.parameters)
    with context.timed("register", kind="mlflow"):
        registered = _register(context, model, predictor, first_rows, run_id)
    with context.timed("score"):
        others = {name: rival for name, rival in rivals.items() if rival is not None and alike.is_baseline(name)}
        scored = _score(context, dataset, raw, predictor, others)
    with context.timed("compare"):
        measured = _measured(measures, rows, scored)
    with context.timed("baselines"):
        baselines = naive_record(context.spec, data, scored.candidate, measured.metrics)
    with context.timed("checks"):
        result_checks = _checks(context, data, RawRows(reader, data.training), raw, predictor, measures, scored)
        importance = measures.importance(predictor.predict, lambda numbers: raw.at(numbers).frame(predictor.inputs), predictor.inputs)
    with context.timed("latency"):
        calls = _calls(context, first_rows, dataset)
    rest = EvaluationRecord(
        baselines=baselines,
        checks=result_checks,
        importance=importance,
        latency=calls,
        **_to_approve(context),
    )
    record = EvaluationRecord.of_parts(_facts(model, dataset, registered, rivals, alike), measured, rest)
    with context.timed("report"):
        page = _report(context, rows, scored, record, model, run_id)
    return _store(context, record, baselines, page, run_id)


def _read(context: StageContext, dataset: Manifest) -> tuple[DatasetReader, Splits]:
    """Fetch a dataset's raw rows and splits.

    Raises:
        DataError: an object is missing or altered; `dataset.newer`.
    """
    reader = DatasetReader(context.store, dataset, context.folder / "dataset")
    arrays = ScratchArrays(context.folder)
    training, validation, test = (reader.numbers(name, arrays) for name in SPLITS)
    return reader, Splits(
        frame=reader,
        columns=RawRows(reader, test).names,
        labels=arrays.column(reader, LABEL, np.float64),
        event_us=arrays.column(reader, context.spec.data.source.event_time, "datetime64[us]").view(np.int64),
        training=training,
        validation=validation,
        test=test,
    )


def _score(context: StageContext, dataset: Manifest, raw: RawRows, predictor: Predictor, others: dict[str, Rival]) -> Scored:
    found: dict[str, Floats] = {}
    classes = Classes.of(meta_of(dataset))
    done, total = 0, len(raw) * (1 + len(others))

    def scored(num_rows: int) -> None:
        nonlocal done
        done += num_rows
        context.progress(done, total, "rows scored")

    scored(0)
    for name, other in others.items():
        found[name] = raw.scores(load_rival(context.store, other, context.folder / name), classes, scored)
    candidate = raw.scores(predictor, classes, scored)
    return Scored(candidate=candidate, champion=found.get("champion"), canary=found.get("canary"))


def _measured(measures: Measures, rows: LabelledRows, scored: Scored) -> EvaluationRecord:
    """Return what the record says of the scores alone."""
    candidate, champion, canary = scored.candidate, scored.champion, scored.canary
    rest = EvaluationRecord(
        canary_metrics={} if canary is None else measures.metrics(canary),
        canary_comparison=None if canary is None else measures.compare(candidate, canary),
        num_rows=rows.num_rows,
        num_units=rows.num_units,
    )
    return EvaluationRecord.of_parts(measures.measured(candidate, champion), rest)


def _checks(
    context: StageContext,
    data: Splits,
    training: RawRows,
    raw: RawRows,
    predictor: Predictor,
    measures: Measures,
    scored: Scored,
) -> ResultChecks:
    rules = context.spec.evaluate
    entities = rules.entities or tuple(context.spec.data.source.key)
    # The area of a series, the item of a ranking: what a row is about may well order the labels, and is known before them.
    known = [name for name in predictor.inputs if name not in entities] or list(predictor.inputs)
    some, some_tests = (part.at(leakage_checks.evenly(len(part))) for part in (training, raw))
    leakage = leakage_checks.strongest_feature(
        rules.task, known, some, data.labels[some.numbers], some_tests, data.labels[some_tests.numbers]
    )
    overlap = leakage_checks.overlap(entities, training.hashes(entities), raw.hashes(entities))
    found = measures.checks(scored.candidate, scored.champion)
    return ResultChecks(leakage=leakage, overlap=overlap, drift=found.drift, constant=found.constant)


def _calls(context: StageContext, rows: pd.DataFrame, dataset: Manifest) -> dict[str, Latency] | None:
    """Return how long calls of the candidate take, by their number of rows."""
    limits = context.spec.evaluate.latency_ms.model_dump()
    found = latency.measure(
        context.folder / "candidate",
        rows,
        context.folder,
        dataset.meta["group"],
        {f"{name}_ms": limit for name, limit in limits.items() if limit is not None},
    )
    return None if found is None else {batch: Latency.model_validate(call) for batch, call in found.items()}


def _register(context: StageContext, model: Manifest, predictor: Predictor, rows: pd.DataFrame, run_id: str | None) -> MLflowRegistration:
    # Its threads: the process that measures the latency is forked before.
    with lean_imports(deferred=MLFLOW_DEFERRED, absent=MLFLOW_MODELS_OPTIONAL):
        from training.registry.mlflow.schema import ModelSchema, output_columns
        from training.registry.mlflow.versions import register_candidate

    inputs = {name: str(rows[name].dtype) for name in predictor.inputs}
    request, spec = context.request, context.spec
    declared = spec.data.declared_types()
    shown = ModelSchema(
        {name: declared.get(name, kind) for name, kind in inputs.items()},
        output_columns(spec.evaluate.task, spec.data.label.column, predictor.classes),
    )
    tags = {"nightshift.pipeline": request.pipeline, "nightshift.as_of": request.as_of, "nightshift.model": model.digest}
    if "registered" in model.meta:
        tags["nightshift.registered"] = registered_words(model.meta["registered"])
    return register_candidate(
        context.store,
        spec.promote.model,
        model,
        inputs=inputs,
        run_id=run_id,
        tags=tags,
        output=f"{spec.evaluate.task} of {spec.data.label.column}",
        schema=shown,
    )


def _to_approve(context: StageContext) -> JsonObject:
    """Return the field of the record that says what a person has to approve of the data; nothing where there is nothing."""
    uri = context.request.inputs.get("validation")
    if uri is None:
        return {}
    return {"data_to_approve": tuple(context.store.manifests.get(uri, kind="validation").meta["to_approve"])}


def _facts(
    model: Manifest, dataset: Manifest, registered: MLflowRegistration, rivals: Mapping[str, Rival | None], alike: Compared
) -> EvaluationRecord:
    unknown = dataset.meta.get(META_KEY)
    return EvaluationRecord(
        format_version=FORMAT_VERSION,
        version=registered.number,
        logged_model=registered.logged_model,
        artifact_digest=registered.artifact_digest,
        candidate=Candidate(weights_digest=model.meta["weights_digest"], model=model.digest, bounds=model.meta["bounds"]),
        champion=rivals["champion"],
        canary=rivals["canary"],
        dataset=dataset.digest,
        baseline=alike.words["champion"],
        **({"rows_seen": alike.seen} if alike.seen else {}),
        unknown_labels=None if unknown is None else UnknownLabelCounts.model_validate(unknown),
        classes=dataset.meta.get("classes"),
    )


def _report(
    context: StageContext, rows: LabelledRows, scored: Scored, record: EvaluationRecord, model: Manifest, run_id: str | None
) -> bytes:
    rules, promote = context.spec.evaluate, context.spec.promote
    classes = list(record.classes or ())
    named = {"candidate": scored.candidate, "champion": scored.champion, "canary": scored.canary}
    plots = task_plots(rules.task, rows.labels, named, groups=rows.groups, gain=rules.gain, classes=classes)
    history = json.loads((context.folder / "candidate" / "history.json").read_bytes())
    tracking_uri = TRACKING.text()
    facts = {
        **mlflow_facts(tracking_uri, run_id=run_id, model=context.spec.promote.model, version=record.version or ""),
        "candidate weights": model.meta["weights_digest"],
        "champion weights": "–" if record.champion is None else record.champion.weights_digest,
        "dataset": record.dataset,
        "family": model.meta["family"],
        **_origin(model),
        **{f"{split} rows": " to ".join(map(moment, bounds)) for split, bounds in model.meta["bounds"].items()},
        **({"rows divided": division_words(model.meta["split"])} if "split" in model.meta else {}),
        **{f"test rows left out, for the {name} learned from them": seen for name, seen in record.rows_seen.items()},
    }
    return render_report(
        EvaluationPage(
            record=record,
            pipeline=context.request.pipeline,
            as_of=local_moment(context.request.as_of, context.spec.timezone),
            rules=rules,
            plots=plots,
            history=history,
            facts=facts,
            classes=by_class(rows.labels, scored.candidate, scored.champion, classes, threshold=rules.threshold),
            # The gates' judgement of these numbers; promote judges again and records the decision.
            decision=decide(record, rules, approval=promote.approval, promote=promote),
        )
    )


def _origin(model: Manifest) -> JsonObject:
    """Return how a model was made, as the report's facts."""
    if "registered" in model.meta:
        return {"origin": registered_words(model.meta["registered"])}
    return {"best epoch": model.meta["best_epoch"], "seed": model.meta["seed"], "processes": model.meta["world_size"]}


def _store(context: StageContext, record: EvaluationRecord, baselines: Baselines, page: bytes, run_id: str | None) -> Outcome:
    from training.registry.mlflow.runs import Evaluated, log_evaluation

    store, request, spec = context.store, context.request, context.spec
    finite = {name: value for name, value in record.metrics.items() if math.isfinite(value)}
    with context.timed("log", kind="mlflow"):
        log_evaluation(Evaluated.of(request, spec, store, run_id=run_id, logged_model=record.logged_model), finite, page)
    best = baselines.best_entry
    meta = {
        **record.to_json(*META_KEYS),
        "naive_baseline": None if best is None else best.to_json(),
        "named_baselines": named_entries(baselines, context.spec),
        "baseline_warnings": list(baselines.warnings),
    }
    files = {FILE: record.to_bytes(), "report.html": page}
    log_record(baselines, context.spec.evaluate.primary, record.metrics)
    uri, manifest = store.manifests.put_files("evaluation", files, meta)
    set_run_ref(store, context.request, "evaluation", uri)
    report_uri = context.publish_page("evaluation", page)
    scalars = _scalars(record, baselines, context.spec.evaluate.primary)
    gain = record.baseline if record.comparison is None else f"gain {number(scalars['gain'])}"
    logger.info("%s %s, %s", scalars["primary"], number(scalars["candidate"]), gain)
    return Outcome(artifact_uri=uri, digest=manifest.digest, scalars=scalars, reports={"evaluation": report_uri})


def _scalars(record: EvaluationRecord, baselines: Baselines, primary: str) -> dict[str, Scalar]:
    naive, worst, timed = baselines.best_entry, record.worst_slice, record.latency
    scalars: dict[str, Scalar] = {
        "rows": record.num_rows,
        "primary": primary,
        "candidate": json_number(record.metrics[primary]),
        "champion": json_number(record.champion_metrics.get(primary)),
        "champion_version": None if record.champion is None else record.champion.version,
        "baseline": record.baseline,
        "version": record.version,
        "naive_baseline": None if naive is None else naive.name,
        **{f"naive_baseline_{name}": json_number(getattr(baselines.comparison, name, None)) for name in ("gain", "low", "high")},
        "worst_slice": None if worst is None else json_number(record.slices[worst].candidate),
        "slice_gap": json_number(record.slice_gap),
        "latency_p95_ms": None if timed is None else json_number(timed["1"].p95_ms),
    }
    scalars |= {f"candidate_{name}": value for name, value in record.metrics.items() if math.isfinite(value)}
    scalars |= {f"champion_{name}": json_number(value) for name, value in record.champion_metrics.items()}
    scalars |= {f"naive_baseline_{name}": json_number(value) for name, value in ({} if naive is None else naive.metrics).items()}
    if record.comparison is not None:
        scalars |= {name: json_number(getattr(record.comparison, name)) for name in ("gain", "low", "high", "probability")}
    return scalars


if __name__ == "__main__":
    latency.fork_measurer(latency.FAMILY.text())
    main(work)
