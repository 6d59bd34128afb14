"""How often the gates promote: models of known quality, judged again and again on rows drawn anew.

Rows are independent and spread over 14 days, so the gate judges by the wider interval of rows and 14 blocks. False promotions are
of a candidate exactly as good as the champion (another model, with noise of its own), at the spec's default setting; the bound is
Clopper and Pearson's one-sided 95 %. Power is the share promoted of candidates that are truly better, at the default setting and
with a stated minimum of half a percent of the champion's metric.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, norm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.scored import CHAMPION, compare, metric_value
from training.evaluation.bootstrap.blocks import Origins
from training.evaluation.record import EvaluationRecord, Leakage, PredictionDrift, ResultChecks
from training.registry.gates.judging import decide
from training.spec.sections.evaluation import Evaluate

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
SHARED = 0.8
"""Share of the noise's variance that both models have in common: they learned from much the same rows."""
POSITIVES, GROUP_ROWS = 0.25, 10
CHAMPION_AUC, CHAMPION_STRENGTH = 0.70, 1.0
MINIMUM_GAIN = 0.005
DAYS = 14


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Rows with the scores of both models."""

    metric: str
    labels: Floats
    candidate: Floats
    champion: Floats
    groups: NDArray[np.int64] | None


Draw = Callable[[int, float, int], Trial]


def binary_trial(size: int, gain: float, seed: int) -> Trial:
    """Draw `size` rows; the champion's true AUC is 0.70, the candidate's better by the share `gain`.

    Scores of both classes are normal with variance one, so that the AUC is the normal distribution of the means' distance over root two.
    """
    strengths = [np.sqrt(2) * norm.ppf(CHAMPION_AUC * factor) for factor in (1 + gain, 1)]
    labels, (candidate, champion) = _scores(size, strengths, seed)
    return Trial(metric="auc", labels=labels, candidate=candidate, champion=champion, groups=None)


def ranking_trial(size: int, gain: float, seed: int) -> Trial:
    """Draw `size` groups of ten rows; the candidate's true NDCG@10 is better by the share `gain`."""
    labels, (candidate, champion) = _scores(size * GROUP_ROWS, [_strength(gain), CHAMPION_STRENGTH], seed)
    groups = np.repeat(np.arange(size), GROUP_ROWS)
    return Trial(metric="ndcg@10", labels=labels, candidate=candidate, champion=champion, groups=groups)


def evaluated(trial: Trial, seed: int) -> EvaluationRecord:
    """Measure both models as a night does."""
    new, old = (metric_value(trial.metric, trial.labels, scores, trial.groups) for scores in (trial.candidate, trial.champion))
    found = compare(
        trial.metric, trial.labels, trial.candidate, trial.champion, trial.groups, confidence=CONFIDENCE, seed=seed, origins=_origins(trial)
    )
    return EvaluationRecord(
        format_version=1,
        champion=CHAMPION,
        baseline="champion",
        metrics={trial.metric: new},
        champion_metrics={trial.metric: old},
        comparison=found,
        checks=ResultChecks(constant=False, drift=PredictionDrift(psi=0.0), leakage=Leakage(feature="x", value=0.6)),
    )


def _origins(trial: Trial) -> Origins:
    """Spread the rows evenly over `DAYS` days, a group's at one moment: rows that depend on no other (`gate_errors` has those that do)."""
    units = np.arange(len(trial.labels)) if trial.groups is None else trial.groups
    return Origins(microseconds=units * (DAYS * 86_400_000_000 // (int(units[-1]) + 1)), entities={})


def count_promoted(draw: Draw, size: int, gain: float, *, num_trials: int, asked: tuple[float, ...] = (0.0,)) -> list[int]:
    """Return how many of `num_trials` candidates are promoted, for each relative improvement in `asked`.

    Args:
        draw: `binary_trial` or `ranking_trial`.
        size: units of a trial: rows, or groups.
        gain: by what share the candidates are truly better.
    """
    task, primary = ("ranking", "ndcg@10") if draw is ranking_trial else ("binary", "auc")
    rules = [Evaluate.model_validate({"task": task, "primary": primary, "improvement": {"relative": share}}) for share in asked]
    counts = [0] * len(rules)
    for seed in range(num_trials):
        evaluation = evaluated(draw(size, gain, seed), seed)
        for place, rule in enumerate(rules):
            counts[place] += decide(evaluation, rule, approval="automatic").outcome == "accepted"
    return counts


def upper_bound(promoted: int, num_trials: int) -> float:
    """Return Clopper and Pearson's one-sided 95 % upper bound of a share."""
    return float(binomtest(promoted, num_trials, alternative="less").proportion_ci(CONFIDENCE, method="exact").high)


def _scores(size: int, strengths: list[float], seed: int) -> tuple[Floats, list[Floats]]:
    generator = np.random.default_rng([seed, size])
    labels = (generator.random(size) < POSITIVES).astype(np.float64)
    shared = generator.normal(size=size)
    own = [generator.normal(size=size) for _ in strengths]
    noises = [np.sqrt(SHARED) * shared + np.sqrt(1 - SHARED) * noise for noise in own]
    return labels, [strength * labels + noise for strength, noise in zip(strengths, noises, strict=True)]


def _strength(gain: float) -> float:
    """Return the strength at which NDCG@10 is better than the champion's by the share `gain`."""
    return float(np.polyval(_strength_by_gain(), gain)) if gain else CHAMPION_STRENGTH


@functools.cache
def _strength_by_gain() -> Floats:
    """Fit a parabola to strengths by gain, measured on 10,000 groups."""
    strengths = CHAMPION_STRENGTH * np.array([0.8, 0.9, 1.0, 1.1, 1.2])
    groups = np.repeat(np.arange(10_000), GROUP_ROWS)
    labels, (noise,) = _scores(len(groups), [0.0], seed=0)
    # The same noise for all, so that they differ by their strength alone.
    found = np.array([metric_value("ndcg@10", labels, strength * labels + noise, groups) for strength in strengths])
    coefficients: Floats = np.polyfit(found / found[2] - 1, strengths, 2)
    return coefficients


DRAWS: tuple[tuple[str, Draw, tuple[int, ...]], ...] = (
    ("auc", binary_trial, (300, 6000, 20_000)),
    ("ndcg@10", ranking_trial, (200, 1000, 5000)),
)
"""The largest only for the power: a thousand of them take long."""
NUM_TRIALS, NUM_POWER_TRIALS = 1000, 100


def main() -> None:
    started = time.monotonic()
    print("false promotions of equal models, default setting (nominal: 2.5 %)")
    print(f"{'metric':10} {'units':>6} {'trials':>7} {'promoted':>9} {'share':>7} {'95 % upper bound':>17}")
    for name, draw, sizes in DRAWS:
        for size in sizes[:-1]:
            (promoted,) = count_promoted(draw, size, 0.0, num_trials=NUM_TRIALS)
            share, bound = promoted / NUM_TRIALS, upper_bound(promoted, NUM_TRIALS)
            print(f"{name:10} {size:6} {NUM_TRIALS:7} {promoted:9} {share:7.1%} {bound:17.2%}", flush=True)
    print(
        f"\npower: share promoted of {NUM_POWER_TRIALS} candidates; default asks for the interval alone, the minimum is {MINIMUM_GAIN:.1%}"
    )
    print(f"{'metric':10} {'units':>6} {'true gain':>10} {'default':>9} {'minimum asked':>14}")
    for name, draw, sizes in DRAWS:
        for size in sizes:
            for gain in (-0.01, MINIMUM_GAIN, 0.01, 0.02, 0.04):
                counts = count_promoted(draw, size, gain, num_trials=NUM_POWER_TRIALS, asked=(0.0, MINIMUM_GAIN))
                default, minimum = (count / NUM_POWER_TRIALS for count in counts)
                print(f"{name:10} {size:6} {gain:+10.1%} {default:9.0%} {minimum:14.0%}", flush=True)
    print(f"\n{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
