"""An evaluation that passes every gate, and ways to change it and to judge it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from training.errors import DataError
from training.evaluation.record import EvaluationRecord
from training.registry.gates.judging import Decision
from training.registry.gates.judging import decide as decide_record
from training.runtime.provenance import CHECKOUT
from training.spec import load_spec
from training.spec.sections.evaluation import Evaluate
from training.spec.sections.promotion import Promote

RANKING = load_spec(CHECKOUT / "dags/pipelines/search_ranking.yaml").evaluate
"""ndcg@10 at least 0.3, better by more than 0.5 % of the champion's, lower end of the interval above zero."""
ALL = Evaluate.model_validate(
    {
        "task": "binary",
        "primary": "auc",
        "metrics": {"revenue": "shop.metrics:revenue"},
        "minimum": {"auc": 0.6},
        "maximum": {"log_loss": 0.7},
        "slices": ["carrier", "origin"],
        "slice_drop": 0.02,
        "sensitive": ["origin"],
        "fairness": {"equal_opportunity": 0.1, "calibration": 0.05},
        "latency_ms": {"p50": 5, "p95": 10, "p99": 20},
        "checks": {"overlap": 0.2},
    }
)
"""Every gate there is."""
WITH_CANARY = Promote.model_validate({"model": "delays", "canary": {}})
BLOCKS = {
    **{"low": 0.002, "high": 0.018, "clusters": "time", "columns": "", "num_clusters": 14, "num_blocks": 14, "block_seconds": 86400.0},
    **{"automatic_seconds": 3600.0, "lag1": 0.1, "bin_seconds": 1800.0, "too_few_blocks": False, "bounded": True},
}
BETTER = {
    **{"gain": 0.01, "low": 0.001, "high": 0.02, "probability": 0.99, "num_units": 900, "row_low": 0.001, "row_high": 0.02},
    **{"decided_by": "rows", "blocks": BLOCKS},
}
CHAMPION = {
    "version": "6",
    "model_uri": "file:///m",
    "weights_digest": "w",
    "as_of": "2026-03-01T00:00:00+00:00",
    "bounds": {},
    "revision": 3,
}
PRIOR = {"name": "prior", "about": "class frequencies", "validation": 0.5, "coverage": 1.0}
GOOD: dict[str, Any] = {
    "format_version": 1,
    "version": "7",
    "champion": CHAMPION,
    "canary": {**CHAMPION, "version": "5"},
    "baseline": "champion",
    "metrics": {"auc": 0.71, "log_loss": 0.5, "revenue": 12.0},
    "champion_metrics": {"auc": 0.70, "log_loss": 0.51, "revenue": 11.0},
    "comparison": {**BETTER},
    "canary_comparison": {**BETTER},
    "slices": [
        {"columns": {"carrier": "UA"}, "support": 812, "is_small": False, "candidate": 0.71, "champion": 0.70},
        {"columns": {"origin": "JFK"}, "support": 400, "is_small": False, "candidate": 0.69, "champion": 0.70},
        {"columns": {"carrier": "UA", "origin": "LGA"}, "support": 7, "is_small": True, "candidate": 0.1, "champion": 0.9},
    ],
    "fairness": {
        "origin": {
            "equal_opportunity_gap": 0.05,
            "calibration_gap": 0.01,
            "values": [
                {"value": value, "support": 400, "is_small": False, "true_positive_rate": 0.7, "calibration_error": 0.02}
                for value in ("JFK", "LGA")
            ],
        }
    },
    "latency": {"1": {"p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 3.0, "rows_per_second": 900.0, "waited_share": 0.01}},
    "checks": {
        "leakage": {"feature": "distance", "value": 0.6},
        "overlap": {"entities": ["tail"], "share": 0.1, "num_test": 900},
        "drift": {"psi": 0.03},
        "constant": False,
    },
    "baselines": {
        "why_none": None,
        "best": "prior",
        "found": [
            {
                "name": "prior",
                "about": "class frequencies",
                "validation": 0.5,
                "coverage": 1.0,
                "metrics": {"auc": 0.5, "log_loss": 0.6, "revenue": 3.0},
            }
        ],
        "comparison": {**BETTER, "gain": 0.21, "low": 0.2, "high": 0.22},
        "worse": [],
    },
    "num_rows": 900,
}
"""Passes every gate of `ALL`."""
GATES = (
    *("finite", "minimum", "maximum", "constant", "naive_baseline", "baseline", "improvement", "significance", "slices", "drift"),
    *("fairness", "fairness", "latency", "latency", "latency", "leakage", "overlap", "canary"),
)
NEEDED: tuple[tuple[str | int, ...], ...] = (
    *(("metrics", name) for name in ("auc", "log_loss", "revenue")),
    ("champion_metrics", "auc"),
    *(("comparison", name) for name in ("gain", "low", "high")),
    *(("canary_comparison", name) for name in ("low", "high")),
    *(("slices", index, name) for index in (0, 1) for name in ("candidate", "champion")),
    *(("fairness", "origin", name) for name in ("equal_opportunity_gap", "calibration_gap")),
    *(("latency", "1", f"{name}_ms") for name in ("p50", "p95", "p99")),
    *(("checks", *path) for path in (("leakage", "value"), ("overlap", "share"), ("drift", "psi"), ("constant",))),
)
"""Every number that some rule of `ALL` needs."""


def decide(evaluation: dict[str, Any], rules: Evaluate, **others: Any) -> Decision:
    return decide_record(EvaluationRecord.of(evaluation), rules, **others)


def changed(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """`GOOD` with another value at `path`."""
    evaluation = copy.deepcopy(GOOD)
    place: Any = evaluation
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return evaluation


def without(path: tuple[str | int, ...]) -> dict[str, Any]:
    """`GOOD` without what is at `path`."""
    evaluation = copy.deepcopy(GOOD)
    place: Any = evaluation
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return evaluation


def judged(evaluation: dict[str, Any], *, severity: dict[str, str] | None = None, approval: str = "automatic", **rules: Any) -> Decision:
    spec = Evaluate.model_validate({**ALL.model_dump(mode="json"), **rules, "severity": severity or {}})
    return decide(evaluation, spec, approval=approval, promote=WITH_CANARY)


def is_refused(evaluation: dict[str, Any], severity: dict[str, str], approval: str = "automatic") -> bool:
    """Return whether the gates reject, or the file cannot be read at all."""
    try:
        return judged(evaluation, severity=severity, approval=approval).outcome == "rejected"
    except DataError as err:
        return err.code == "evaluation.damaged"


def failed(decision: Decision) -> list[str]:
    return [reason.gate for reason in decision.reasons if not reason.passed]


def prefixes(path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    yield from (path[:length] for length in range(1, len(path) + 1))
