"""How often to retrain a model: what a rhythm costs in a year, and what a champion loses with age instead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist, median
from typing import Any, Final

from sqlalchemy import select

from training.contracts import instant_of
from training.database.connect import reading
from training.database.schema import LedgerDecisionRow
from training.format import finite
from training.registry.ledger.ledger import Ledger
from training.spec.descriptors.metrics import is_lower_better

KEY: Final = "retraining"
"""Of a decision's evidence: `primary`, `currency`, and `run_cost`, which is None where it is not known."""
USED: Final = (KEY, "as_of", "champion", "champion_metrics", "metrics")
"""Of a decision's evidence: the rest, its slices above all, is most of the text, and stays in the database."""
RHYTHMS: Final[Mapping[str, tuple[int, float]]] = {"weekly": (52, 7.0), "daily": (365, 1.0), "hourly": (8760, 1 / 24)}
"""Rhythm to (runs a year, days between two runs)."""
MAX_RUNS: Final = 400
"""The newest, that are looked at."""
MIN_RUNS: Final = 7
"""Fewer say nothing about decay: a week has weekdays and a weekend in it."""
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class LaterRun:
    """How a champion did on the test rows of a later run."""

    age_days: float
    """From the run that it was trained in to this one."""
    champion: float
    """Its primary metric."""
    candidate: float | None = None
    """That of the model trained in this run, on the same rows: some runs are harder than others, for both."""
    weights_digest: str = ""
    """The champion's: only runs of the same champion are compared with each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decay:
    """How much worse a champion gets with every day, in the metric's units; positive is worse."""

    per_day: float
    low: float
    high: float
    """Ends of the 95 % interval."""
    num_runs: int
    oldest_days: float
    """Greatest age that was measured."""


def retraining_lines(ledger: Ledger, model: str) -> list[str]:
    """Return what weekly, daily and hourly retraining of a model costs and gains, in words; nothing where no candidate was decided on.

    The loss by age is the decay per day times the champion's mean age, which takes decay for a straight line and every run for a new
    champion: both flatter frequent retraining.
    """
    evidence = [found for found in _newest_evidence(ledger, model) if found[KEY] is not None]
    if not evidence:
        return []
    known = evidence[0][KEY]
    primary, price, currency = known["primary"], known["run_cost"], known["currency"]
    runs = [run for found in evidence if (run := _later_run(found, primary)) is not None]
    found = decay(runs, is_lower_better=is_lower_better(primary))
    lines = [_decay_line(primary, len(runs), found)]
    for rhythm, (runs_per_year, days_between) in RHYTHMS.items():
        cost = "" if price is None else f", {_money(runs_per_year * price, currency)} a year"
        age_days = days_between / 2
        lost = "" if found is None else f"; {primary} worse than fresh by {age_days * found.per_day:.3g} at the champion's mean age"
        lines.append(f"{rhythm}: {runs_per_year} runs{cost}{lost}")
    if price is None:
        lines.append("what a run costs is not known: set costs.run, or costs.hour, in the YAML")
    return lines


def decay(runs: Sequence[LaterRun], *, is_lower_better: bool) -> Decay | None:
    """Return how fast champions get worse, None for too few runs.

    The median of the slopes between any two runs of the same champion (Theil, 1950; Sen, 1968; over several champions: Hirsch, Slack and
    Smith, 1982), so that single odd runs count for little. The interval is Sen's, by the variance of Kendall's S without ties. Where each
    run has a candidate, the champion is measured against it, so that hard and easy runs cancel.
    """
    is_paired = all(run.candidate is not None for run in runs)
    sign = 1.0 if is_lower_better else -1.0
    slopes: list[float] = []
    variance, used = 0.0, 0
    for weights in {run.weights_digest: None for run in runs}:
        own = [run for run in runs if run.weights_digest == weights]
        worse = [(run.age_days, sign * (run.champion - ((run.candidate or 0.0) if is_paired else 0.0))) for run in own]
        slopes += [(late - early) / (end - start) for (start, early), (end, late) in combinations(worse, 2) if start != end]
        variance += len(own) * (len(own) - 1) * (2 * len(own) + 5) / 18
        used += len(own) if len(own) > 1 else 0
    slopes.sort()
    reach = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * math.sqrt(variance)
    lowest, highest = round((len(slopes) - reach) / 2) - 1, round((len(slopes) + reach) / 2)
    if used < MIN_RUNS or lowest < 0 or highest >= len(slopes):
        return None
    return Decay(
        per_day=median(slopes),
        low=slopes[lowest],
        high=slopes[highest],
        num_runs=used,
        oldest_days=max(run.age_days for run in runs),
    )


def _newest_evidence(ledger: Ledger, model: str) -> list[Mapping[str, Any]]:
    """Return `USED` of the newest decisions of runs, None for what one has not."""
    parts = (LedgerDecisionRow.evidence[name].label(name) for name in USED)
    of_runs = (LedgerDecisionRow.model == model, LedgerDecisionRow.request_key.is_(None))
    asked = select(*parts).where(*of_runs).order_by(LedgerDecisionRow.id.desc()).limit(MAX_RUNS)
    with reading(ledger.engine) as session:
        return [row._asdict() for row in session.execute(asked)]


def _later_run(evidence: Mapping[str, Any], primary: str) -> LaterRun | None:
    champion, old, new = (evidence[name] or {} for name in ("champion", "champion_metrics", "metrics"))
    value = finite(old.get(primary))
    if value is None:
        return None
    age = instant_of(evidence["as_of"]) - instant_of(champion["as_of"])
    return LaterRun(
        age_days=age.total_seconds() / 86_400,
        champion=value,
        candidate=finite(new.get(primary)),
        weights_digest=champion["weights_digest"],
    )


def _decay_line(primary: str, num_runs: int, found: Decay | None) -> str:
    if found is None:
        return (
            f"decay: too few runs to say ({num_runs} measured; {MIN_RUNS} or more are needed in which a champion met rows of later runs, "
            "and two or more of the same champion each)"
        )
    slope = f"{found.per_day:+.3g} a day (95 % interval {found.low:+.3g} to {found.high:+.3g})"
    shown = "" if found.low > 0 else "; the interval is not above zero, so no decay is shown"
    return f"decay: {primary} gets worse by {slope}, in {found.num_runs} runs at ages up to {found.oldest_days:.3g} days{shown}"


def _money(amount: float, currency: str) -> str:
    return f"{amount:,.0f} {currency}" if amount >= 100 or amount == round(amount) else f"{amount:,.2f} {currency}"
