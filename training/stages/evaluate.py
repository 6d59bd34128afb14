"""Evaluate: candidate and champion score the same test rows, each through its own preprocessing.

python -m training.stages.evaluate REQUEST_URI
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray

from training.contracts import canonical_json
from training.data.classes import Classes, align_scores
from training.data.joins import LABEL
from training.data.label_delay import META_KEY
from training.data.splits import SPLITS
from training.engine.tracking_journal import tracked_run
from training.evaluation import checks, latency
from training.evaluation.baselines import Splits, best_entry, log_record, naive_record, named_entries
from training.evaluation.measures import FORMAT_VERSION, Measures, Rows, plain, rows_of
from training.evaluation.metrics.per_class import by_class
from training.evaluation.staleness import advice_of
from training.format import moment
from training.models.predictor import Predictor, load_predictor
from training.pages.evaluation import render_report
from training.pages.evaluation_links import mlflow_facts
from training.pages.plots import task_plots
from training.registry.gates import decide
from training.runtime.lazy_imports import MLFLOW_DEFERRED, MLFLOW_MODELS_OPTIONAL, lean_imports
from training.runtime.runner import Outcome, StageContext, main
from training.spec.models import PipelineSpec
from training.store import Manifest, set_run_ref

if TYPE_CHECKING:
    from training.registry.mlflow_versions import Registered

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]
LATENCY_ROWS: Final = 4_096
NO_CHAMPION: Final = "no champion"
IS_BASELINE: Final = "champion"


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
    with context.timed("fetch"):
        data = read_dataset(context, dataset)
        rows = data.test_rows(context.spec)
        measures = Measures(context.spec.evaluate, rows, seed=context.spec.train.seed)
        predictor = load_predictor(store.manifests.fetch(model, context.folder / "candidate"))
    with context.timed("tracking", kind="mlflow"):
        run_id = tracked_run(store.bucket, request.parameters)
    with context.timed("register", kind="mlflow"):
        registered = _register(context, model, predictor, rows, run_id)
    baseline = _baseline(context, request.parameters.get("champion"), dataset)
    with context.timed("score"):
        scored = _score(context, dataset, rows, predictor)
    with context.timed("compare"):
        evaluation = _facts(context, model, dataset, registered, baseline) | _measured(measures, rows, scored)
    with context.timed("baselines"):
        evaluation["baselines"] = naive_record(context.spec, data.splits(), scored.candidate, evaluation["metrics"])
    with context.timed("checks"):
        evaluation |= {"checks": _checks(context, data, predictor, measures, scored), "importance": measures.importance(predictor)}
    with context.timed("latency"):
        evaluation["latency"] = latency.measure(
            context.folder / "candidate",
            rows.frame.head(LATENCY_ROWS),
            context.folder,
            dataset.meta["group"],
            {f"{name}_ms": limit for name, limit in context.spec.evaluate.latency_ms.model_dump().items() if limit is not None},
        )
    advice = advice_of(context.spec, request.parameters, data.frame, data.test, predictor.inputs)
    evaluation = plain(evaluation | {"advice": advice.as_json()})
    with context.timed("report"):
        page = _report(context, rows, scored, evaluation, model, run_id)
    return _store(context, evaluation, page, run_id)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset's raw rows, all splits."""

    frame: pd.DataFrame
    """Without the label."""
    labels: Floats
    training: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]
    group: str | None

    def splits(self) -> Splits:
        return Splits(frame=self.frame, labels=self.labels, training=self.training, validation=self.validation, test=self.test)

    def test_rows(self, spec: PipelineSpec) -> Rows:
        frame = self.frame.iloc[self.test].reset_index(drop=True)
        return rows_of(spec, frame, self.labels[self.test], self.group)


def read_dataset(context: StageContext, dataset: Manifest) -> Dataset:
    """Fetch a dataset's raw rows and splits.

    Raises:
        DataError: an object is missing or altered.
    """
    names = ["frame.parquet", *(f"splits/{name}.npy" for name in SPLITS)]
    folder = context.store.manifests.fetch(dataset, context.folder / "dataset", names)
    frame = pq.read_table(folder / "frame.parquet").to_pandas()
    labels = frame.pop(LABEL).to_numpy(dtype=np.float64)
    training, validation, test = (np.load(folder / "splits" / f"{name}.npy", allow_pickle=False) for name in SPLITS)
    return Dataset(frame=frame, labels=labels, training=training, validation=validation, test=test, group=dataset.meta["group"])


def _score(context: StageContext, dataset: Manifest, rows: Rows, predictor: Predictor) -> Scored:
    found: dict[str, Floats] = {}
    num_rows = len(rows.frame)
    context.progress(0, num_rows, "rows scored")
    for name in ("champion", "canary"):
        other = context.request.parameters.get(name)
        if other is not None and _baseline(context, other, dataset) == IS_BASELINE:
            found[name] = _other_scores(context, name, other, rows, Classes.of(dataset.meta))
    candidate = align_scores(predictor.predict(rows.frame), predictor.classes, Classes.of(dataset.meta))
    context.progress(num_rows, num_rows, "rows scored")
    return Scored(candidate=candidate, champion=found.get("champion"), canary=found.get("canary"))


def _measured(measures: Measures, rows: Rows, scored: Scored) -> dict[str, Any]:
    """Return what the record says of the scores alone."""
    candidate, champion, canary = scored.candidate, scored.champion, scored.canary
    return {
        "metrics": measures.metrics(candidate),
        "champion_metrics": {} if champion is None else measures.metrics(champion),
        "canary_metrics": {} if canary is None else measures.metrics(canary),
        "comparison": None if champion is None else asdict(measures.compare(candidate, champion)),
        "canary_comparison": None if canary is None else asdict(measures.compare(candidate, canary)),
        "ranking": measures.ranking(),
        **measures.slices(candidate, champion),
        "fairness": measures.fairness(candidate),
        "num_rows": len(rows.frame),
        "num_units": rows.num_units,
    }


def _checks(context: StageContext, data: Dataset, predictor: Predictor, measures: Measures, scored: Scored) -> dict[str, Any]:
    rules = context.spec.evaluate
    entities = rules.entities or tuple(context.spec.data.source.key)
    # The area of a series, the item of a ranking: what a row is about may well order the labels, and is known before them.
    known = data.frame[[name for name in predictor.inputs if name not in entities] or list(predictor.inputs)]
    leakage = checks.strongest_feature(
        rules.task, known.iloc[data.training], data.labels[data.training], known.iloc[data.test], data.labels[data.test]
    )
    overlap = checks.overlap(data.frame, entities, data.training, data.test)
    return {"leakage": leakage, "overlap": overlap, **measures.checks(scored.candidate, scored.champion)}


def _register(context: StageContext, model: Manifest, predictor: Predictor, rows: Rows, run_id: str | None) -> Registered:
    # Its threads: the process that measures the latency is forked before.
    with lean_imports(deferred=MLFLOW_DEFERRED, absent=MLFLOW_MODELS_OPTIONAL):
        from training.registry.mlflow_versions import register_candidate

    inputs = {name: str(rows.frame[name].dtype) for name in predictor.inputs}
    request = context.request
    tags = {"nightshift.pipeline": request.pipeline, "nightshift.as_of": request.as_of, "nightshift.model": model.digest}
    return register_candidate(
        context.store,
        context.spec.promote.model,
        model,
        inputs=inputs,
        run_id=run_id,
        tags=tags,
    )


def _baseline(context: StageContext, champion: Mapping[str, Any] | None, dataset: Manifest) -> str:
    """Return whether the champion can be compared on these rows: it must be older, and not made with any of them."""
    if champion is None:
        return NO_CHAMPION
    if datetime.fromisoformat(champion["as_of"]) > datetime.fromisoformat(context.request.as_of):
        return f"it is later (as of {champion['as_of']})"
    test_start = datetime.fromisoformat(dataset.meta["bounds"]["test"][0])
    for split in ("train", "validation"):
        end = datetime.fromisoformat(champion["bounds"][split][1])
        if end > test_start:
            return f"its {split} rows end at {end.isoformat()}, after the test rows begin"
    return IS_BASELINE


def _other_scores(context: StageContext, name: str, other: Mapping[str, Any], rows: Rows, classes: Classes | None) -> Floats:
    manifest = context.store.manifests.get(other["model_uri"], kind="model")
    folder: Path = context.store.manifests.fetch(manifest, context.folder / name)
    predictor = load_predictor(folder)
    return align_scores(predictor.predict(rows.frame), predictor.classes, classes)


def _facts(context: StageContext, model: Manifest, dataset: Manifest, registered: Registered, baseline: str) -> dict[str, Any]:
    parameters = context.request.parameters
    return {
        "format_version": FORMAT_VERSION,
        "version": registered.version,
        "artifact_digest": registered.artifact_digest,
        "candidate": {"weights_digest": model.meta["weights_digest"], "model": model.digest, "bounds": model.meta["bounds"]},
        "champion": parameters.get("champion"),
        "canary": parameters.get("canary"),
        "dataset": dataset.digest,
        "baseline": baseline,
        META_KEY: dataset.meta.get(META_KEY),
        "classes": dataset.meta.get("classes"),
    }


def _report(context: StageContext, rows: Rows, scored: Scored, evaluation: Mapping[str, Any], model: Manifest, run_id: str | None) -> bytes:
    rules = context.spec.evaluate
    classes: list[str] = evaluation["classes"] or []
    named = {"candidate": scored.candidate, "champion": scored.champion, "canary": scored.canary}
    plots = task_plots(rules.task, rows.labels, named, groups=rows.groups, gain=rules.gain, classes=classes)
    history = json.loads((context.folder / "candidate" / "history.json").read_bytes())
    champion = evaluation["champion"] or {}
    tracking_uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    facts = {
        **mlflow_facts(tracking_uri, run_id=run_id, model=context.spec.promote.model, version=evaluation["version"]),
        "candidate weights": model.meta["weights_digest"],
        "champion weights": champion.get("weights_digest", "–"),
        "dataset": evaluation["dataset"],
        "family": model.meta["family"],
        "best epoch": model.meta["best_epoch"],
        "seed": model.meta["seed"],
        "processes": model.meta["world_size"],
        **{f"{split} rows": " to ".join(map(moment, bounds)) for split, bounds in model.meta["bounds"].items()},
    }
    return render_report(
        {
            "evaluation": evaluation,
            "pipeline": context.request.pipeline,
            "as_of": context.request.as_of,
            "primary": rules.primary,
            "rules": rules,
            "plots": plots,
            "history": history,
            "facts": facts,
            "classes": by_class(rows.labels, scored.candidate, scored.champion, classes, threshold=rules.threshold),
            # What the gates say of these numbers; promote asks them again and records the answer.
            "decision": asdict(decide(evaluation, rules, approval=context.spec.promote.approval, promote=context.spec.promote)),
            "advice": evaluation["advice"]["lines"],
        }
    )


def _store(context: StageContext, evaluation: Mapping[str, Any], page: bytes, run_id: str | None) -> Outcome:
    from training.registry.mlflow_versions import log_evaluation

    store = context.store
    finite = {name: value for name, value in evaluation["metrics"].items() if isinstance(value, float)}
    with context.timed("log", kind="mlflow"):
        log_evaluation(run_id, finite, page)
    files = {"metrics.json": canonical_json(evaluation), "report.html": page}
    meta = {name: evaluation[name] for name in ("candidate", "champion", "metrics", "champion_metrics", "comparison", "baseline")}
    meta["naive_baseline"] = best_entry(evaluation["baselines"])
    meta["named_baselines"] = named_entries(evaluation["baselines"], context.spec)
    meta["baseline_warnings"] = evaluation["baselines"]["warnings"]
    log_record(evaluation["baselines"], context.spec.evaluate.primary, evaluation["metrics"])
    uri, manifest = store.manifests.put_files("evaluation", files, meta)
    set_run_ref(store, context.request, "evaluation", uri)
    report_uri = context.publish_page("evaluation", page)
    scalars = _scalars(evaluation, context.spec.evaluate.primary)
    logger.info(
        "%s %s, %s",
        scalars["primary"],
        scalars["candidate"],
        evaluation["baseline"] if evaluation["comparison"] is None else f"gain {scalars['gain']}",
    )
    return Outcome(artifact_uri=uri, digest=manifest.digest, scalars=scalars, reports={"evaluation": report_uri})


def _scalars(evaluation: Mapping[str, Any], primary: str) -> dict[str, Any]:
    metrics, champion_metrics = evaluation["metrics"], evaluation["champion_metrics"]
    worst, timed = evaluation["worst_slice"], evaluation["latency"]
    naive, naive_comparison = best_entry(evaluation["baselines"]), evaluation["baselines"]["comparison"] or {}
    scalars: dict[str, Any] = {
        "rows": evaluation["num_rows"],
        "primary": primary,
        "candidate": metrics[primary],
        "champion": champion_metrics.get(primary),
        "champion_version": (evaluation["champion"] or {}).get("version"),
        "baseline": evaluation["baseline"],
        "version": evaluation["version"],
        "naive_baseline": None if naive is None else naive["name"],
        **{f"naive_baseline_{name}": naive_comparison.get(name) for name in ("gain", "low", "high")},
        "worst_slice": None if worst is None else evaluation["slices"][worst]["candidate"],
        "slice_gap": evaluation["slice_gap"],
        "latency_p95_ms": None if timed is None else timed["1"]["p95_ms"],
    }
    scalars |= {f"candidate_{name}": value for name, value in metrics.items() if isinstance(value, float)}
    scalars |= {f"champion_{name}": value for name, value in champion_metrics.items()}
    scalars |= {f"naive_baseline_{name}": value for name, value in ({} if naive is None else naive["metrics"]).items()}
    comparison = evaluation["comparison"] or {}
    return scalars | {name: comparison[name] for name in ("gain", "low", "high", "probability") if name in comparison}


if __name__ == "__main__":
    latency.fork_measurer(os.environ.get(latency.FAMILY_VARIABLE, ""))
    main(work)
