"""Metrics of a language model: of its tokens' negative log likelihoods in nats (scores) and bytes (labels)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from training.evaluation.metrics.means import FunctionOfMeans
from training.evaluation.metrics.metric import NAN, Floats, Metric, ScoredRows


def perplexity(losses: Floats) -> float:
    """Return e to the mean loss of a token, [tokens] nats; infinite where that is too large for a number."""
    mean = float(losses.mean())
    return math.exp(mean) if mean < 700 else math.inf


def bits_per_byte(losses: Floats, num_bytes: Floats) -> float:
    """Return bits for a byte of text, which no tokenizer changes: both [tokens], nats and bytes; NaN without a byte."""
    total = float(num_bytes.sum())
    return float(losses.sum()) / math.log(2) / total if total > 0 else NAN


class _OfTokens(FunctionOfMeans):
    def components(self, rows: ScoredRows) -> Floats:
        return np.stack([rows.scores, np.ones(len(rows.scores))], axis=1)


class Loss(_OfTokens):
    """The mean loss of a token."""

    def value(self, rows: ScoredRows) -> float:
        return float(rows.scores.mean())

    def unit_values(self, rows: ScoredRows) -> Floats | None:
        return rows.scores

    def of_means(self, means: Floats) -> Floats:
        return means[:, 0] / means[:, 1]


class Perplexity(_OfTokens):
    def value(self, rows: ScoredRows) -> float:
        return perplexity(rows.scores)

    def of_means(self, means: Floats) -> Floats:
        return np.asarray(np.exp(means[:, 0] / means[:, 1]))

    def influence(self, rows: ScoredRows) -> Floats:
        return np.asarray(rows.scores * np.exp(min(float(rows.scores.mean()), 700.0)))


class BitsPerByte(FunctionOfMeans):
    def value(self, rows: ScoredRows) -> float:
        return bits_per_byte(rows.scores, rows.labels)

    def components(self, rows: ScoredRows) -> Floats:
        return np.stack([rows.scores / np.log(2), rows.labels], axis=1)

    def of_means(self, means: Floats) -> Floats:
        return means[:, 0] / means[:, 1]

    def influence(self, rows: ScoredRows) -> Floats:
        bits, total = rows.scores / np.log(2), rows.labels.mean()
        return np.asarray((bits - bits.mean() / total * rows.labels) / total)


METRICS: Final[Mapping[str, Metric]] = {"loss": Loss(), "perplexity": Perplexity(), "bits_per_byte": BitsPerByte()}
