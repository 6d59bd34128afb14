"""Canary: canary and champion score what arrived since the canary was made, as shadows; neither serves requests here.

python -m training.stages.canary REQUEST_URI
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime

import numpy as np

from training.contracts import Scalar, StageRequest, json_number
from training.data.dataset.manifest import meta_of
from training.data.dataset.reader import DatasetReader
from training.data.features.classes import Classes
from training.data.join.contract import LABEL
from training.errors import DeniedError
from training.evaluation.compared_models import load_rival, rivals_in
from training.evaluation.measures import Measures
from training.evaluation.metrics.per_class import by_class
from training.evaluation.raw_rows import Floats, RawRows
from training.evaluation.record import FILE, FORMAT_VERSION, META_KEYS, Candidate, EvaluationRecord, Rival
from training.evaluation.rows import LabelledRows
from training.format import local_moment
from training.pages.evaluation import EvaluationPage, render_report
from training.pages.plots import task_plots
from training.registry.gates.judging import CanaryDecision, judge_canary
from training.registry.ledger.reasons import SIMULATED
from training.runtime.runner import StageContext, StageOutput, main
from training.spec import PipelineSpec
from training.store import Manifest

logger = logging.getLogger(__name__)


def work(context: StageContext) -> StageOutput:
    """Judge `parameters["canary"]` against `parameters["champion"]` on the rows of `inputs["dataset"]` newer than the canary's own.

    Raises:
        DeniedError: `canary.missing`.
        DataError: a model or the rows cannot be read.
    """
    request, spec, store, folder = context.request, context.spec, context.store, context.folder
    rivals = {name: rival for name, rival in rivals_in(request.parameters).items() if rival is not None}
    if len(rivals) < 2:
        message = f"{spec.promote.model} has no canary next to a champion"
        raise DeniedError("canary.missing", message, hint="it was settled meanwhile")
    dataset = context.input("dataset")
    # The end of the window that the canary was made, chosen and tested with.
    since = datetime.fromisoformat(rivals["canary"].bounds["test"][1])
    with context.timed("fetch"):
        reader = DatasetReader(store, dataset, folder / "dataset")
        raw = RawRows(reader, reader.numbers_since(spec.data.source.event_time, since))
        labels = reader.rows_numbered(raw.numbers, [LABEL])[LABEL].to_numpy(dtype=np.float64)
        rows = LabelledRows.of(spec, raw, labels, dataset.meta["group"])
    logger.info("%s rows with labels since %s", f"{rows.num_rows:,}", since.isoformat())
    scores: dict[str, Floats] = {}
    if rows.num_units:
        with context.timed("score"):
            classes = Classes.of(meta_of(dataset))
            predictors = ((name, load_rival(store, rival, folder / name)) for name, rival in rivals.items())
            scores = {name: raw.scores(predictor, classes) for name, predictor in predictors}
    with context.timed("compare"):
        record = _facts(dataset, rows, rivals, since)
        if scores:
            record = EvaluationRecord.of_parts(record, _measured(spec, rows, scores))
    page = _page(spec, request, record, rows, scores, rivals)
    primary = spec.evaluate.primary
    scalars: dict[str, Scalar] = {
        "rows": record.num_rows,
        "primary": primary,
        "canary": json_number(record.metrics.get(primary)),
        "champion": json_number(record.champion_metrics.get(primary)),
        **{name: json_number(getattr(record.comparison, name, None)) for name in ("gain", "low", "high", "probability")},
    }
    files = {FILE: record.to_bytes()}
    return context.store_artifact("evaluation", files, record.to_json(*META_KEYS), scalars, ref="canary", pages={"canary": page})


def _facts(dataset: Manifest, rows: LabelledRows, rivals: Mapping[str, Rival], since: datetime) -> EvaluationRecord:
    """Return the record of rows of which nothing is measured yet."""
    canary = rivals["canary"]
    return EvaluationRecord(
        format_version=FORMAT_VERSION,
        version=canary.version,
        candidate=Candidate(weights_digest=canary.weights_digest, model=None, bounds=canary.bounds),
        champion=rivals["champion"],
        canary=None,
        dataset=dataset.digest,
        classes=dataset.meta.get("classes"),
        baseline="champion",
        num_rows=rows.num_rows,
        num_units=rows.num_units,
        metrics={},
        champion_metrics={},
        comparison=None,
        latency=None,
        importance=None,
        since=since.isoformat(),
    )


def _measured(spec: PipelineSpec, rows: LabelledRows, scores: Mapping[str, Floats]) -> EvaluationRecord:
    measures = Measures(spec.evaluate, rows, seed=spec.train.seed)
    canary, champion = scores["canary"], scores["champion"]
    rest = EvaluationRecord(alarm=measures.alarm(canary, champion), checks=measures.checks(canary, champion))
    return EvaluationRecord.of_parts(measures.measured(canary, champion), rest)


def _page(
    spec: PipelineSpec,
    request: StageRequest,
    record: EvaluationRecord,
    rows: LabelledRows,
    scores: Mapping[str, Floats],
    rivals: Mapping[str, Rival],
) -> bytes:
    plots, by_name = {}, []
    names = list(record.classes or ())
    if scores:
        named = {"candidate": scores["canary"], "champion": scores["champion"]}
        plots = task_plots(spec.evaluate.task, rows.labels, named, groups=rows.groups, gain=spec.evaluate.gain, classes=names)
        by_name = by_class(rows.labels, scores["canary"], scores["champion"], names, threshold=spec.evaluate.threshold)
    facts = {
        "this page": "the canary, as candidate, compared with the champion on the data that arrived since",
        "rows since": record.since,
        **{f"{name} weights": rivals[name].weights_digest for name in ("canary", "champion")},
        "dataset": record.dataset,
    }
    return render_report(
        EvaluationPage(
            record=record,
            pipeline=request.pipeline,
            as_of=local_moment(request.as_of, spec.timezone),
            rules=spec.evaluate,
            plots=plots,
            facts=facts,
            classes=by_name,
            decision=_decision(spec, request, record),
        )
    )


def _decision(spec: PipelineSpec, request: StageRequest, record: EvaluationRecord) -> CanaryDecision | None:
    """Return what `promote` will decide on these numbers, at the same instant; None where the request is older than the page's decision."""
    rules, since = spec.promote.canary, request.parameters.get("canary_since")
    if rules is None or since is None:
        return None
    return judge_canary(
        record,
        rules,
        rules=spec.evaluate,
        since=datetime.fromisoformat(since),
        now=min(request.as_of, datetime.now(UTC)),
        approved=request.parameters.get("canary_approved", ()),
        simulated=SIMULATED in request.parameters,
    )


if __name__ == "__main__":
    main(work)
