"""Evaluate: candidate and champion score the same test rows, each through its own preprocessing.

python -m training.stages.evaluate REQUEST_URI
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray

from training.contracts import canonical_json
from training.data.joins import LABEL
from training.evaluation.metrics import score_metrics
from training.evaluation.plots import task_plots
from training.evaluation.report import render_report
from training.evaluation.significance import Comparison, compare
from training.evaluation.slices import by_slice
from training.models.predictor import Predictor, load_predictor
from training.registry.gates import decide
from training.registry.versions import log_evaluation, register_candidate
from training.stages.runner import Outcome, StageContext, main
from training.store import Manifest, point_run_at

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]
NO_CHAMPION: Final = "no champion"
IS_BASELINE: Final = "champion"


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The test rows."""

    frame: pd.DataFrame
    labels: Floats
    groups: NDArray[np.int64] | None


def work(context: StageContext) -> Outcome:
    """Evaluate `inputs["model"]` on the test rows of `inputs["dataset"]`, against `parameters["champion"]`.

    Raises:
        DataError: a model or the rows cannot be read: nothing is promoted on what was not measured.
        UnavailableError: `mlflow.unavailable`.
    """
    request, store, rules = context.request, context.store, context.spec.evaluate
    dataset = store.manifests.get(request.inputs["dataset"], kind="dataset")
    model = store.manifests.get(request.inputs["model"], kind="model")
    champion = request.parameters.get("champion")
    with context.timed("fetch"):
        rows = _test_rows(context, dataset)
        predictor = load_predictor(store.manifests.fetch(model, context.folder / "candidate"))
    with context.timed("register"):
        version = _register(context, model, predictor, rows)
    baseline = _baseline(context, champion, dataset)
    context.progress(0, len(rows.frame), "rows scored")
    with context.timed("score"):
        scores = predictor.predict(rows.frame)
        old = _champion_scores(context, champion, rows) if champion is not None and baseline == IS_BASELINE else None
    context.progress(len(rows.frame), len(rows.frame), "rows scored")
    with context.timed("compare"):
        metrics = score_metrics(rules.task, rules.primary, rows.labels, scores, rows.groups)
        champion_metrics = {} if old is None else score_metrics(rules.task, rules.primary, rows.labels, old, rows.groups)
        comparison = None if old is None else _compare(context, rows, scores, old)
    evaluation = _facts(request.parameters, model, dataset, version, baseline, metrics, champion_metrics, comparison)
    with context.timed("report"):
        page = _report(context, rows, scores, old, evaluation, model)
    return _store(context, evaluation, page, metrics, champion_metrics, comparison, num_rows=len(rows.frame))


def _test_rows(context: StageContext, dataset: Manifest) -> Rows:
    folder = context.store.manifests.fetch(dataset, context.folder / "dataset", ["frame.parquet", "splits/test.npy"])
    numbers = np.load(folder / "splits" / "test.npy", allow_pickle=False)
    frame = pq.read_table(folder / "frame.parquet").take(numbers).to_pandas()
    labels = frame.pop(LABEL).to_numpy(dtype=np.float64)
    group = dataset.meta["group"]
    groups = None if group is None else np.unique(frame[group].to_numpy(), return_inverse=True)[1].astype(np.int64)
    return Rows(frame=frame, labels=labels, groups=groups)


def _register(context: StageContext, model: Manifest, predictor: Predictor, rows: Rows) -> str:
    inputs = {name: str(rows.frame[name].dtype) for name in predictor.inputs}
    request = context.request
    tags = {"nightshift.pipeline": request.pipeline, "nightshift.as_of": request.as_of, "nightshift.model": model.digest}
    return register_candidate(
        context.store,
        context.spec.promote.model,
        model,
        inputs=inputs,
        run_id=request.parameters.get("mlflow_run_id"),
        tags=tags,
    )


def _baseline(context: StageContext, champion: Mapping[str, Any] | None, dataset: Manifest) -> str:
    """Say whether the champion can be compared on these rows: it must be older, and not made with any of them."""
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


def _champion_scores(context: StageContext, champion: Mapping[str, Any], rows: Rows) -> Floats:
    manifest = context.store.manifests.get(champion["model_uri"], kind="model")
    folder: Path = context.store.manifests.fetch(manifest, context.folder / "champion")
    return load_predictor(folder).predict(rows.frame)


def _compare(context: StageContext, rows: Rows, scores: Floats, old: Floats) -> Comparison:
    rules = context.spec.evaluate
    return compare(rules.primary, rows.labels, scores, old, rows.groups, confidence=rules.confidence, seed=context.spec.train.seed)


def _facts(
    parameters: Mapping[str, Any],
    model: Manifest,
    dataset: Manifest,
    version: str,
    baseline: str,
    metrics: Mapping[str, float],
    champion_metrics: Mapping[str, float],
    comparison: Comparison | None,
) -> dict[str, Any]:
    champion = parameters.get("champion")
    return {
        "version": version,
        "candidate": {"weights_digest": model.meta["weights_digest"], "model": model.digest, "bounds": model.meta["bounds"]},
        "champion": champion,
        "dataset": dataset.digest,
        "baseline": baseline,
        "metrics": _plain(metrics),
        "champion_metrics": _plain(champion_metrics),
        "comparison": None if comparison is None else _plain(asdict(comparison)),
    }


def _report(context: StageContext, rows: Rows, scores: Floats, old: Floats | None, evaluation: Mapping[str, Any], model: Manifest) -> bytes:
    rules = context.spec.evaluate
    slices = by_slice(
        rows.frame,
        rules.slices,
        task=rules.task,
        primary=rules.primary,
        labels=rows.labels,
        candidate=scores,
        champion=old,
        groups=rows.groups,
        least_support=rules.slice_support,
    )
    plots = task_plots(rules.task, rows.labels, {"candidate": scores, "champion": old}, groups=rows.groups)
    history = json.loads((context.folder / "candidate" / "history.json").read_bytes())
    champion = evaluation["champion"] or {}
    facts = {
        "candidate weights": model.meta["weights_digest"],
        "champion weights": champion.get("weights_digest", "–"),
        "dataset": evaluation["dataset"],
        "family": model.meta["family"],
        "best epoch": model.meta["best_epoch"],
        "seed": model.meta["seed"],
        "processes": model.meta["world_size"],
        **{f"{split} rows": " to ".join(bounds) for split, bounds in model.meta["bounds"].items()},
    }
    measured = {
        **evaluation,
        "slices": [{**asdict(entry), "columns": {entry.column: entry.value}} for entry in slices],
        "num_rows": len(rows.frame),
    }
    return render_report(
        {
            "evaluation": measured,
            "pipeline": context.request.pipeline,
            "as_of": context.request.as_of,
            "primary": rules.primary,
            "rules": rules,
            "plots": plots,
            "history": history,
            "facts": facts,
            # What the gates say of these numbers; promote asks them again and records the answer.
            "decision": asdict(decide(measured, rules, approval=context.spec.promote.approval)),
            "advice": None,
        }
    )


def _store(
    context: StageContext,
    evaluation: Mapping[str, Any],
    page: bytes,
    metrics: Mapping[str, float],
    champion_metrics: Mapping[str, float],
    comparison: Comparison | None,
    *,
    num_rows: int,
) -> Outcome:
    store, rules = context.store, context.spec.evaluate
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    with context.timed("log"):
        log_evaluation(context.request.parameters.get("mlflow_run_id"), finite, page)
    files = {"metrics.json": canonical_json(evaluation), "report.html": page}
    meta = {name: evaluation[name] for name in ("candidate", "champion", "metrics", "champion_metrics", "comparison", "baseline")}
    uri, manifest = store.manifests.put_files("evaluation", files, meta)
    point_run_at(store, context.request, "evaluation", uri)
    report_uri = context.publish_page("evaluation", page)
    scalars: dict[str, Any] = {
        "rows": num_rows,
        "primary": rules.primary,
        "candidate": _plain_number(metrics[rules.primary]),
        "champion": _plain_number(champion_metrics.get(rules.primary)),
        "champion_version": (evaluation["champion"] or {}).get("version"),
        "baseline": evaluation["baseline"],
        "version": evaluation["version"],
    }
    for name, value in finite.items():
        scalars[f"candidate_{name}"] = value
    for name, value in champion_metrics.items():
        scalars[f"champion_{name}"] = _plain_number(value)
    if comparison is not None:
        scalars |= {name: _plain_number(getattr(comparison, name)) for name in ("gain", "low", "high", "probability")}
    logger.info(
        "%s %.5f, %s",
        rules.primary,
        metrics[rules.primary],
        evaluation["baseline"] if comparison is None else f"gain {comparison.gain:+.5f}",
    )
    return Outcome(artifact_uri=uri, digest=manifest.digest, scalars=scalars, reports={"evaluation": report_uri})


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON: what is not finite becomes a word, which no gate takes for a number."""
    return {name: _plain_number(value) for name, value in values.items()}


def _plain_number(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    main(work)
