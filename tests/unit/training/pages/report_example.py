"""A night of made-up flights: an evaluation with everything that the page can show."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score, brier_score_loss, log_loss, roc_auc_score

from tests.unit.training.registry.good_evaluation import CHAMPION
from training.evaluation.record import EvaluationRecord
from training.pages.evaluation import EvaluationPage, render_report
from training.pages.plots import task_plots
from training.registry.gates.judging import Decision
from training.registry.ledger.reasons import Reason
from training.spec.sections.evaluation import Evaluate

CARRIERS = ("UA", "B6", "EV", "DL", "AA", "MQ", "US", "9E", "WN", "VX", "FL", "AS", "F9", "YV", "HA", "OO")
ORIGINS = ("EWR", "JFK", "LGA")
FEATURES = ("scheduled_departure_minute", "carrier", "wind_gust", "visibility", "dest", "distance", "precip", "origin", "temp", "weekday")


def rules(**changes: Any) -> Evaluate:
    """Return the spec's section."""
    section = {
        "task": "binary",
        "primary": "auc",
        "minimum": {"auc": 0.6},
        "maximum": {"log_loss": 0.6},
        "slices": ["carrier", "origin"],
        "slice_support": 100,
        "slice_drop": 0.02,
        "sensitive": ["origin"],
        "fairness": {"equal_opportunity": 0.2, "calibration": 0.03},
        "latency_ms": {"p95": 20.0, "p99": 30.0},
    }
    return Evaluate.model_validate({**section, **changes})


def page(num_rows: int = 6000, **changes: Any) -> dict[str, Any]:
    """Return what `render_report` takes, the same at every call."""
    return {**copy.deepcopy(_content(num_rows)), **changes}


def rendered(content: dict[str, Any]) -> bytes:
    """Return the page of what `page` returns."""
    made = content.get("decision")
    reasons = () if made is None else tuple(Reason(**reason) for reason in made["reasons"])
    return render_report(
        EvaluationPage(
            **{name: content[name] for name in ("pipeline", "as_of", "rules", "plots", "history", "facts") if content.get(name)},
            record=EvaluationRecord.of(content["evaluation"]),
            decision=None if made is None else Decision(outcome=made["outcome"], reasons=reasons),
        )
    )


@functools.cache
def _content(num_rows: int) -> dict[str, Any]:
    generator = np.random.default_rng(2013)
    labels, scores, old, columns = _flights(generator, num_rows)
    evaluation = _evaluation(generator, labels, scores, old, columns)
    return {
        "evaluation": evaluation,
        "pipeline": "flight_delay",
        "as_of": "2013-07-14T00:00:00+00:00",
        "rules": rules(),
        "plots": task_plots("binary", labels, {"candidate": scores, "champion": old}),
        "history": [
            {"epoch": n, "train_loss": 0.42 + 0.2 * 0.8**n, "validation_loss": 0.45 + 0.17 * 0.8**n + 0.0004 * n} for n in range(1, 41)
        ],
        "facts": {
            "MLflow run": {"text": "5e1f4c7be2a94d0f", "url": "https://mlflow.example/#/experiments/3/runs/5e1f4c7be2a94d0f"},
            "candidate weights": "sha256:" + "9c41d0" * 10,
            "dataset": "sha256:" + "07ab3e" * 10,
            "family": "boosted_trees",
            "seed": 13,
            "train rows": "2013-04-01 00:00 UTC to 2013-06-30 00:00 UTC",
            "test rows": "2013-07-07 00:00 UTC to 2013-07-14 00:00 UTC",
        },
        "decision": _decision(evaluation),
    }


def _flights(generator: np.random.Generator, num_rows: int) -> tuple[Any, Any, Any, dict[str, Any]]:
    shares = np.array([1 / (1 + rank) for rank in range(len(CARRIERS))])
    carrier = generator.choice(CARRIERS, size=num_rows, p=shares / shares.sum())
    origin = generator.choice(ORIGINS, size=num_rows, p=[0.4, 0.33, 0.27])
    lean = np.array([CARRIERS.index(name) for name in carrier]) * 0.05 + np.array([ORIGINS.index(name) for name in origin]) * 0.3
    truth = generator.normal(size=num_rows)
    labels = (generator.random(num_rows) < 1 / (1 + np.exp(1.7 - truth - lean))).astype(np.float64)

    def model(noise: float) -> Any:
        return 1 / (1 + np.exp(1.6 - 0.8 * truth - lean + noise * generator.normal(size=num_rows)))

    return labels, model(0.45), model(0.6), {"carrier": carrier, "origin": origin}


def _metrics(labels: Any, scores: Any) -> dict[str, float]:
    return {
        "log_loss": float(log_loss(labels, scores)),
        "auc": float(roc_auc_score(labels, scores)),
        "pr_auc": float(average_precision_score(labels, scores)),
        "brier": float(brier_score_loss(labels, scores)),
    }


def _slices(labels: Any, scores: Any, old: Any, columns: dict[str, Any]) -> list[dict[str, Any]]:
    keys: list[tuple[str, ...]] = [("carrier",), ("origin",), ("carrier", "origin")]
    found = []
    for key in keys:
        values = list(zip(*(columns[name] for name in key), strict=True))
        for value in sorted(set(values)):
            rows = np.array([other == value for other in values])
            two = len(np.unique(labels[rows])) == 2
            found.append(
                {
                    "columns": dict(zip(key, map(str, value), strict=True)),
                    "support": int(rows.sum()),
                    "is_small": bool(rows.sum() < 100),
                    "candidate": float(roc_auc_score(labels[rows], scores[rows])) if two else "nan",
                    "champion": float(roc_auc_score(labels[rows], old[rows])) if two else "nan",
                }
            )
    return found


def compared(gain: float, low: float, high: float, *, probability: float, num_units: int = 600) -> dict[str, Any]:
    """Return a comparison of rows whose times are unknown."""
    return {
        **{"gain": gain, "low": low, "high": high, "probability": probability, "num_units": num_units},
        **{"row_low": low, "row_high": high, "blocks": None, "decided_by": "rows"},
    }


def _evaluation(generator: np.random.Generator, labels: Any, scores: Any, old: Any, columns: dict[str, Any]) -> dict[str, Any]:
    slices = _slices(labels, scores, old, columns)
    large = [index for index, entry in enumerate(slices) if not entry["is_small"]]
    worst = min(large, key=lambda index: slices[index]["candidate"])
    new, former = _metrics(labels, scores), _metrics(labels, old)
    gain = new["auc"] - former["auc"]
    return {
        "format_version": 1,
        "version": "7",
        "candidate": {"weights_digest": "sha256:9c41", "model": "sha256:aa10", "bounds": {}},
        "champion": {**CHAMPION, "as_of": "2013-07-07T00:00:00+00:00"},
        "canary": None,
        "dataset": "sha256:07ab",
        "baseline": "champion",
        "metrics": new,
        "champion_metrics": former,
        "canary_metrics": {},
        "comparison": compared(gain, gain - 0.0046, gain + 0.0051, probability=0.999, num_units=len(labels)),
        "canary_comparison": None,
        "slices": slices,
        "worst_slice": worst,
        "slice_gap": max(slices[index]["candidate"] for index in large) - slices[worst]["candidate"],
        "fairness": {
            "origin": {
                "equal_opportunity_gap": 0.13,
                "calibration_gap": 0.041,
                "values": [
                    {"value": name, "support": int((columns["origin"] == name).sum()), "is_small": False}
                    | {"true_positive_rate": float(rate), "calibration_error": float(error)}
                    for name, rate, error in zip(ORIGINS, (0.31, 0.38, 0.44), generator.uniform(0.005, 0.046, 3), strict=True)
                ],
            }
        },
        "latency": {
            "1": {"p50_ms": 1.42, "p95_ms": 2.1, "p99_ms": 3.04, "rows_per_second": 690.2, "waited_share": 0.01},
            "256": {"p50_ms": 6.8, "p95_ms": 7.9, "p99_ms": 11.2, "rows_per_second": 36120.0, "waited_share": 0.01},
        },
        "checks": {
            "leakage": {"feature": "scheduled_departure_minute", "value": 0.641},
            "overlap": {"entities": ["tailnum"], "share": 0.8731, "num_test": 2210},
            "drift": {"psi": 0.0312},
            "constant": False,
        },
        "importance": {name: float(0.09 * 0.7**rank) - 0.002 for rank, name in enumerate(FEATURES)},
        "num_rows": len(labels),
        "num_units": len(labels),
    }


def _decision(evaluation: dict[str, Any]) -> dict[str, Any]:
    auc, gain = evaluation["metrics"]["auc"], evaluation["comparison"]["gain"]
    reasons = [
        {"gate": "finite", "passed": True, "severity": "fail", "words": f"auc is {auc:.6g}"},
        {"gate": "minimum", "passed": True, "severity": "fail", "words": f"auc {auc:.6g}, required >= 0.6"},
        {"gate": "improvement", "passed": True, "severity": "fail", "words": f"auc better by {gain:+.6g}, required > 0"},
        {"gate": "significance", "passed": True, "severity": "fail", "words": "95% interval of the gain, lower end > 0 required"},
        {"gate": "leakage", "passed": True, "severity": "fail", "words": "the strongest feature alone reaches 0.641, required < 0.98"},
        {"gate": "overlap", "passed": False, "severity": "warn", "words": "87.3 % of the test rows' tailnum are in the training rows"},
        {"gate": "fairness", "passed": False, "severity": "approve", "words": "origin: calibration gap 0.041, required <= 0.03"},
    ]
    return {"outcome": "needs_approval", "reasons": reasons}
