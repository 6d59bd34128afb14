"""What the page shows of an evaluation: plain rows, in the order in which a reader needs them. No HTML here, and no measuring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypedDict
from urllib.parse import quote

from training.contracts import Scalar
from training.evaluation.record import (
    Baselines,
    Comparison,
    EvaluationRecord,
    LabelCounts,
    NaiveBaseline,
    Slice,
)
from training.format import brief, finite, number, percent, signed
from training.registry.gates.judging import CanaryDecision, Decision
from training.registry.ledger.reasons import Reason
from training.spec.descriptors.metrics import is_lower_better, is_zero_best
from training.spec.sections.evaluation import Evaluate

Row = dict[str, object]
"""Names to what the template shows."""

MAX_SLICES: Final = 400
"""Rows of the page's table; `metrics.json` has all."""
MAX_VALUES: Final = 100
"""Of one sensitive column."""
MAX_FEATURES: Final = 30
MAX_DAYS: Final = 14
"""Of the days with rows whose label is not known, the newest."""

_OUTCOMES: Final = {
    "accepted": ("Accepted", "good", "✓"),
    "rejected": ("Rejected", "bad", "✗"),
    "needs_approval": ("Needs approval", "ask", "?"),
    # Of a canary.
    "promote": ("Promoted", "good", "✓"),
    "roll_back": ("Rolled back", "bad", "✗"),
    "waiting": ("Waiting", "ask", "…"),
}
_BADGES: Final = {"fail": ("failed", "bad", "✗"), "warn": ("warning", "warn", "!"), "approve": ("asks a person", "ask", "?")}
_PASSED: Final = ("passed", "good", "✓")


class Link(TypedDict):
    """A fact of the page that leads somewhere; without an address it is text."""

    text: str
    url: str | None


class Badge(NamedTuple):
    """A verdict and its look."""

    verdict: str
    look: str
    mark: str


def decision(made: Decision | CanaryDecision | None) -> Row | None:
    """Return the outcome's words and look, and its gates, those that are not passed first."""
    if made is None:
        return None
    words, look, mark = _OUTCOMES.get(made.outcome, (made.outcome, "ask", "?"))
    is_waiting = made.outcome == "waiting"
    order = ["bad", "ask", "warn", "good"]
    badges = sorted(
        ((reason, badge_of(reason, is_waiting=is_waiting)) for reason in made.reasons), key=lambda pair: order.index(pair[1].look)
    )
    gates = [{"gate": reason.gate, "words": reason.words, **badge._asdict()} for reason, badge in badges]
    return {"words": words, "look": look, "mark": mark, "gates": gates}


def badge_of(reason: Reason, *, is_waiting: bool = False) -> Badge:
    """Return the verdict of a gate; of a canary that waits, what it still lacks is not a failure."""
    if is_waiting and not reason.passed and reason.severity == "fail":
        # Time, rows or labels that a canary still lacks.
        return Badge("not yet", "ask", "…")
    return Badge(*(_PASSED if reason.passed else _BADGES.get(reason.severity or "fail", _BADGES["fail"])))


def comparisons(record: EvaluationRecord, primary: str, rules: Evaluate) -> list[Row]:
    """Return one row for each model that the candidate is compared with, with the interval's places on a line in per cent."""
    rows = []
    for who, rival, others, found in (
        ("champion", record.champion, record.champion_metrics, record.comparison),
        ("canary", record.canary, record.canary_metrics, record.canary_comparison),
    ):
        if found is None:
            continue
        gain, low, high = finite(found.gain), finite(found.low), finite(found.high)
        row: Row = {
            "who": who,
            "version": None if rival is None else rival.version,
            "candidate": record.metrics.get(primary),
            "other": others.get(primary),
            "probability": found.probability,
            "num_units": found.num_units,
            "confidence": percent(rules.confidence, 0 if round(100 * rules.confidence, 6).is_integer() else 2),
            "gain": found.gain,
            "low": found.low,
            "high": found.high,
            "about": _blocks_note(found),
            "places": None if gain is None or low is None or high is None else _places(gain, low, high),
        }
        row["words"], row["look"] = _sureness(gain, low, high)
        if found.blocks is not None and not found.blocks.bounded:
            row["words"], row["look"] = "not significantly: the interval is unbounded, too few blocks", "warn"
        rows.append(row)
    return rows


def _blocks_note(comparison: Comparison) -> str:
    """Say how the interval was found; empty where the times of the rows are unknown."""
    blocks = comparison.blocks
    if blocks is None:
        return ""
    length = f"{number((finite(blocks.block_seconds) or 0.0) / 3600)} h"
    lag = f"lag-1 autocorrelation {brief(blocks.lag1)} of time bins"
    by_rows = f"by rows alone [{signed(comparison.row_low)}, {signed(comparison.row_high)}]"
    by_blocks = f"by blocks [{signed(blocks.low)}, {signed(blocks.high)}]"
    what = f"{number(blocks.num_blocks)} blocks of {length}"
    columns = f" ({blocks.columns})" if blocks.columns else ""
    if blocks.is_of_one_instant:
        entities = f"{number(blocks.num_clusters)} entities{columns}, as all test rows have one instant"
        return f"The wider of two intervals: {by_rows}; {by_blocks}, {entities}."
    if blocks.too_few_blocks:
        instead = {"entity": "entities", "group": "groups"}.get(blocks.clusters)
        rest = f"{number(blocks.num_clusters)} {instead}{columns} are the clusters" if instead else "there are no entities or groups"
        what = f"too few blocks: {what}, 8 required; {rest}"
    elif blocks.clusters == "entity":
        what = f"{what} and {number(blocks.num_clusters)} entities{columns}"
    return f"The wider of two intervals: {by_rows}; {by_blocks}, {what}, {lag}."


def alone(record: EvaluationRecord) -> str:
    """Say why the candidate is compared with no other model."""
    baseline = record.baseline
    if baseline == "no champion":
        return "there is no champion yet"
    return "no difference was measured" if baseline in (None, "champion") else f"the champion is not a baseline: {baseline}"


def _sureness(gain: float | None, low: float | None, high: float | None) -> tuple[str, str]:
    if gain is None or low is None or high is None:
        return "the difference could not be measured", "bad"
    if low > 0:
        return "better", "good"
    if high < 0:
        return "worse", "bad"
    if low == high == 0:
        return "no difference", "warn"
    return f"{'better' if gain > 0 else 'worse' if gain < 0 else 'the same'}, but not significantly: zero lies in the interval", "warn"


def _places(gain: float, low: float, high: float) -> dict[str, float]:
    """Return where zero, the gain and the interval's ends lie on a line from 0 to 100, zero always on it."""
    start, end = min(low, gain, 0.0), max(high, gain, 0.0)
    span = (end - start) or 1.0
    start, span = start - 0.08 * span, 1.16 * span
    return {name: round(100 * (value - start) / span, 2) for name, value in (("zero", 0.0), ("gain", gain), ("low", low), ("high", high))}


def metrics(record: EvaluationRecord, rules: Evaluate, primary: str) -> list[Row]:
    """Return a row for each metric, the primary one first, with its bound and its difference to the champion's and the canary's."""
    found = record.metrics
    naive = None if record.baselines is None else record.baselines.best_entry
    rows = []
    for name in sorted(found, key=lambda name: name != primary):
        lower, zero = is_lower_better(name), is_zero_best(name)
        best = "closest to 0 is best" if zero else "lower is better" if lower else "higher is better"
        bounds = [f"at least {brief(rules.minimum[name])}"] if name in rules.minimum and not lower else []
        bounds += [f"at most {brief(limit[name])}" for limit in (rules.maximum, rules.minimum if lower else {}) if name in limit]
        row: Row = {"name": name, "is_primary": name == primary, "best": best, "candidate": found[name], "bound": ", ".join(bounds)}
        naive_metrics = {} if naive is None else naive.metrics
        for who, others in (("champion", record.champion_metrics), ("canary", record.canary_metrics), ("naive", naive_metrics)):
            row[who] = others.get(name)
            row[f"{who}_difference"] = _difference(found[name], others.get(name), lower=lower, zero=zero)
        rows.append(row)
    return rows


def ranking_note(record: EvaluationRecord) -> str:
    """Say how NDCG counts labels, ties and groups without a positive label; empty for other tasks."""
    found = record.ranking
    if found is None:
        return ""
    left_out = f"{number(found.num_without_positive)} of {number(found.num_groups)} groups have no positive label"
    return f"NDCG has {found.gain} gains; tied scores count by their expected value. {left_out} and are left out."


def baselines(record: EvaluationRecord, primary: str) -> Row:
    """Return the naive baselines, best on the validation rows first, the best one, and why there are none."""
    found, lower = record.baselines or Baselines(), is_lower_better(primary)

    def rank(entry: NaiveBaseline) -> tuple[bool, bool, float]:
        value = finite(entry.validation)
        return entry.name != found.best, value is None, (value or 0.0) * (1 if lower else -1)

    names = [name for name in record.metrics if name != primary]
    return {
        # Not for a canary: it is compared with the champion alone.
        "measured": record.baselines is not None,
        "rows": sorted(found.found, key=rank),
        "names": [primary, *names],
        "best": found.best_entry,
        "comparison": found.comparison,
        "worse": found.worse,
        "warnings": found.warnings,
        "why_none": found.why_none or f"none has {primary} on the validation rows",
    }


class MetricDifference(NamedTuple):
    value: float
    words: str
    look: str


def _difference(new: float | None, old: float | None, *, lower: bool, zero: bool = False) -> MetricDifference | None:
    """Return the candidate's value less the other's, and what that means; None where either is missing."""
    first, second = finite(new), finite(old)
    if first is None or second is None:
        return None
    value = first - second
    good = abs(second) - abs(first) if zero else -value if lower else value
    words, look = ("better", "good") if good > 0 else ("worse", "bad") if good < 0 else ("the same", "same")
    return MetricDifference(value, words, look)


def slices(record: EvaluationRecord, rules: Evaluate, primary: str) -> Row:
    """Return the slices, worst first and those that judge nothing last, at most `MAX_SLICES` of them, and how many there are."""
    lower = is_lower_better(primary)

    def rank(item: tuple[int, Slice]) -> tuple[bool, bool, float]:
        value = finite(item[1].candidate)
        return item[1].is_small or bool(item[1].why_none), value is None, (value or 0.0) * (-1 if lower else 1)

    rows: list[Row] = [
        {
            "columns": " × ".join(entry.columns),
            "values": " · ".join(entry.columns.values()),
            "support": entry.support,
            "is_small": entry.is_small,
            "why_none": entry.why_none,
            "share": entry.support / record.num_rows if record.num_rows else None,
            "is_worst": index == record.worst_slice,
            "candidate": entry.candidate,
            "champion": entry.champion,
            "difference": _slice_difference(entry, rules, lower=lower),
        }
        for index, entry in sorted(enumerate(record.slices), key=rank)
    ]
    return {
        "rows": rows[:MAX_SLICES],
        "num_all": len(rows),
        "num_small": sum(entry.is_small for entry in record.slices),
        "num_without": sum(bool(entry.why_none) and not entry.is_small for entry in record.slices),
        "gap": record.slice_gap,
        "worst": next((row for row in rows if row["is_worst"]), None),
        "why_not": _why_no_slices(rules),
    }


def _slice_difference(entry: Slice, rules: Evaluate, *, lower: bool) -> MetricDifference | None:
    found = _difference(entry.candidate, entry.champion, lower=lower)
    if found is not None and found.look == "bad" and rules.slice_drop is not None and not entry.is_small:
        return found._replace(words="worse, too much") if abs(found.value) > rules.slice_drop else found
    return found


def _why_no_slices(rules: Evaluate) -> str:
    if rules.slices:
        return f"The slices by {', '.join(rules.slices)} were not measured."
    return "The spec declares no columns to slice by (evaluate.slices)."


def fairness(record: EvaluationRecord, rules: Evaluate) -> Row:
    """Return the gaps of each sensitive column with their limits, and its values, the largest first."""
    columns = []
    for name, found in record.fairness.items():
        gaps = [
            _limited("equal-opportunity gap", found.equal_opportunity_gap, rules.fairness.equal_opportunity),
            _limited("calibration gap", found.calibration_gap, rules.fairness.calibration),
        ]
        values = sorted(found.values, key=lambda value: -value.support)
        columns.append({"name": name, "gaps": gaps, "rows": values[:MAX_VALUES], "num_all": len(values)})
    why = "was not measured" if rules.sensitive else "is not measured: the spec declares no sensitive columns (evaluate.sensitive)"
    return {"columns": columns, "why_not": f"Fairness {why}."}


def _limited(name: str, value: float | None, limit: float | None) -> Row:
    known = finite(value)
    is_over = limit is not None and (known is None or known > limit)
    look = "" if limit is None else "bad" if is_over else "good"
    return {"name": name, "value": value, "is_known": known is not None, "limit": limit, "look": look}


def latency(record: EvaluationRecord, rules: Evaluate) -> list[Row]:
    """Return a row for each batch size; the spec's limits hold for one prediction (batch 1)."""
    limits = rules.latency_ms
    rows: list[Row] = []
    for batch, found in (record.latency or {}).items():
        both = (("p50", found.p50_ms, limits.p50), ("p95", found.p95_ms, limits.p95), ("p99", found.p99_ms, limits.p99))
        cells = [_limited(name, value, limit if batch == "1" else None) for name, value, limit in both]
        rows.append({"batch": batch, "cells": cells, "rows_per_second": found.rows_per_second})
    return rows


def importance(record: EvaluationRecord) -> Row:
    """Return the most important features with their bars in per cent of the longest, and how many are left out."""
    found = record.importance or {}
    known = {name: finite(value) for name, value in found.items()}
    longest = max((abs(value) for value in known.values() if value is not None), default=0.0)
    rows = [
        {"name": name, "value": found[name], "width": round(100 * max(0.0, value or 0.0) / longest, 2) if longest else 0.0}
        for name, value in list(known.items())[:MAX_FEATURES]
    ]
    return {"rows": rows, "num_left_out": max(0, len(known) - MAX_FEATURES)}


def positive_class(record: EvaluationRecord, rules: Evaluate) -> str | None:
    """Return the name of the class whose probability a binary model gives, where it has one."""
    names = record.classes or ()
    return names[-1] if rules.task == "binary" and len(names) == 2 else None


def labels(record: EvaluationRecord) -> Row | None:
    """Return how many rows of each split have no known label, and of the newest days; None where labels have no `known_at`."""
    found = record.unknown_labels
    if found is None:
        return None
    days = list(found.days.items())[-MAX_DAYS:]
    return {
        "unknown": found.unknown,
        "num_rows": found.rows,
        "tables": [
            {
                "kind": kind,
                "rows": [
                    {"name": name, "rows": counts.rows, "unknown": counts.unknown, "share": _share(counts)} for name, counts in entries
                ],
            }
            for kind, entries in (("split", list(found.splits.items())), ("day", days))
            if entries
        ],
    }


def _share(counts: LabelCounts) -> float:
    return counts.unknown / counts.rows if counts.rows else 0.0


def facts(found: Mapping[str, Scalar | Link]) -> list[Row]:
    """Return name, text and link of each fact; only web addresses and this server's own paths become links."""
    rows = []
    for name, value in found.items():
        text, url = (value["text"], value["url"]) if isinstance(value, dict) else (value, None)
        shown = number(text) if isinstance(text, int | float) else text
        words = str(shown) if shown not in (None, "") else number(None)
        is_code = len(words) > 24 and " " not in words
        rows.append({"name": name, "text": words, "is_code": is_code, "url": url if _is_link(url) else None})
    return rows


def mlflow_facts(tracking_uri: str, *, run_id: str | None, model: str, version: str) -> dict[str, Link]:
    """Return facts with links, as `render_report` takes them; without links where MLflow is not a server, as with `sqlite:///`.

    Args:
        tracking_uri: `MLFLOW_TRACKING_URI`. What only the cluster can resolve stays a link that only the cluster can follow.
        run_id: of the training; None where none was recorded.
        model: its name in the registry.
        version: its number there.
    """
    base = tracking_uri.rstrip("/") if tracking_uri.startswith(("http://", "https://")) else ""
    found: dict[str, Link] = {}
    if run_id:
        found["MLflow run"] = {"text": run_id, "url": f"{base}/#/runs/{quote(run_id, safe='')}" if base else None}
    place = f"{quote(model, safe='')}/versions/{quote(version, safe='')}"
    found["registered as"] = {"text": f"{model}, version {version}", "url": f"{base}/#/models/{place}" if base else None}
    return found


def _is_link(url: object) -> bool:
    if not isinstance(url, str):
        return False
    return url.startswith(("https://", "http://")) or (url.startswith("/") and not url.startswith(("//", "/\\")))
