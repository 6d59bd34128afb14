"""Evaluate: candidate and champion score the same test rows, each through its own preprocessing.

python -m training.stages.evaluate REQUEST_URI
"""

from __future__ import annotations

import functools
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from training.contracts import Scalar, StageRequest, instant_text, json_number
from training.data.dataset.manifest import meta_of
from training.data.dataset.reader import DatasetReader
from training.data.dataset.scratch_arrays import ScratchArrays
from training.data.features.classes import Classes
from training.data.join.contract import LABEL
from training.data.snapshot.label_delay import META_KEY
from training.data.split.by_time import SPLITS
from training.data.split.kinds import division_words
from training.evaluation import latency, leakage_checks
from training.evaluation.baselines import Splits, log_record, naive_record, named_entries
from training.evaluation.compared_models import Compared, compared, load_rival, rivals_in
from training.evaluation.measures import Measures
from training.evaluation.metrics.per_class import by_class
from training.evaluation.raw_rows import Floats, RawRows
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
from training.format import learned_words, local_moment, moment, number
from training.installation import TRACKING
from training.models.base import hint_of_last_epoch
from training.models.predictor import Predictor, load_predictor
from training.pages.evaluation import EvaluationPage, render_report
from training.pages.evaluation_view import mlflow_facts
from training.pages.plots import task_plots
from training.registry.gates.judging import decide
from training.runtime.runner import StageContext, StageOutput, main
from training.spec import PipelineSpec
from training.spec.registration import registered_words
from training.store import Manifest, Store

if TYPE_CHECKING:
    import pandas as pd

    from training.pages.evaluation_view import Link
    from training.registry.ledger.version_weights import MLflowRegistration
    from training.runtime.context import ReportProgress
    from training.spec.sections.evaluation import LatencyLimits

logger = logging.getLogger(__name__)

LATENCY_ROWS: Final = 4_096


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Scores of the test rows; None where there is no such model, or it cannot be compared on them."""

    candidate: Floats
    champion: Floats | None
    canary: Floats | None


def work(context: StageContext) -> StageOutput:
    """Evaluate `inputs["model"]` on the test rows of `inputs["dataset"]`, against `parameters["champion"]` and `["canary"]`.

    Raises:
        DataError: a model or the rows cannot be read: nothing is promoted on what was not measured; `metric.failed`.
        UnavailableError: `mlflow.unavailable`, `mlflow.denied`.
    """
    request, store, spec, folder = context.request, context.store, context.spec, context.folder
    dataset, model = context.input("dataset"), context.input("model")
    rivals = rivals_in(request.parameters)
    with context.timed("fetch"):
        reader, data = _read(store, dataset, folder, event_time=spec.data.source.event_time)
        alike = compared(store, dataset, reader, data.test, rivals, as_of=request.as_of, folder=folder)
        data = replace(data, test=alike.test)
        raw = RawRows(reader, data.test)
        rows = LabelledRows.of(spec, raw, data.labels[data.test], dataset.meta["group"])
        first_rows = raw.at(np.arange(min(LATENCY_ROWS, len(raw)))).frame()
        measures = Measures(spec.evaluate, rows, seed=spec.train.seed)
        predictor = load_predictor(store.manifests.fetch(model, folder / "candidate"))
    with context.timed("tracking", kind="mlflow"):
        run = _training_run(context)
    with context.timed("register", kind="mlflow"):
        registered = _register(context, model, predictor, first_rows, run)
    with context.timed("score"):
        models: dict[str, Callable[[], Predictor]] = {
            name: functools.partial(load_rival, store, rival, folder / name)
            for name, rival in rivals.items()
            if rival is not None and alike.is_baseline(name)
        }
        scored = _score(raw, Classes.of(meta_of(dataset)), {**models, "candidate": lambda: predictor}, context.progress)
    with context.timed("compare"):
        measured = _measured(measures, rows, scored)
    with context.timed("baselines"):
        baselines = naive_record(spec, data, scored.candidate, measured.metrics)
    with context.timed("checks"):
        result_checks = _checks(
            spec, data, RawRows(reader, data.training), raw, predictor.inputs, measures.checks(scored.candidate, scored.champion)
        )
        importance = measures.importance(predictor.score, lambda numbers: raw.at(numbers).frame(predictor.inputs), predictor.inputs)
    with context.timed("latency"):
        calls = _calls(spec.evaluate.latency_ms, folder, first_rows, group=dataset.meta["group"])
    rest = EvaluationRecord(
        baselines=baselines,
        checks=result_checks,
        importance=importance,
        latency=calls,
        # What a person has to approve of the data.
        **({"data_to_approve": tuple(context.input("validation").meta["to_approve"])} if "validation" in request.inputs else {}),
    )
    record = EvaluationRecord.of_parts(_facts(model, dataset, registered, rivals, alike), measured, rest)
    with context.timed("report"):
        history = json.loads((folder / "candidate" / "history.json").read_bytes())
        facts = _shown_facts(record, model, spec.promote.model, run, len(history))
        page = _report(spec, request, rows, scored, record, history, facts)
    return _store(context, record, baselines, page, run)


def _read(store: Store, dataset: Manifest, folder: Path, *, event_time: str) -> tuple[DatasetReader, Splits]:
    """Fetch a dataset's raw rows and splits to the local `folder`; `event_time` is the column of the rows' instants.

    Raises:
        DataError: an object is missing or altered; `dataset.newer`.
    """
    reader = DatasetReader(store, dataset, folder / "dataset")
    arrays = ScratchArrays(folder)
    training, validation, test = (reader.numbers(name, arrays) for name in SPLITS)
    return reader, Splits(
        frame=reader,
        columns=RawRows(reader, test).names,
        labels=arrays.column(reader, LABEL, np.float64),
        event_us=arrays.column(reader, event_time, "datetime64[us]").view(np.int64),
        training=training,
        validation=validation,
        test=test,
    )


def _score(raw: RawRows, classes: Classes | None, models: Mapping[str, Callable[[], Predictor]], progress: ReportProgress) -> Scored:
    """Score the rows with each model, which is loaded when it is its turn."""
    done, total = 0, len(raw) * len(models)

    def scored(num_rows: int) -> None:
        nonlocal done
        done += num_rows
        progress(done, total, "rows scored")

    scored(0)
    found = {name: raw.scores(load(), classes, scored) for name, load in models.items()}
    return Scored(candidate=found["candidate"], champion=found.get("champion"), canary=found.get("canary"))


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
    spec: PipelineSpec, data: Splits, training: RawRows, raw: RawRows, inputs: Sequence[str], of_scores: ResultChecks
) -> ResultChecks:
    """Add to the checks of the scores those of the rows and of the model's inputs."""
    rules = spec.evaluate
    entities = rules.entities or tuple(spec.data.source.key)
    # The area of a series, the item of a ranking: what a row is about may well order the labels, and is known before them.
    known = [name for name in inputs if name not in entities] or list(inputs)
    some, some_tests = (part.at(leakage_checks.evenly(len(part))) for part in (training, raw))
    leakage = leakage_checks.strongest_feature(
        rules.task, known, some, data.labels[some.numbers], some_tests, data.labels[some_tests.numbers]
    )
    overlap = leakage_checks.overlap(entities, training.hashes(entities), raw.hashes(entities))
    return ResultChecks(leakage=leakage, overlap=overlap, drift=of_scores.drift, constant=of_scores.constant)


def _calls(limits: LatencyLimits, folder: Path, rows: pd.DataFrame, *, group: str | None) -> dict[str, Latency] | None:
    """Return how long calls of the candidate, whose files are in `folder`, take, by their number of rows."""
    limits_ms = {f"{name}_ms": limit for name, limit in limits.model_dump().items() if limit is not None}
    found = latency.measure(folder / "candidate", rows, folder, group, limits_ms)
    return None if found is None else {batch: Latency.model_validate(call) for batch, call in found.items()}


def _training_run(context: StageContext) -> Any | None:
    # Its threads: the process that measures the latency is forked before.
    from training.registry.mlflow.runs import training_run

    return training_run(context.store.bucket, context.request.parameters)


def _register(context: StageContext, model: Manifest, predictor: Predictor, rows: pd.DataFrame, run: Any | None) -> MLflowRegistration:
    from training.registry.mlflow.schema import ModelSchema, output_columns
    from training.registry.mlflow.versions import register_candidate

    inputs = {name: str(rows[name].dtype) for name in predictor.inputs}
    request, spec = context.request, context.spec
    declared = spec.data.declared_types()
    shown = ModelSchema(
        {name: declared.get(name, kind) for name, kind in inputs.items()},
        output_columns(spec.evaluate.task, spec.data.label.column, predictor.classes),
    )
    tags = {"nightshift.pipeline": request.pipeline, "nightshift.as_of": instant_text(request.as_of), "nightshift.model": model.digest}
    if "registered" in model.meta:
        tags["nightshift.registered"] = registered_words(model.meta["registered"])
    return register_candidate(
        context.store,
        spec.promote.model,
        model,
        inputs=inputs,
        run=run,
        tags=tags,
        output=f"{spec.evaluate.task} of {spec.data.label.column}",
        schema=shown,
    )


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
        **({"canary_baseline": alike.words["canary"]} if rivals["canary"] is not None and not alike.is_baseline("canary") else {}),
        **({"rows_seen": alike.seen} if alike.seen else {}),
        unknown_labels=None if unknown is None else UnknownLabelCounts.model_validate(unknown),
        classes=dataset.meta.get("classes"),
    )


def _report(
    spec: PipelineSpec,
    request: StageRequest,
    rows: LabelledRows,
    scored: Scored,
    record: EvaluationRecord,
    history: Sequence[Mapping[str, float]],
    facts: Mapping[str, Scalar | Link],
) -> bytes:
    rules, promote = spec.evaluate, spec.promote
    classes = list(record.classes or ())
    named = {"candidate": scored.candidate, "champion": scored.champion, "canary": scored.canary}
    plots = task_plots(rules.task, rows.labels, named, groups=rows.groups, gain=rules.gain, classes=classes)
    return render_report(
        EvaluationPage(
            record=record,
            pipeline=request.pipeline,
            as_of=local_moment(request.as_of, spec.timezone),
            rules=rules,
            plots=plots,
            history=history,
            facts=facts,
            classes=by_class(rows.labels, scored.candidate, scored.champion, classes, threshold=rules.threshold),
            # The gates' judgement of these numbers; promote judges again and records the decision.
            decision=decide(record, rules, approval=promote.approval, promote=promote),
        )
    )


def _shown_facts(record: EvaluationRecord, model: Manifest, name: str, run: Any | None, num_epochs: int) -> dict[str, Scalar | Link]:
    """Return the facts of the report, by their titles.

    Args:
        name: of the model in the registry.
        num_epochs: that were trained.
    """
    meta = model.meta
    origin: dict[str, Scalar]
    if "registered" in meta:
        origin = {"origin": registered_words(meta["registered"])}
    else:
        best = int(meta["best_epoch"])
        origin = {"best epoch": hint_of_last_epoch(best, num_epochs) or best, "seed": meta["seed"], "processes": meta["world_size"]}
    return {
        **mlflow_facts(TRACKING.text(), run_id=None if run is None else run.info.run_id, model=name, version=record.version or ""),
        "candidate weights": meta["weights_digest"],
        "champion weights": "–" if record.champion is None else record.champion.weights_digest,
        "dataset": record.dataset,
        "family": meta["family"],
        **origin,
        **{f"{split} rows": " to ".join(map(moment, bounds)) for split, bounds in meta["bounds"].items()},
        **({"rows divided": division_words(meta["split"])} if "split" in meta else {}),
        **({} if "split" in meta or "registered" in meta else {"learned from": learned_words(meta["bounds"])}),
        **{f"test rows left out, for the {name} learned from them": seen for name, seen in record.rows_seen.items()},
    }


def _store(context: StageContext, record: EvaluationRecord, baselines: Baselines, page: bytes, run: Any | None) -> StageOutput:
    from training.registry.mlflow.runs import Evaluated, log_evaluation

    request, spec = context.request, context.spec
    primary = spec.evaluate.primary
    finite = {name: value for name, value in record.metrics.items() if math.isfinite(value)}
    with context.timed("log", kind="mlflow"):
        log_evaluation(Evaluated.of(request, spec, context.store, run=run, logged_model=record.logged_model), finite, page)
    best = baselines.best_entry
    meta = {
        **record.to_json(*META_KEYS),
        "naive_baseline": None if best is None else best.to_json(),
        "named_baselines": named_entries(baselines, spec),
        "baseline_warnings": list(baselines.warnings),
    }
    log_record(baselines, primary, record.metrics)
    scalars = _scalars(record, baselines, primary)
    gain = record.baseline if record.comparison is None else f"gain {number(scalars['gain'])}"
    logger.info("%s %s, %s", scalars["primary"], number(scalars["candidate"]), gain)
    return context.store_artifact("evaluation", {FILE: record.to_bytes()}, meta, scalars, ref="evaluation", pages={"evaluation": page})


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
