"""How often equal models are promoted, and equal canaries rolled back, when rows depend on their neighbours: the whole procedure.

Every cell is a number of days of test rows and a lag-1 autocorrelation of the difference of losses; bins are half-hours or hours, so
that blocks, their length included, are chosen as a night chooses them, and the gate decides. Both models are equally good: what
makes one better in some hours makes the other better in as many others. A cell fails where the one-sided 95 % upper bound of false
promotions (Clopper and Pearson) is above 5 %.

The bootstrap over rows is left out where the interval by blocks alone refuses, because the wider interval decides.

python benchmarks/gate_errors.py [--comparisons 2000] [--seed 0] [--only PART_OF_A_NAME ...]
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.stats import binomtest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.scored import CHAMPION, compare, pair
from training.evaluation.bootstrap.blocks import Origins, block_interval
from training.evaluation.bootstrap.influence import Influence
from training.evaluation.bootstrap.sequential import alarm_of
from training.evaluation.metrics.metric import OwnMetric
from training.evaluation.record import Comparison, EvaluationRecord, Leakage, PredictionDrift, ResultChecks
from training.registry.gates.judging import decide, judge_canary
from training.spec.descriptors.metrics import is_metric
from training.spec.sections.evaluation import Evaluate
from training.spec.sections.promotion import Canary

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

CONFIDENCE, LIMIT = 0.95, 0.05
DAYS, LAG1 = (2, 3, 7, 14, 30), (0.0, 0.3, 0.55, 0.9)
NUM_COMPARISONS, NUM_CANARIES, NUM_POWER = 2000, 2000, 200
DAY_MICROSECONDS = 86_400_000_000
START = datetime(2026, 3, 2, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Rows with both models' scores."""

    metric: str
    labels: Floats
    candidate: Floats
    champion: Floats
    origins: Origins
    groups: Codes | None = None
    own: OwnMetric | None = None


def series(generator: np.random.Generator, length: int, lag1: float) -> Floats:
    """Return an autoregressive series of variance 1, [length]."""
    noise = generator.standard_normal(length + 200)
    return np.asarray(lfilter([np.sqrt(1 - lag1**2)], [1, -lag1], noise)[200:])


def half_hourly(days: int, lag1: float, gain: float, seed: int) -> Trial:
    """One series, a row each half-hour: electricity demand."""
    generator = np.random.default_rng([seed, days, round(100 * lag1), 1])
    return _errors(series(generator, 48 * days, lag1) + gain, times=np.arange(48 * days) * DAY_MICROSECONDS // 48)


def good_and_bad_days(days: int, lag1: float, gain: float, seed: int) -> Trial:
    """The same with a tenth of the variance from days that are good for one model and bad for the other."""
    generator = np.random.default_rng([seed, days, round(100 * lag1), 2])
    daily = np.repeat(generator.standard_normal(days), 48)
    difference = np.sqrt(0.9) * series(generator, 48 * days, lag1) + np.sqrt(0.1) * daily
    return _errors(difference + gain, times=np.arange(48 * days) * DAY_MICROSECONDS // 48)


def daily(days: int, lag1: float, gain: float, seed: int) -> Trial:
    """One row a day: the autocorrelation is that between days."""
    generator = np.random.default_rng([seed, days, round(100 * lag1), 3])
    return _errors(series(generator, days, lag1) + gain, times=np.arange(days) * DAY_MICROSECONDS)


def entities(days: int, lag1: float, gain: float, seed: int) -> Trial:
    """Sixty entities of unequal size (Zipf) with effects of their own, at random times, under shocks of the hour that all share."""
    generator = np.random.default_rng([seed, days, round(100 * lag1), 4])
    size = 120 * days
    shares = 1 / np.arange(1, 61)
    codes = generator.choice(60, size, p=shares / shares.sum())
    times = np.sort(generator.integers(0, days * DAY_MICROSECONDS, size))
    hourly = series(generator, 24 * days, lag1)[times * 24 // DAY_MICROSECONDS]
    own = 0.3 * generator.standard_normal(60)[codes]
    return _errors(generator.standard_normal(size) + 0.5 * hourly + own + gain, times=times, codes=codes)


def panel(days: int, lag1: float, gain: float, seed: int) -> Trial:
    """Blocks of unequal size: one to forty rows at the same hour, under shocks that all rows of the hour share."""
    generator = np.random.default_rng([seed, days, round(100 * lag1), 5])
    counts = 1 + generator.geometric(0.2, 24 * days).clip(max=39)
    hour = np.repeat(np.arange(24 * days), counts)
    difference = series(generator, 24 * days, lag1)[hour] + generator.standard_normal(len(hour))
    return _errors(difference + gain, times=hour * DAY_MICROSECONDS // 24)


def of_metric(metric: str) -> Callable[[int, float, float, int], Trial]:
    """Return a draw for any metric: each hour's shock makes one model stronger and the other as much weaker."""

    def draw(days: int, lag1: float, gain: float, seed: int) -> Trial:
        generator = np.random.default_rng([seed, days, round(100 * lag1), 6])
        hour = np.repeat(np.arange(24 * days), 10)
        shock = 0.5 * series(generator, 24 * days, lag1)[hour]
        size = len(hour)
        labels = (generator.random(size) < 0.3).astype(np.float64)
        both = generator.standard_normal(size)
        noises = [0.8 * both + 0.6 * generator.standard_normal(size) for _ in range(2)]
        if is_metric("regression", metric):
            errors = [np.exp(sign * (0.3 * shock + gain / 2)) * noise for sign, noise in zip((-1, 1), noises, strict=True)]
            scores = [labels + error for error in errors]
        else:
            scores = [
                1 / (1 + np.exp(1 - (1 + sign * (shock + gain / 2)) * 2 * (labels - 0.3) - noise))
                for sign, noise in zip((1, -1), noises, strict=True)
            ]
        own = (lambda truth, some, _: -float(np.mean((truth - some) ** 2))) if metric == "profit" else None
        groups = hour if "@" in metric or metric == "mrr" else None
        origins = Origins(microseconds=hour * (DAY_MICROSECONDS // 24), entities={})
        return Trial(metric=metric, labels=labels, candidate=scores[0], champion=scores[1], origins=origins, groups=groups, own=own)

    return draw


def _errors(difference: Floats, *, times: Codes, codes: Codes | None = None) -> Trial:
    """Return rows whose losses differ by `difference`, positive where the candidate is better."""
    origins = Origins(microseconds=times.astype(np.int64), entities={} if codes is None else {"customer": codes})
    half = 0.5 * difference
    # `loss` is a plain mean, so that next to nothing but the procedure takes time.
    return Trial(metric="loss", labels=np.ones(len(half)), candidate=50 - half, champion=50 + half, origins=origins)


def is_promoted(trial: Trial, seed: int, block: str = "1d") -> bool:
    """Return whether the gates promote the candidate."""
    rules = _rules(trial.metric, block)
    least_seconds = rules.block.total_seconds()
    found = pair(trial.metric, trial.labels, trial.candidate, trial.champion, trial.groups, own=trial.own).influence()
    if found is None or found[0] <= 0:
        return False
    by_blocks = block_interval(found[1], trial.origins, trial.groups, gain=found[0], confidence=CONFIDENCE, least_seconds=least_seconds)
    if not by_blocks.low > 0:
        return False
    comparison = compare(
        trial.metric,
        trial.labels,
        trial.candidate,
        trial.champion,
        trial.groups,
        confidence=CONFIDENCE,
        seed=seed,
        own=trial.own,
        origins=trial.origins,
        least_seconds=least_seconds,
    )
    record = EvaluationRecord(
        format_version=1,
        champion=CHAMPION,
        baseline="champion",
        metrics={"rmse": 0.5, "bias": 0.0, rules.primary: 0.5},
        champion_metrics={rules.primary: 0.5},
        comparison=comparison,
        checks=ResultChecks(constant=False, drift=PredictionDrift(psi=0.0), leakage=Leakage(feature="x", value=0.6)),
    )
    return decide(record, rules, approval="automatic").outcome == "accepted"


def share_promoted(
    draw: Callable[[int, float, float, int], Trial], days: int, lag1: float, *, seeds: range, gain: float = 0.0, block: str = "1d"
) -> int:
    """Return how many candidates, one of each seed, are promoted; `gain` is in standard deviations of a row's difference."""
    return sum(is_promoted(draw(days, lag1, gain, seed), seed, block) for seed in seeds)


def upper_bound(count: int, num: int) -> float:
    """Return Clopper and Pearson's one-sided 95 % upper bound of a share."""
    return float(binomtest(count, num, alternative="less").proportion_ci(0.95, method="exact").high)


def canary_is_rolled_back(lag1: float, gain: float, seed: int, *, batches: bool = False) -> int | None:
    """Return the hour of the look at which a canary's alarm rolls it back, None for never within three days.

    Rows arrive by the hour, more by day than by night, and each hour is looked at; `batches`: once a day, from sixty customers.
    """
    generator = np.random.default_rng([seed, round(100 * lag1), 7])
    hours = np.repeat(np.arange(72), 2 + generator.poisson(6 * (1 + np.sin(np.arange(72) / 24 * 2 * np.pi))))
    shared = 0.0 if batches else series(generator, 72, lag1)[hours]
    customers = generator.integers(0, 60, len(hours))
    difference = 0.7 * shared + generator.standard_normal(len(hours)) + 0.3 * generator.standard_normal(60)[customers] + gain
    rules, canary = _rules("loss", "1d"), Canary.model_validate({"support": 10**6})
    for look in (24, 48, 72) if batches else range(1, 73):
        now = hours < look
        mean = float(difference[now].mean())
        influence = Influence(rows=None, num_units=int(now.sum()), values=difference[now] - mean)
        times = hours[now] // 24 * DAY_MICROSECONDS if batches else hours[now] * (DAY_MICROSECONDS // 24)
        origins = Origins(microseconds=times, entities={"customer": customers[now]})
        record = EvaluationRecord(
            format_version=1,
            baseline="champion",
            metrics={"loss": 1.0},
            champion_metrics={"loss": 1.0},
            comparison=Comparison(
                gain=mean, low=mean, high=mean, probability=0.5, num_units=1, row_low=mean, row_high=mean, blocks=None, decided_by="rows"
            ),
            alarm=alarm_of(mean, influence, origins, None, confidence=CONFIDENCE),
            num_rows=int(now.sum()),
        )
        if judge_canary(record, canary, rules=rules, since=START, now=START + timedelta(hours=look)).outcome == "roll_back":
            return look
    return None


@functools.cache
def _rules(metric: str, block: str) -> Evaluate:
    # The gates are told of `profit` as of any metric; only its own function is called.
    return Evaluate.model_validate({"task": _task(metric), "primary": "auc" if metric == "profit" else metric, "block": block})


def _task(metric: str) -> str:
    if metric == "loss":
        return "language"
    if "@" in metric or metric == "mrr":
        return "ranking"
    return "regression" if is_metric("regression", metric) else "binary"


SCENES: tuple[tuple[str, Callable[[int, float, float, int], Trial], str, float], ...] = (
    ("half-hourly series", half_hourly, "1d", 0.3),
    ("half-hourly, block: 30m", half_hourly, "30m", 0.3),
    ("good and bad days", good_and_bad_days, "1d", 0.3),
    ("one row a day", daily, "1d", 1.0),
    ("unequal entities", entities, "1d", 0.3),
    ("unequal hours", panel, "1d", 0.3),
)
"""Name, draw, `evaluate.block`, and the gain of the power in standard deviations of a row."""
OF_METRICS = ("auc", "pr_auc", "f1", "calibration_error", "rmse", "median_absolute_error", "ndcg@10", "mrr", "profit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=NUM_COMPARISONS, help="in a cell")
    parser.add_argument("--seed", type=int, default=0, help="first seed: another one gives other draws")
    parser.add_argument("--only", nargs="*", default=[""], help="cells whose name has this part; 'canary' for the canaries")
    given = parser.parse_args()
    started, failures = time.monotonic(), 0
    seeds = range(given.seed, given.seed + given.comparisons)

    def is_wanted(name: str) -> bool:
        return any(part in name for part in given.only)

    print(
        f"false promotions of equal models, {len(seeds)} comparisons in a cell, seeds from {given.seed}; "
        f"the 95 % upper bound may be 5 %; power: {NUM_POWER} in a cell"
    )
    print(f"{'rows':<26}{'days':>5}{'lag-1':>7}{'promoted':>10}{'upper bound':>13}{'true gain':>11}{'power':>8}")

    def cell(name: str, draw: Callable[[int, float, float, int], Trial], block: str, gain: float, days: int, lag1: float) -> int:
        promoted = share_promoted(draw, days, lag1, seeds=seeds, block=block)
        power = share_promoted(draw, days, lag1, seeds=seeds[:NUM_POWER], gain=gain, block=block) / len(seeds[:NUM_POWER])
        bound = upper_bound(promoted, len(seeds))
        line = f"{name:<26}{days:>5}{lag1:>7.2f}{promoted / len(seeds):>10.2%}{bound:>13.2%}{gain:>11.2f}{power:>8.0%}"
        print(line + (" FAIL" if bound > LIMIT else ""), flush=True)
        return bound > LIMIT

    for name, draw, block, gain in filter(lambda scene: is_wanted(scene[0]), SCENES):
        failures += sum(cell(name, draw, block, gain, days, lag1) for days in DAYS for lag1 in LAG1)
    for metric in filter(is_wanted, OF_METRICS):
        failures += sum(cell(metric, of_metric(metric), "1d", 0.2, days, 0.55) for days in (7, 14))
    if is_wanted("canary"):
        failures += canaries(range(given.seed, given.seed + NUM_CANARIES))
    print(f"\n{time.monotonic() - started:.0f} s; {failures} cells fail")
    sys.exit(1 if failures else 0)


def canaries(seeds: range) -> int:
    """Print how often canaries, one of each seed, are rolled back by their alarm; return how many cells fail."""
    failures = 0
    print(f"\nfalse roll-backs of equal canaries, an hourly look for three days, {len(seeds)} canaries in a cell; power: {NUM_POWER // 4}")
    print(f"{'rows':<26}{'lag-1':>7}{'rolled back':>13}{'upper bound':>13}{'true gain':>11}{'power':>8}{'median hours':>14}")
    for batches, lag1 in ((False, 0.0), (False, 0.3), (False, 0.55), (False, 0.9), (True, 0.0)):
        rolled = sum(canary_is_rolled_back(lag1, 0.0, seed, batches=batches) is not None for seed in seeds)
        found = [canary_is_rolled_back(lag1, -0.5, seed, batches=batches) for seed in seeds[: NUM_POWER // 4]]
        hours = [hour for hour in found if hour is not None]
        bound = upper_bound(rolled, len(seeds))
        name, median = "daily batches, entities" if batches else "hourly", f"{np.median(hours):.0f}" if hours else "-"
        line = f"{name:<26}{lag1:>7.2f}{rolled / len(seeds):>13.2%}{bound:>13.2%}{-0.5:>11.2f}{len(hours) / len(found):>8.0%}{median:>14}"
        print(line + (" FAIL" if bound > LIMIT else ""), flush=True)
        failures += bound > LIMIT
    return failures


if __name__ == "__main__":
    main()
