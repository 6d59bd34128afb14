"""How often to retrain: what it would cost, and what metric staleness costs instead.

Pure functions: drift, the champion's decay over later runs, and the price of a run go in, lines for people and their numbers come out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Final

import numpy as np

from training.format import finite
from training.spec.metrics import is_lower_better
from training.spec.models import Costs

RHYTHMS: Final[Mapping[str, tuple[int, float]]] = {"weekly": (52, 7.0), "daily": (365, 1.0), "hourly": (8760, 1 / 24)}
"""Rhythm to (runs a year, days between two runs)."""
MIN_NIGHTS: Final = 7
"""Fewer say nothing about decay: a week has weekdays and a weekend in it."""
CONFIDENCE: Final = 0.95
STABLE_PSI, SHIFTED_PSI = 0.1, 0.25
"""Customary bounds of the population stability index (Siddiqi, Credit Risk Scorecards, 2006): as before below, changed above."""
MAX_NAMED: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Night:
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
    num_nights: int
    oldest_days: float
    """Greatest age that was measured."""
    is_paired: bool
    """Measured against each run's own candidate, so that hard and easy runs cancel."""

    @property
    def is_shown(self) -> bool:
        """Whether the whole interval is above zero."""
        return self.low > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One rhythm of retraining."""

    rhythm: str
    runs_per_year: int
    mean_age_days: float
    """Of the champion, if every run makes one: half of the time between two."""
    cost_per_year: float | None
    """In the currency of the spec's costs; None: the cost of a run is not configured."""
    metric_lost: float | None
    """How much worse than a fresh model, on average over the year; None: not known."""
    metric_lost_low: float | None
    metric_lost_high: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    lines: tuple[str, ...]
    """For people."""
    options: tuple[Option, ...]
    """From the rarest to the most frequent."""
    decay: Decay | None
    """None: too few runs to say."""


def retrain_advice(
    primary: str,
    nights: Sequence[Night],
    costs: Costs,
    *,
    process_hours: float | None = None,
    drift: Mapping[str, float] | None = None,
) -> Advice:
    """Say what weekly, daily and hourly retraining would cost and gain.

    The metric that staleness costs is the decay per day times the champion's mean age, which takes decay for a straight line and every run
    for a new champion: both flatter frequent retraining.

    Args:
        primary: the metric.
        nights: what later evaluations said of champions; runs without a finite number are left out.
        costs: the spec's section.
        process_hours: hours of one run, summed over its processes; only where `costs.run` is absent.
        drift: name of a feature (or of the predictions) to its population stability index, between the champion's training data and now.
    """
    found = decay(primary, nights)
    price = run_cost(costs, process_hours)
    options = tuple(_option(rhythm, price, found) for rhythm in RHYTHMS)
    lines = [_drift_line(drift), _decay_line(primary, nights, found)]
    lines += [_option_line(option, primary, price, costs.currency) for option in options]
    if price is None:
        lines.append("What a run costs is not known: set costs.run, or costs.hour, in the spec.")
    elif found is not None and found.is_shown:
        lines += [_step_line(rarer, oftener, primary, costs.currency) for rarer, oftener in pairwise(options)]
        lines.append(_caveat(found))
    else:
        lines.append("Nothing that was measured says that a higher cost buys a better model.")
    return Advice(lines=tuple(lines), options=options, decay=found)


def run_cost(costs: Costs, process_hours: float | None = None) -> float | None:
    """Return what one run costs, in `costs.currency`; None where neither the spec nor the clock says."""
    if costs.run is not None:
        return costs.run
    return None if costs.hour is None or process_hours is None else costs.hour * process_hours


def decay(primary: str, nights: Sequence[Night]) -> Decay | None:
    """Return how fast champions get worse, None for too few nights.

    The median of the slopes between any two runs of the same champion (Theil, 1950; Sen, 1968; over several champions: Hirsch, Slack and
    Smith, 1982), so that single odd runs count for little. The interval is Sen's, by the variance of Kendall's S without ties.
    """
    known = [night for night in nights if _is_number(night.champion) and _is_number(night.age_days)]
    is_paired = bool(known) and all(_is_number(night.candidate) for night in known)
    sign = 1.0 if is_lower_better(primary) else -1.0
    slopes, variance, used = [], 0.0, 0
    for weights in {night.weights_digest: None for night in known}:
        own = [night for night in known if night.weights_digest == weights]
        ages = np.array([night.age_days for night in own])
        worse = sign * np.array([night.champion - ((night.candidate or 0.0) if is_paired else 0.0) for night in own])
        first, second = np.triu_indices(len(own), 1)
        apart = ages[first] != ages[second]
        first, second = first[apart], second[apart]
        slopes.append((worse[second] - worse[first]) / (ages[second] - ages[first]))
        variance += len(own) * (len(own) - 1) * (2 * len(own) + 5) / 18
        used += len(own) if len(own) > 1 else 0
    ordered = np.sort(np.concatenate(slopes)) if slopes else np.empty(0)
    reach = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * math.sqrt(variance)
    lowest, highest = round((len(ordered) - reach) / 2) - 1, round((len(ordered) + reach) / 2)
    if used < MIN_NIGHTS or lowest < 0 or highest >= len(ordered):
        return None
    return Decay(
        per_day=float(np.median(ordered)),
        low=float(ordered[lowest]),
        high=float(ordered[highest]),
        num_nights=used,
        oldest_days=max(night.age_days for night in known),
        is_paired=is_paired,
    )


def _is_number(value: object) -> bool:
    """Evaluations write what is not finite as a word."""
    return finite(value) is not None


def _option(rhythm: str, price: float | None, found: Decay | None) -> Option:
    runs_per_year, days_between = RHYTHMS[rhythm]
    mean_age_days = days_between / 2
    lost = [None, None, None] if found is None else [mean_age_days * slope for slope in (found.per_day, found.low, found.high)]
    return Option(
        rhythm=rhythm,
        runs_per_year=runs_per_year,
        mean_age_days=mean_age_days,
        cost_per_year=None if price is None else runs_per_year * price,
        metric_lost=lost[0],
        metric_lost_low=lost[1],
        metric_lost_high=lost[2],
    )


def _drift_line(drift: Mapping[str, float] | None) -> str:
    known = {name: value for name, value in (drift or {}).items() if _is_number(value)}
    if not known:
        return "Drift since the champion's training data: not measured."
    worst = sorted(known, key=lambda name: (-known[name], name))[:MAX_NAMED]
    named = ", ".join(f"{name} {known[name]:.2f}" for name in worst)
    if known[worst[0]] < STABLE_PSI:
        verdict = "the data are as before"
    elif known[worst[0]] <= SHIFTED_PSI:
        verdict = "some of the data have moved"
    else:
        shifted = sum(value > SHIFTED_PSI for value in known.values())
        verdict = f"{shifted} of {len(known)} above {SHIFTED_PSI}: another population than the champion learned from"
    return f"Drift since the champion's training data (PSI, largest first): {named}; {verdict}."


def _decay_line(primary: str, nights: Sequence[Night], found: Decay | None) -> str:
    if found is None:
        return (
            f"Decay: too few runs to say ({len(nights)} measured; {MIN_NIGHTS} or more are needed in which a champion met rows of later "
            "runs, and two or more of the same champion each). What retraining more often would gain is not known."
        )
    against = "each run's new model on the same rows" if found.is_paired else "itself in earlier runs, hard and easy runs mixed in"
    slope = f"{found.per_day:+.3g} a day (95 % interval {found.low:+.3g} to {found.high:+.3g})"
    verdict = "" if found.is_shown else "; the interval is not above zero, so no decay is shown"
    return f"Decay: with age the champion's {primary} gets worse by {slope}, {found.num_nights} runs against {against}{verdict}."


def _option_line(option: Option, primary: str, price: float | None, currency: str) -> str:
    runs = f"{option.runs_per_year} runs"
    cost = f"{runs} a year" if price is None else f"{_money(option.cost_per_year, currency)} a year ({runs} at {_money(price, currency)})"
    age = f"{option.mean_age_days:.2g} days" if option.mean_age_days >= 0.1 else f"{24 * option.mean_age_days:.2g} hours"
    lost = "what staleness costs is not known"
    if option.metric_lost is not None:
        lost = f"{primary} worse than fresh by {option.metric_lost:.3g} ({option.metric_lost_low:.3g} to {option.metric_lost_high:.3g})"
    return f"{option.rhythm.capitalize()}: {cost}; mean age {age}, {lost}."


def _step_line(rarer: Option, oftener: Option, primary: str, currency: str) -> str:
    more = (oftener.cost_per_year or 0.0) - (rarer.cost_per_year or 0.0)
    gained = (rarer.metric_lost or 0.0) - (oftener.metric_lost or 0.0)
    steps = f"{oftener.rhythm.capitalize()} instead of {rarer.rhythm}"
    price = f"{_money(more / gained / 1000, currency)} a year for each 0.001"
    return f"{steps}: {_money(more, currency)} a year more, {primary} better by {gained:.3g} on average; {price}."


def _caveat(found: Decay) -> str:
    return (
        f"Measured at ages up to {found.oldest_days:.3g} days; within a day, and beyond those ages, decay is taken for a straight line, "
        "and every run for a new champion: both flatter frequent retraining."
    )


def _money(value: float | None, currency: str) -> str:
    amount = value or 0.0
    return f"{amount:,.0f} {currency}" if amount >= 100 or amount == round(amount) else f"{amount:,.2f} {currency}"
