"""Canary: canary and champion score what arrived since the canary was made, as shadows; nobody is served by either here.

python -m training.stages.canary REQUEST_URI
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray

from training.contracts import canonical_json
from training.data.joins import LABEL
from training.errors import DeniedError
from training.evaluation.metrics import score_metrics
from training.evaluation.plots import task_plots
from training.evaluation.report import render_report
from training.evaluation.significance import compare
from training.models.predictor import load_predictor
from training.stages.runner import Outcome, StageContext, main
from training.store import Manifest, point_run_at

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """Rows with labels that neither model was made or chosen with."""

    frame: pd.DataFrame
    labels: Floats
    groups: NDArray[np.int64] | None
    since: datetime


def work(context: StageContext) -> Outcome:
    """Judge `parameters["canary"]` against `parameters["champion"]` on the rows of `inputs["dataset"]` newer than the canary's own.

    Raises:
        DeniedError: `canary.missing`.
        DataError: a model or the rows cannot be read.
    """
    canary, champion = (context.request.parameters.get(name) for name in ("canary", "champion"))
    if canary is None or champion is None:
        raise DeniedError(
            "canary.missing", f"{context.spec.promote.model} has no canary beside a champion", hint="it was settled meanwhile"
        )
    dataset = context.store.manifests.get(context.request.inputs["dataset"], kind="dataset")
    with context.timed("fetch"):
        arrived = _arrived(context, dataset, canary)
    logger.info("%s rows with labels since %s", f"{len(arrived.frame):,}", arrived.since.isoformat())
    with context.timed("score"):
        scores = {name: _scores(context, name, seat, arrived) for name, seat in (("canary", canary), ("champion", champion))}
    with context.timed("compare"):
        evaluation = _evaluation(context, dataset, arrived, scores)
    return _store(context, evaluation, _page(context, evaluation, arrived, scores))


def _arrived(context: StageContext, dataset: Manifest, canary: Mapping[str, Any]) -> Arrived:
    folder = context.store.manifests.fetch(dataset, context.folder / "dataset", ["frame.parquet"])
    # The end of the window that the canary was made, chosen and tested with.
    since = datetime.fromisoformat(canary["bounds"]["test"][1])
    frame = pq.read_table(folder / "frame.parquet").to_pandas()
    times = frame[context.spec.data.source.event_time].to_numpy(dtype="datetime64[us]")
    frame = frame[times >= np.datetime64(since.astimezone(UTC).replace(tzinfo=None), "us")].reset_index(drop=True)
    labels = frame.pop(LABEL).to_numpy(dtype=np.float64)
    group = dataset.meta["group"]
    groups = None if group is None else np.unique(frame[group].to_numpy(), return_inverse=True)[1].astype(np.int64)
    return Arrived(frame=frame, labels=labels, groups=groups, since=since)


def _scores(context: StageContext, name: str, seat: Mapping[str, Any], arrived: Arrived) -> Floats:
    manifest = context.store.manifests.get(seat["model_uri"], kind="model")
    folder: Path = context.store.manifests.fetch(manifest, context.folder / name)
    if arrived.frame.empty:
        return np.empty(0)
    return load_predictor(folder).predict(arrived.frame)


def _evaluation(context: StageContext, dataset: Manifest, arrived: Arrived, scores: Mapping[str, Floats]) -> dict[str, Any]:
    rules, seats = context.spec.evaluate, context.request.parameters
    named = [*rules.minimum, *rules.maximum]
    metrics: dict[str, dict[str, float]] = {}
    for name, found in scores.items():
        metrics[name] = (
            score_metrics(rules.task, rules.primary, arrived.labels, found, arrived.groups, threshold=rules.threshold, also=named)
            if len(arrived.labels)
            else {}
        )
    comparison = None
    if len(arrived.labels):
        comparison = compare(
            rules.primary,
            arrived.labels,
            scores["canary"],
            scores["champion"],
            arrived.groups,
            confidence=rules.confidence,
            seed=context.spec.train.seed,
            threshold=rules.threshold,
        )
    return {
        "format_version": 2,
        "kind": "canary",
        "version": seats["canary"]["version"],
        "candidate": {"weights_digest": seats["canary"]["weights_digest"], "model": None, "bounds": seats["canary"]["bounds"]},
        "champion": seats["champion"],
        "canary": None,
        "dataset": dataset.digest,
        "baseline": "champion",
        "since": arrived.since.isoformat(),
        "metrics": _plain(metrics["canary"]),
        "champion_metrics": _plain(metrics["champion"]),
        "comparison": None if comparison is None else _plain(asdict(comparison)),
        "checks": {"constant": bool(len(arrived.labels) > 1 and np.ptp(scores["canary"]) == 0)},
        "num_rows": len(arrived.labels),
        "num_units": len(arrived.labels) if arrived.groups is None else len(np.unique(arrived.groups)),
    }


def _page(context: StageContext, evaluation: Mapping[str, Any], arrived: Arrived, scores: Mapping[str, Floats]) -> bytes:
    spec, seats = context.spec, context.request.parameters
    plots = {}
    if len(arrived.labels) > 1:
        plots = task_plots(
            spec.evaluate.task, arrived.labels, {"candidate": scores["canary"], "champion": scores["champion"]}, groups=arrived.groups
        )
    facts = {
        "rows since": arrived.since.isoformat(),
        "canary weights": seats["canary"]["weights_digest"],
        "champion weights": seats["champion"]["weights_digest"],
        "dataset": evaluation["dataset"],
    }
    return render_report(
        {
            "evaluation": evaluation,
            "pipeline": context.request.pipeline,
            "as_of": context.request.as_of,
            "rules": spec.evaluate,
            "plots": plots,
            "facts": facts,
        }
    )


def _store(context: StageContext, evaluation: Mapping[str, Any], page: bytes) -> Outcome:
    files = {"metrics.json": canonical_json(evaluation), "report.html": page}
    meta = {name: evaluation[name] for name in ("candidate", "champion", "metrics", "champion_metrics", "comparison", "baseline")}
    uri, manifest = context.store.manifests.put_files("evaluation", files, meta)
    point_run_at(context.store, context.request, "canary", uri)
    primary = context.spec.evaluate.primary
    comparison = evaluation["comparison"] or {}
    scalars = {
        "rows": evaluation["num_rows"],
        "primary": primary,
        "canary": evaluation["metrics"].get(primary),
        "champion": evaluation["champion_metrics"].get(primary),
        **{name: comparison.get(name) for name in ("gain", "low", "high", "probability")},
    }
    return Outcome(artifact_uri=uri, digest=manifest.digest, scalars=scalars, reports={"canary": context.publish_page("canary", page)})


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON: what is not finite becomes a word, which no gate takes for a number."""
    return {name: str(value) if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()}


if __name__ == "__main__":
    main(work)
