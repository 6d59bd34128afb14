"""What the page shows of an evaluation: plain rows, in the order in which a reader needs them. No HTML here, and no measuring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from training.format import brief, finite, number, percent, signed
from training.spec.metrics import is_lower_better
from training.spec.sections.evaluation import Evaluate

Row = dict[str, Any]

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


def decision(made: Mapping[str, Any] | None) -> Row | None:
    """Return the outcome's words and look, and its gates: what stands in the way first."""
    if made is None:
        return None
    words, look, mark = _OUTCOMES.get(str(made["outcome"]), (str(made["outcome"]), "ask", "?"))
    is_waiting = made["outcome"] == "waiting"
    gates = [
        {"gate": reason["gate"], "words": reason["words"], **_badge(reason, is_waiting=is_waiting)} for reason in made.get("reasons") or []
    ]
    order = ["bad", "ask", "warn", "good"]
    return {"words": words, "look": look, "mark": mark, "gates": sorted(gates, key=lambda gate: order.index(gate["look"]))}


def _badge(reason: Mapping[str, Any], *, is_waiting: bool = False) -> Row:
    # What the spec asks a person for is not a failure, but nothing is promoted before it.
    is_passed = reason["passed"] and reason["gate"] != "approval"
    if is_waiting and not is_passed and reason.get("severity", "fail") == "fail":
        # Time, rows or labels that a canary still lacks.
        return {"verdict": "not yet", "look": "ask", "mark": "…"}
    words, look, mark = _PASSED if is_passed else _BADGES.get(str(reason.get("severity", "fail")), _BADGES["fail"])
    return {"verdict": words, "look": look, "mark": mark}


def comparisons(evaluation: Mapping[str, Any], primary: str, rules: Evaluate) -> list[Row]:
    """Return one row for each model that the candidate is compared with, with the interval's places on a line in per cent."""
    rows = []
    for who, key in (("champion", "comparison"), ("canary", "canary_comparison")):
        found = evaluation.get(key)
        if found is None:
            continue
        gain, low, high = (finite(found.get(name)) for name in ("gain", "low", "high"))
        row: Row = {
            "who": who,
            "version": (evaluation.get(who) or {}).get("version"),
            "candidate": (evaluation.get("metrics") or {}).get(primary),
            "other": (evaluation.get(f"{who}_metrics") or {}).get(primary),
            "probability": found.get("probability"),
            "num_units": found.get("num_units"),
            "confidence": percent(rules.confidence, 0 if round(100 * rules.confidence, 6).is_integer() else 2),
            "gain": found.get("gain"),
            "low": found.get("low"),
            "high": found.get("high"),
            "about": _blocks_note(found),
            "places": None if gain is None or low is None or high is None else _places(gain, low, high),
        }
        row["words"], row["look"] = _sureness(gain, low, high)
        if (found.get("blocks") or {}).get("bounded") is False:
            row["words"], row["look"] = "not surely: the interval is unbounded, too few blocks", "warn"
        rows.append(row)
    return rows


def _blocks_note(comparison: Mapping[str, Any]) -> str:
    """Say how the interval was found; empty for older evaluations, which have that by rows alone."""
    blocks = comparison.get("blocks")
    if not isinstance(blocks, Mapping):
        return ""
    length = f"{number((finite(blocks.get('block_seconds')) or 0.0) / 3600)} h"
    lag = f"lag-1 autocorrelation {brief(blocks.get('lag1'))} of time bins"
    by_rows = f"by rows alone [{signed(comparison.get('row_low'))}, {signed(comparison.get('row_high'))}]"
    by_blocks = f"by blocks [{signed(blocks.get('low'))}, {signed(blocks.get('high'))}]"
    what = f"{number(blocks.get('num_blocks'))} blocks of {length}"
    columns = f" ({blocks['columns']})" if blocks.get("columns") else ""
    if blocks.get("too_few_blocks") is True:
        instead = {"entity": "entities", "group": "groups"}.get(str(blocks.get("clusters")))
        rest = f"{number(blocks.get('num_clusters'))} {instead}{columns} are the clusters" if instead else "there are no entities or groups"
        what = f"too few blocks: {what}, 8 required; {rest}"
    elif blocks.get("clusters") == "entity":
        what = f"{what} and {number(blocks.get('num_clusters'))} entities{columns}"
    return f"The wider of two intervals: {by_rows}; {by_blocks}, {what}, {lag}."


def alone(evaluation: Mapping[str, Any]) -> str:
    """Say why the candidate is compared with nobody."""
    baseline = evaluation.get("baseline")
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
    return f"{'better' if gain > 0 else 'worse' if gain < 0 else 'the same'}, but not surely: zero lies in the interval", "warn"


def _places(gain: float, low: float, high: float) -> dict[str, float]:
    """Return where zero, the gain and the interval's ends lie on a line from 0 to 100, zero always on it."""
    start, end = min(low, gain, 0.0), max(high, gain, 0.0)
    span = (end - start) or 1.0
    start, span = start - 0.08 * span, 1.16 * span
    return {name: round(100 * (value - start) / span, 2) for name, value in (("zero", 0.0), ("gain", gain), ("low", low), ("high", high))}


def metrics(evaluation: Mapping[str, Any], rules: Evaluate, primary: str) -> list[Row]:
    """Return a row for each metric, the primary one first, with its bound and its difference to the champion's and the canary's."""
    found = evaluation.get("metrics") or {}
    naive = baselines(evaluation, primary)["best"]
    rows = []
    for name in sorted(found, key=lambda name: name != primary):
        lower = is_lower_better(name)
        bounds = [f"at least {brief(rules.minimum[name])}"] if name in rules.minimum and not lower else []
        bounds += [f"at most {brief(limit[name])}" for limit in (rules.maximum, rules.minimum if lower else {}) if name in limit]
        row: Row = {"name": name, "is_primary": name == primary, "lower": lower, "candidate": found[name], "bound": ", ".join(bounds)}
        for who in ("champion", "canary"):
            row[who] = (evaluation.get(f"{who}_metrics") or {}).get(name)
            row[f"{who}_difference"] = _difference(found[name], row[who], lower=lower)
        row["naive"] = (naive or {}).get("metrics", {}).get(name)
        row["naive_difference"] = _difference(found[name], row["naive"], lower=lower)
        rows.append(row)
    return rows


def ranking_note(evaluation: Mapping[str, Any]) -> str:
    """Say how NDCG counts labels, ties and groups without a positive label; empty for other tasks and older evaluations."""
    found = evaluation.get("ranking")
    if not isinstance(found, Mapping):
        return ""
    left_out = f"{number(found.get('num_without_positive'))} of {number(found.get('num_groups'))} groups have no positive label"
    return f"NDCG has {found.get('gain')} gains; tied scores count by their expected value. {left_out} and are left out."


def baselines(evaluation: Mapping[str, Any], primary: str) -> Row:
    """Return the naive baselines, best on the validation rows first, the best one, and why there are none."""
    record = evaluation.get("baselines") or {}
    lower = is_lower_better(primary)

    def rank(entry: Mapping[str, Any]) -> tuple[bool, bool, float]:
        value = finite(entry.get("validation"))
        return entry["name"] != record.get("best"), value is None, (value or 0.0) * (1 if lower else -1)

    rows = sorted(record.get("found") or [], key=rank)
    names = [name for name in evaluation.get("metrics") or {} if name != primary]
    why = record.get("why_none") or f"none has {primary} on the validation rows"
    return {
        # Not for a canary: it is compared with the champion alone.
        "measured": bool(record),
        "rows": rows,
        "names": [primary, *names],
        "best": next((entry for entry in rows if entry["name"] == record.get("best")), None),
        "comparison": record.get("comparison"),
        "worse": record.get("worse") or [],
        "warnings": record.get("warnings") or [],
        "why_none": why,
    }


def _difference(new: Any, old: Any, *, lower: bool) -> Row | None:
    """Return the candidate's value less the other's, and what that means; None where either is missing."""
    first, second = finite(new), finite(old)
    if first is None or second is None:
        return None
    value = first - second
    good = -value if lower else value
    words, look = ("better", "good") if good > 0 else ("worse", "bad") if good < 0 else ("the same", "same")
    return {"value": value, "words": words, "look": look}


def slices(evaluation: Mapping[str, Any], rules: Evaluate, primary: str) -> Row:
    """Return the slices, worst first and small ones last, at most `MAX_SLICES` of them, and how many there are."""
    found: Sequence[Mapping[str, Any]] = evaluation.get("slices") or []
    lower = is_lower_better(primary)
    worst = evaluation.get("worst_slice")

    def rank(item: tuple[int, Mapping[str, Any]]) -> tuple[bool, bool, float]:
        value = finite(item[1]["candidate"])
        return bool(item[1]["is_small"]), value is None, (value or 0.0) * (-1 if lower else 1)

    rows = [
        {
            "columns": " × ".join(map(str, entry["columns"])),
            "values": " · ".join(map(str, entry["columns"].values())),
            "support": entry["support"],
            "is_small": bool(entry["is_small"]),
            "is_worst": index == worst,
            "candidate": entry["candidate"],
            "champion": entry.get("champion"),
            "difference": _slice_difference(entry, rules, lower=lower),
        }
        for index, entry in sorted(enumerate(found), key=rank)
    ]
    return {
        "rows": rows[:MAX_SLICES],
        "num_all": len(rows),
        "num_small": sum(row["is_small"] for row in rows),
        "gap": evaluation.get("slice_gap"),
        "worst": next((row for row in rows if row["is_worst"]), None),
        "why_not": _why_no_slices(rules),
    }


def _slice_difference(entry: Mapping[str, Any], rules: Evaluate, *, lower: bool) -> Row | None:
    found = _difference(entry["candidate"], entry.get("champion"), lower=lower)
    if found is not None and found["look"] == "bad" and rules.slice_drop is not None and not entry["is_small"]:
        return {**found, "words": "worse, too much"} if abs(found["value"]) > rules.slice_drop else found
    return found


def _why_no_slices(rules: Evaluate) -> str:
    if rules.slices:
        return f"The slices by {', '.join(rules.slices)} were not measured."
    return "The spec declares no columns to slice by (evaluate.slices)."


def fairness(evaluation: Mapping[str, Any], rules: Evaluate) -> Row:
    """Return the gaps of each sensitive column with their limits, and its values, the largest first."""
    columns = []
    for name, found in (evaluation.get("fairness") or {}).items():
        gaps = [
            _limited("equal-opportunity gap", found.get("equal_opportunity_gap"), rules.fairness.equal_opportunity),
            _limited("calibration gap", found.get("calibration_gap"), rules.fairness.calibration),
        ]
        values = sorted(found.get("values") or [], key=lambda value: -(finite(value["support"]) or 0.0))
        columns.append({"name": name, "gaps": gaps, "rows": values[:MAX_VALUES], "num_all": len(values)})
    why = "was not measured" if rules.sensitive else "is not measured: the spec declares no sensitive columns (evaluate.sensitive)"
    return {"columns": columns, "why_not": f"Fairness {why}."}


def _limited(name: str, value: Any, limit: float | None) -> Row:
    known = finite(value)
    is_over = limit is not None and (known is None or known > limit)
    return {"name": name, "value": value, "limit": limit, "look": "" if limit is None else "bad" if is_over else "good"}


def latency(evaluation: Mapping[str, Any], rules: Evaluate) -> list[Row]:
    """Return a row for each batch size; the spec's limits hold for one prediction (batch 1)."""
    limits = {"p50": rules.latency_ms.p50, "p95": rules.latency_ms.p95, "p99": rules.latency_ms.p99}
    rows = []
    for batch, found in (evaluation.get("latency") or {}).items():
        cells = [_limited(name, found.get(f"{name}_ms"), limit if str(batch) == "1" else None) for name, limit in limits.items()]
        rows.append({"batch": batch, "cells": cells, "rows_per_second": found.get("rows_per_second")})
    return rows


def checks(evaluation: Mapping[str, Any], rules: Evaluate, reasons: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return what is wrong with results that look good, each with the verdict of the gate of its name, if that one spoke."""
    found = evaluation.get("checks") or {}
    verdicts = {str(reason["gate"]): _badge(reason) for reason in reasons}
    rows = [
        {"name": "leakage", "words": _leakage(found.get("leakage")), "limit": f"below {brief(rules.checks.leakage)}"},
        {
            "name": "overlap",
            "words": _overlap(found.get("overlap")),
            "limit": "no limit" if rules.checks.overlap is None else f"at most {percent(rules.checks.overlap)}",
        },
        {"name": "drift", "words": _drift(found.get("drift")), "limit": f"at most {brief(rules.checks.drift)}"},
        {"name": "constant", "words": _constant(found.get("constant")), "limit": "not constant"},
    ]
    return [{**row, "badge": verdicts.get(str(row["name"]))} for row in rows] if found else []


def _leakage(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "no feature alone could be measured against the label"
    return f"the strongest feature alone is {found['feature']}: it ranks the labels with {brief(found['value'])}"


def _overlap(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "not measured: no entities are known"
    names = ", ".join(map(str, found.get("entities") or []))
    of = "" if found.get("num_test") is None else f" of {number(found['num_test'])}"
    return f"{percent(found['share'])}{of} test entities{f' ({names})' if names else ''} were trained on too"


def _drift(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "not measured: there is no champion's prediction to compare with"
    return f"population stability index of the predictions against the champion's: {brief(found['psi'])}"


def _constant(found: bool | None) -> str:
    if found is None:
        return "not measured"
    return "every prediction is the same" if found else "the predictions differ"


def importance(evaluation: Mapping[str, Any]) -> Row:
    """Return the most important features with their bars in per cent of the longest, and how many are left out."""
    found = evaluation.get("importance") or {}
    known = {str(name): finite(value) for name, value in found.items()}
    longest = max((abs(value) for value in known.values() if value is not None), default=0.0)
    rows = [
        {"name": name, "value": found[name], "width": round(100 * max(0.0, value or 0.0) / longest, 2) if longest else 0.0}
        for name, value in list(known.items())[:MAX_FEATURES]
    ]
    return {"rows": rows, "num_left_out": max(0, len(known) - MAX_FEATURES)}


def positive_class(evaluation: Mapping[str, Any], rules: Evaluate) -> str | None:
    """Return the name of the class whose probability a binary model gives, where it has one."""
    names = evaluation.get("classes") or []
    return str(names[-1]) if rules.task == "binary" and len(names) == 2 else None


def labels(evaluation: Mapping[str, Any]) -> Row | None:
    """Return how many rows of each split have no known label, and of the newest days; None where labels have no `known_at`."""
    found = evaluation.get("unknown_labels")
    if not found:
        return None
    days = list((found.get("days") or {}).items())[-MAX_DAYS:]
    return {
        "unknown": found["unknown"],
        "num_rows": found["rows"],
        "tables": [
            {"kind": kind, "rows": [{"name": name, **counts, "share": _share(counts)} for name, counts in entries]}
            for kind, entries in (("split", list((found.get("splits") or {}).items())), ("day", days))
            if entries
        ],
    }


def _share(counts: Mapping[str, Any]) -> float:
    return float(counts["unknown"] / counts["rows"]) if counts["rows"] else 0.0


def facts(found: Mapping[str, Any]) -> list[Row]:
    """Return name, text and link of each fact; only web addresses and this server's own paths become links."""
    rows = []
    for name, value in found.items():
        text, url = (value.get("text"), value.get("url")) if isinstance(value, Mapping) else (value, None)
        shown = number(text) if isinstance(text, int | float) else text
        words = str(shown) if shown not in (None, "") else number(None)
        is_code = len(words) > 24 and " " not in words
        rows.append({"name": name, "text": words, "is_code": is_code, "url": url if _is_link(url) else None})
    return rows


def _is_link(url: Any) -> bool:
    if not isinstance(url, str):
        return False
    return url.startswith(("https://", "http://")) or (url.startswith("/") and not url.startswith(("//", "/\\")))
