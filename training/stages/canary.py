"""Canary: canary and champion score what arrived since the canary was made, as shadows; neither serves requests here.

python -m training.stages.canary REQUEST_URI
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from training.contracts import canonical_json
from training.data.classes import Classes, align_scores
from training.data.joins import LABEL
from training.errors import DeniedError
from training.evaluation.measures import FORMAT_VERSION, Measures, Rows, plain, rows_of
from training.evaluation.metrics.per_class import by_class
from training.models.predictor import load_predictor
from training.pages.evaluation import render_report
from training.pages.plots import task_plots
from training.registry.gates import judge_canary
from training.runtime.runner import Outcome, StageContext, main
from training.store import Manifest, set_run_ref

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]


def work(context: StageContext) -> Outcome:
    """Judge `parameters["canary"]` against `parameters["champion"]` on the rows of `inputs["dataset"]` newer than the canary's own.

    Raises:
        DeniedError: `canary.missing`.
        DataError: a model or the rows cannot be read.
    """
    canary, champion = (context.request.parameters.get(name) for name in ("canary", "champion"))
    if canary is None or champion is None:
        message = f"{context.spec.promote.model} has no canary beside a champion"
        raise DeniedError("canary.missing", message, hint="it was settled meanwhile")
    dataset = context.store.manifests.get(context.request.inputs["dataset"], kind="dataset")
    # The end of the window that the canary was made, chosen and tested with.
    since = datetime.fromisoformat(canary["bounds"]["test"][1])
    with context.timed("fetch"):
        rows = _arrived(context, dataset, since)
    logger.info("%s rows with labels since %s", f"{len(rows.frame):,}", since.isoformat())
    scores: dict[str, Floats] = {}
    if rows.num_units:
        with context.timed("score"):
            scores = {
                name: _scores(context, name, seat, rows, Classes.of(dataset.meta))
                for name, seat in (("canary", canary), ("champion", champion))
            }
    with context.timed("compare"):
        evaluation = _evaluation(context, dataset, rows, scores) | {"since": since.isoformat()}
    return _store(context, evaluation, _page(context, evaluation, rows, scores))


def _arrived(context: StageContext, dataset: Manifest, since: datetime) -> Rows:
    folder = context.store.manifests.fetch(dataset, context.folder / "dataset", ["frame.parquet"])
    frame = pq.read_table(folder / "frame.parquet").to_pandas()
    times = frame[context.spec.data.source.event_time].to_numpy(dtype="datetime64[us]")
    frame = frame[times >= np.datetime64(since.astimezone(UTC).replace(tzinfo=None), "us")].reset_index(drop=True)
    labels = frame.pop(LABEL).to_numpy(dtype=np.float64)
    return rows_of(context.spec, frame, labels, dataset.meta["group"])


def _scores(context: StageContext, name: str, seat: Mapping[str, Any], rows: Rows, classes: Classes | None) -> Floats:
    manifest = context.store.manifests.get(seat["model_uri"], kind="model")
    folder: Path = context.store.manifests.fetch(manifest, context.folder / name)
    predictor = load_predictor(folder)
    return align_scores(predictor.predict(rows.frame), predictor.classes, classes)


def _evaluation(context: StageContext, dataset: Manifest, rows: Rows, scores: Mapping[str, Floats]) -> dict[str, Any]:
    seats = context.request.parameters
    facts = {
        "format_version": FORMAT_VERSION,
        "version": seats["canary"]["version"],
        "candidate": {"weights_digest": seats["canary"]["weights_digest"], "model": None, "bounds": seats["canary"]["bounds"]},
        "champion": seats["champion"],
        "canary": None,
        "dataset": dataset.digest,
        "classes": dataset.meta.get("classes"),
        "baseline": "champion",
        "num_rows": len(rows.frame),
        "num_units": rows.num_units,
        "metrics": {},
        "champion_metrics": {},
        "comparison": None,
        "latency": None,
        "importance": None,
    }
    if not scores:
        return facts
    measures = Measures(context.spec.evaluate, rows, seed=context.spec.train.seed)
    canary, champion = scores["canary"], scores["champion"]
    measured = {
        "metrics": measures.metrics(canary),
        "champion_metrics": measures.metrics(champion),
        "comparison": asdict(measures.compare(canary, champion)),
        "alarm": measures.alarm(canary, champion),
        "ranking": measures.ranking(),
        **measures.slices(canary, champion),
        "fairness": measures.fairness(canary),
        "checks": measures.checks(canary, champion),
    }
    return facts | dict(plain(measured))


def _page(context: StageContext, evaluation: Mapping[str, Any], rows: Rows, scores: Mapping[str, Floats]) -> bytes:
    spec, seats = context.spec, context.request.parameters
    plots, by_name = {}, []
    names: list[str] = evaluation["classes"] or []
    if scores:
        named = {"candidate": scores["canary"], "champion": scores["champion"]}
        plots = task_plots(spec.evaluate.task, rows.labels, named, groups=rows.groups, gain=spec.evaluate.gain, classes=names)
        by_name = by_class(rows.labels, scores["canary"], scores["champion"], names, threshold=spec.evaluate.threshold)
    facts = {
        "this page": "the canary, as candidate, beside the champion on what arrived since",
        "rows since": evaluation["since"],
        "canary weights": seats["canary"]["weights_digest"],
        "champion weights": seats["champion"]["weights_digest"],
        "dataset": evaluation["dataset"],
    }
    page = {"pipeline": context.request.pipeline, "as_of": context.request.as_of, "rules": spec.evaluate, "plots": plots, "facts": facts}
    return render_report({"evaluation": evaluation, "classes": by_name, "decision": _verdict(context, evaluation), **page})


def _verdict(context: StageContext, evaluation: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what `promote` will decide on these numbers, at the same instant; None where the request is older than the page's verdict."""
    rules, since = context.spec.promote.canary, context.request.parameters.get("canary_since")
    if rules is None or since is None:
        return None
    now = min(datetime.fromisoformat(context.request.as_of), datetime.now(UTC))
    approved = context.request.parameters.get("canary_approved", ())
    verdict = judge_canary(evaluation, rules, rules=context.spec.evaluate, since=datetime.fromisoformat(since), now=now, approved=approved)
    return asdict(verdict)


def _store(context: StageContext, evaluation: Mapping[str, Any], page: bytes) -> Outcome:
    files = {"metrics.json": canonical_json(evaluation), "report.html": page}
    meta = {name: evaluation[name] for name in ("candidate", "champion", "metrics", "champion_metrics", "comparison", "baseline")}
    uri, manifest = context.store.manifests.put_files("evaluation", files, meta)
    set_run_ref(context.store, context.request, "canary", uri)
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


if __name__ == "__main__":
    main(work)
