"""Two versions of models, or two runs, side by side: settings, data, code, metrics, slices, cost."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from nightshift.queries import runs
from nightshift.queries.models import May, version
from nightshift.queries.schemas import (
    ComparedMetric,
    ComparedSide,
    ComparedSlice,
    ComparedStage,
    KeyDifference,
    PairedGain,
    SideBySide,
)
from training.contracts import JsonObject, StageResult, instant_of
from training.errors import DataError, DeniedError
from training.evaluation.record import FILE, EvaluationRecord
from training.registry.ledger.ledger import Ledger
from training.stage_table import REFIT, TABLE
from training.store import Store

MODEL_FILE: Final = "model.json"
NOT_SETTINGS: Final = ("name", "description", "owners", "tags")
"""Keys of a spec that change no work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One of the two: what is known of it, and where the rest is."""

    side: ComparedSide
    spec_uri: str
    evaluation_uri: str
    model_uri: str
    results: Mapping[str, StageResult]


def of_version(ledger: Ledger, model: str, wanted: str, may: May) -> Subject:
    """Return a version of a model, by its newest decision that an evaluation led to.

    Raises:
        DeniedError: `model.unknown`, `version.unknown`.
    """
    found = version(ledger, model, wanted, may)
    entries = (ledger.decision(model, each.key) for each in found.decisions)
    evidence = next((dict(each.evidence) for each in entries if each is not None and each.evidence.get("evaluation_digest")), {})
    run_id = str(evidence.get("run_id", ""))
    pipeline = str(evidence.get("pipeline", ""))
    side = ComparedSide(
        name=f"{model}@{found.version}",
        pipeline=pipeline,
        run=f"{pipeline}:{run_id}" if run_id else None,
        version=found.version,
        semantic_version=found.semantic_version,
        as_of=instant_of(evidence["as_of"]) if "as_of" in evidence else None,
        outcome=found.decisions[0].outcome,
        snapshot=_text(evidence.get("snapshot_digest")),
        weights_digest=_text(evidence.get("weights_digest")),
    )
    return Subject(
        side=side,
        spec_uri=str(evidence.get("spec_uri", "")),
        evaluation_uri=str(evidence.get("evaluation_uri", "")),
        model_uri=str(evidence.get("model_uri", "")),
        results=runs.results(pipeline, run_id) if run_id else {},
    )


def of_run(store: Store, pipeline: str, run_id: str) -> Subject:
    """Return a run, by what its stages left in the store. Its caller has checked that the pipeline may be read.

    Raises:
        DeniedError: `run.unknown`.
    """
    run = runs.run(pipeline, run_id)
    # Users may write XCom: what it names is read below the pipeline's own work folders alone.
    found = {stage: each for stage, each in runs.results(pipeline, run_id).items() if each.pipeline == pipeline}
    kept: dict[str, StageResult] = {}
    spec_uri = ""
    for stage, named in found.items():
        work_folder = store.work_folder(pipeline, stage, named.work_id)
        try:
            committed = work_folder.result()
            spec_uri = spec_uri or ("" if committed is None else work_folder.request(committed.attempt_id).spec_uri)
        except DataError:
            # Deleted by retention: the side has nothing to show there.
            continue
        if committed is not None:
            kept[stage] = replace(committed, reused_from=named.reused_from)
    side = ComparedSide(
        name=run.id,
        pipeline=pipeline,
        run=run.id,
        as_of=run.as_of,
        outcome=run.state if run.note is None else run.note.split(":", 1)[0],
        snapshot=kept["ingest"].digest if "ingest" in kept else None,
    )
    uris = {stage: found.artifact_uri for stage, found in kept.items()}
    model_uri = uris.get(REFIT) or uris.get("train", "")
    return Subject(side=side, spec_uri=spec_uri, evaluation_uri=uris.get("evaluate", ""), model_uri=model_uri, results=kept)


def compare(store: Store, a: Subject, b: Subject) -> SideBySide:
    """Return the two side by side; what retention has deleted is left out, and named in `missing`."""
    missing: list[str] = []
    found: list[tuple[Subject, EvaluationRecord | None, JsonObject, JsonObject]] = []
    for subject in (a, b):
        evaluation = _evaluation(store, subject, missing)
        facts = _facts(store, subject, missing)
        settings = _settings(store, subject, missing)
        candidate = None if evaluation is None else evaluation.candidate
        digest = subject.side.weights_digest or (None if candidate is None else candidate.weights_digest)
        rows = None if evaluation is None else evaluation.num_rows
        side = subject.side.model_copy(update={"code_version": _text(facts.get("code_version")), "rows": rows, "weights_digest": digest})
        found.append((replace(subject, side=side), evaluation, facts, settings))
    (left, first, first_facts, first_settings), (right, second, second_facts, second_settings) = found
    metrics, gain, slices, is_same = _measured(left, first, right, second)
    facts_of = [
        {key: each.get(key) for key in ("family", "task", "architecture", "device", "environment")} for each in (first_facts, second_facts)
    ]
    return SideBySide(
        a=left.side,
        b=right.side,
        settings=_differences(first_settings, second_settings),
        code=_differences(*facts_of) if first_facts and second_facts else [],
        metrics=metrics,
        is_same_rows=is_same,
        gain=gain,
        slices=slices,
        stages=_stages(left, right),
        missing=missing,
    )


def _measured(
    a: Subject, first: EvaluationRecord | None, b: Subject, second: EvaluationRecord | None
) -> tuple[list[ComparedMetric], PairedGain | None, list[ComparedSlice], bool]:
    """Return metrics, the paired gain and slices: on the same rows, where one was the champion that the other one was measured against."""
    if second is not None and _is_champion_of(a, second):
        return (*_on_same_rows(second, sign=1, by=b), True)
    if first is not None and _is_champion_of(b, first):
        metrics, gain, slices = _on_same_rows(first, sign=-1, by=a)
        turned = [each.model_copy(update={"a": each.b, "b": each.a}) for each in metrics]
        return turned, gain, [each.model_copy(update={"a": each.b, "b": each.a}) for each in slices], True
    ours, theirs = ({} if each is None else dict(each.metrics) for each in (first, second))
    metrics = [ComparedMetric(name=name, a=_finite(ours.get(name)), b=_finite(theirs.get(name))) for name in sorted({*ours, *theirs})]
    return metrics, None, [], False


def _is_champion_of(subject: Subject, record: EvaluationRecord) -> bool:
    digest = "" if record.champion is None else record.champion.weights_digest
    return bool(digest) and digest == subject.side.weights_digest and bool(record.champion_metrics)


def _on_same_rows(
    record: EvaluationRecord, *, sign: int, by: Subject
) -> tuple[list[ComparedMetric], PairedGain | None, list[ComparedSlice]]:
    """Return an evaluation's champion as `a` and its candidate as `b`.

    Args:
        sign: -1 turns the gain around: of the champion over the candidate.
    """
    names = sorted({*record.metrics, *record.champion_metrics})
    metrics = [
        ComparedMetric(name=name, a=_finite(record.champion_metrics.get(name)), b=_finite(record.metrics.get(name))) for name in names
    ]
    slices = [
        ComparedSlice(columns=dict(each.columns), rows=each.support, a=_finite(each.champion), b=_finite(each.candidate))
        for each in record.slices
    ]
    made = record.comparison
    gain = None
    if made is not None:
        ends = [_finite(made.low), _finite(made.high)]
        low, high = (None if end is None else sign * end for end in (ends if sign == 1 else ends[::-1]))
        value = _finite(made.gain)
        gain = PairedGain(
            gain=None if value is None else sign * value,
            low=low,
            high=high,
            units=made.num_units,
            decided_by=made.decided_by,
            rows_of=by.side.name,
        )
    return metrics, gain, slices


def _stages(a: Subject, b: Subject) -> list[ComparedStage]:
    """Return what each stage cost, where a run did the work; reused work cost nothing, and has the figures of the run that did it."""
    found = []
    for stage in TABLE:
        one, other = a.results.get(stage), b.results.get(stage)
        if one is not None or other is not None:
            found.append(ComparedStage(name=stage, **_cost("a", one), **_cost("b", other)))
    return found


def _cost(letter: str, result: StageResult | None) -> JsonObject:
    usage = None if result is None else result.usage
    return {
        f"{letter}_seconds": None if result is None else result.timings.get("total"),
        f"{letter}_cpu_seconds": None if usage is None else usage.cpu_seconds,
        f"{letter}_peak_memory_bytes": None if usage is None else usage.peak_memory_bytes,
    }


def _evaluation(store: Store, subject: Subject, missing: list[str]) -> EvaluationRecord | None:
    data = _file(store, subject.evaluation_uri, FILE, f"evaluation of {subject.side.name}", missing)
    return None if data is None else EvaluationRecord.read(data)


def _facts(store: Store, subject: Subject, missing: list[str]) -> JsonObject:
    data = _file(store, subject.model_uri, MODEL_FILE, f"model of {subject.side.name}", missing)
    return {} if data is None else dict(json.loads(data))


def _settings(store: Store, subject: Subject, missing: list[str]) -> JsonObject:
    try:
        found = dict(store.get_json(subject.spec_uri)) if subject.spec_uri else {}
    except (DataError, DeniedError):
        found = {}
    if not found:
        missing.append(f"settings of {subject.side.name}")
    return {key: value for key, value in found.items() if key not in NOT_SETTINGS}


def _file(store: Store, uri: str, name: str, what: str, missing: list[str]) -> bytes | None:
    try:
        if uri:
            return store.manifests.read(store.manifests.get(uri), name)
    except (DataError, DeniedError, KeyError):
        pass  # Deleted by retention, or of a run without this file.
    missing.append(what)
    return None


def _differences(a: JsonObject, b: JsonObject) -> list[KeyDifference]:
    """Return the dotted keys whose values differ; none where one side has nothing."""
    if not a or not b:
        return []
    ours, theirs = dict(_flat(a)), dict(_flat(b))
    return [
        KeyDifference(key=key, a=ours.get(key), b=theirs.get(key)) for key in sorted({*ours, *theirs}) if ours.get(key) != theirs.get(key)
    ]


def _flat(value: JsonObject, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, each in value.items():
        if isinstance(each, Mapping) and each:
            yield from _flat(each, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", each


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _text(value: object) -> str | None:
    return str(value) if value else None
