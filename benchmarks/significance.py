"""Seconds of a paired bootstrap with 1,000 resamples, by metric and rows; peer: a loop that resamples rows and calls scikit-learn.

`blocks, s` is what the interval by blocks (14 days, 14 blocks) costs besides. The peer's loop runs a few resamples, and its time
is that of one times 1,000; both run in the same process, one after the other. Seconds are of a processor, which a busy machine
does not lengthen as it does those on the wall.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    f1_score,
    log_loss,
    mean_absolute_error,
    median_absolute_error,
    roc_auc_score,
    root_mean_squared_error,
)

from benchmarks.scored import compare
from training.evaluation.bootstrap.blocks import Origins
from training.evaluation.bootstrap.resampling import NUM_RESAMPLES

Floats = NDArray[np.float64]

PEERS = {
    "auc": roc_auc_score,
    "pr_auc": average_precision_score,
    "log_loss": log_loss,
    "brier": brier_score_loss,
    "f1": lambda labels, scores: f1_score(labels, scores >= 0.5),
    "rmse": root_mean_squared_error,
    "mae": mean_absolute_error,
    "median_absolute_error": median_absolute_error,
}
OURS_ALONE = ("calibration_error", "ndcg@10")
SIZES = (10_000, 1_000_000)
PEER_SECONDS = 4.0


def rows(num_rows: int) -> tuple[Floats, Floats, Floats]:
    """Return labels (0 or 1), a candidate's and a champion's scores, [rows] each."""
    generator = np.random.default_rng(7)
    signal = generator.normal(size=num_rows)
    labels = (generator.random(num_rows) < 1 / (1 + np.exp(2 - 2 * signal))).astype(np.float64)
    new, old = (1 / (1 + np.exp(2 - 2 * (signal + noise * generator.normal(size=num_rows)))) for noise in (0.5, 0.55))
    return labels, new, old


def peer(name: str, labels: Floats, new: Floats, old: Floats, limit_seconds: float = PEER_SECONDS) -> tuple[float, float]:
    """Return (seconds of 1,000 resamples, standard deviation of the few that were made)."""
    generator = np.random.default_rng(1)
    metric, found = PEERS[name], []
    started_at = time.process_time()
    while len(found) < 3 or (len(found) < NUM_RESAMPLES and time.process_time() - started_at < limit_seconds):
        drawn = generator.integers(0, len(labels), len(labels))
        found.append(metric(labels[drawn], new[drawn]) - metric(labels[drawn], old[drawn]))
    return (time.process_time() - started_at) / len(found) * NUM_RESAMPLES, float(np.std(found))


def main() -> None:
    print(f"{'metric':<24}{'rows':>12}{'seconds':>10}{'blocks, s':>12}{'peer, s':>12}{'ratio':>9}   interval of the gain, 95 %")
    for num_rows in SIZES:
        labels, new, old = rows(num_rows)
        for name in (*PEERS, *OURS_ALONE):
            groups = np.arange(num_rows) // 10 if "@" in name else None
            origins = Origins(microseconds=np.arange(num_rows) // 10 * (14 * 86_400_000_000 // (num_rows // 10)), entities={})
            started_at = time.process_time()
            found = compare(name, labels, new, old, groups, confidence=0.95, seed=1)
            seconds = time.process_time() - started_at
            started_at = time.process_time()
            compare(name, labels, new, old, groups, confidence=0.95, seed=1, origins=origins)
            more = time.process_time() - started_at - seconds
            told, ratio = "-", "-"
            if name in PEERS:
                peer_seconds = peer(name, labels, new, old)[0]
                told, ratio = f"{peer_seconds:,.1f}", f"{peer_seconds / seconds:,.0f}x"
            print(
                f"{name:<24}{num_rows:>12,}{seconds:>10.2f}{more:>12.2f}{told:>12}{ratio:>9}   [{found.low:+.6f}, {found.high:+.6f}]",
                flush=True,
            )
    _against_the_peer()


def _against_the_peer() -> None:
    """Print the spread that both find where the peer's loop is affordable: it must be the same."""
    labels, new, old = rows(20_000)
    for name in ("auc", "pr_auc"):
        found = compare(name, labels, new, old, None, confidence=0.6827, seed=1)
        spread = peer(name, labels, new, old, limit_seconds=15.0)[1]
        print(f"{name} of 20,000 rows: standard deviation {(found.high - found.low) / 2:.6f}, by the peer {spread:.6f}")


if __name__ == "__main__":
    main()
