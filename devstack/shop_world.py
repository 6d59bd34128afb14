"""The simulated shop's population: users, queries, items, and what is truly relevant to whom on which day.

Everything is a closed form of (seed, day): drift is a sum of sinusoids of the day's number, so no day needs the ones
before it. True relevance is the probability of a click on a result that was looked at:

    relevance = sigmoid(bias + taste(user, day) . traits(item) + fit(query, category of item) + quality(item, day) - thrift(user) * price)
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NUM_USERS: Final = 2000
NUM_QUERIES: Final = 300
NUM_ITEMS: Final = 1200
NUM_CATEGORIES: Final = 24
NUM_SEGMENTS: Final = 16
NUM_TRAITS: Final = 6
CATEGORIES_PER_QUERY: Final = 6
CANDIDATES_PER_CATEGORY: Final = 6
CANDIDATES_PER_QUERY: Final = CATEGORIES_PER_QUERY * CANDIDATES_PER_CATEGORY

BIAS: Final = -1.6
TASTE_WEIGHT: Final = 2.2
FIT_WEIGHT: Final = 0.7
QUALITY_WEIGHT: Final = 0.45
SLOW_DRIFT: Final = 0.35
FAST_DRIFT: Final = 0.35
TASTE_TURN_DAYS: Final = (240.0, 480.0)
"""Days that a user's taste takes for a full turn: shortest and longest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """One seed's population. First axis: users, queries or items, whose public ids are row number + 1."""

    seed: int
    taste_now: Floats
    """[users, traits]: the two ends between which a user's taste turns."""
    taste_later: Floats
    taste_turn_days: Floats
    taste_phase: Floats
    thrift: Floats
    user_weight: Floats
    """How often a user searches; sums to one."""
    query_weight: Floats
    query_candidates: Ints
    """[queries, candidates]: rows of the items that a query retrieves."""
    query_fit: Floats
    """[queries, categories]: how well a category answers a query."""
    item_traits: Floats
    item_category: Ints
    item_quality: Floats
    item_price: Floats
    """Currency units, two decimals."""
    item_rating: Floats
    """Stars, 1 to 5: a noisy view of the quality, never updated."""
    drift_days: Floats
    """[2, items]: periods of the slow and the fast drift of quality."""
    drift_phase: Floats

    def tastes(self, users: Ints, day: date) -> Floats:
        """Return [n, traits]: the users' tastes on a day."""
        turn = 2 * np.pi * (day.toordinal() / self.taste_turn_days[users] + self.taste_phase[users])
        turned: Floats = self.taste_now[users] * np.cos(turn)[:, None] + self.taste_later[users] * np.sin(turn)[:, None]
        return turned

    def quality(self, day: date) -> Floats:
        """Return [items]: the items' quality on a day."""
        waves = np.sin(2 * np.pi * (day.toordinal() / self.drift_days + self.drift_phase))
        drifted: Floats = self.item_quality + SLOW_DRIFT * waves[0] + FAST_DRIFT * waves[1]
        return drifted

    def relevance(self, users: Ints, queries: Ints, items: Ints, day: date) -> Floats:
        """Return [n]: the click probability of a looked-at result, for rows (not ids) of users, queries and items."""
        logit = BIAS + TASTE_WEIGHT * (self.tastes(users, day) * self.item_traits[items]).sum(axis=1)
        logit += FIT_WEIGHT * self.query_fit[queries, self.item_category[items]]
        logit += QUALITY_WEIGHT * self.quality(day)[items]
        logit -= self.thrift[users] * np.log(self.item_price[items] / 30.0)
        probability: Floats = 1.0 / (1.0 + np.exp(-logit))
        return probability


def generator(*parts: int) -> np.random.Generator:
    """Return a generator whose stream is a function of these numbers alone."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(parts)))


@functools.lru_cache(maxsize=4)
def world(seed: int) -> World:
    """Return the population of a seed; built once per process (about 10 ms)."""
    rng = generator(seed, 0)
    centers = _unit(rng.normal(size=(NUM_CATEGORIES, NUM_TRAITS)))
    item_category = rng.permutation(np.arange(NUM_ITEMS) % NUM_CATEGORIES)
    item_quality = rng.normal(size=NUM_ITEMS)
    query_fit, query_candidates = _queries(rng, item_category)
    return World(
        seed=seed,
        **_users(rng),
        query_weight=_skewed(rng, NUM_QUERIES, spread=0.8),
        query_candidates=query_candidates,
        query_fit=query_fit,
        item_traits=_unit(centers[item_category] + 0.35 * rng.normal(size=(NUM_ITEMS, NUM_TRAITS)) / np.sqrt(NUM_TRAITS)),
        item_category=item_category,
        item_quality=item_quality,
        item_price=_prices(rng, item_category),
        item_rating=_rounded(np.clip(3.7 + 0.4 * item_quality + 0.5 * rng.normal(size=NUM_ITEMS), 1.0, 5.0), decimals=1),
        drift_days=np.stack([rng.uniform(60, 180, NUM_ITEMS), rng.uniform(14, 35, NUM_ITEMS)]),
        drift_phase=rng.uniform(size=(2, NUM_ITEMS)),
    )


def _users(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Draw users around a few segments, so that little is known of one user and much of users alike."""
    segments = _unit(rng.normal(size=(2, NUM_SEGMENTS, NUM_TRAITS)))
    member = rng.integers(NUM_SEGMENTS, size=NUM_USERS)
    own = 0.4 * rng.normal(size=(2, NUM_USERS, NUM_TRAITS)) / np.sqrt(NUM_TRAITS)
    tastes = _unit(segments[:, member] + own)
    return {
        "taste_now": tastes[0],
        "taste_later": tastes[1],
        "taste_turn_days": rng.uniform(*TASTE_TURN_DAYS, size=NUM_SEGMENTS)[member],
        "taste_phase": rng.uniform(size=NUM_SEGMENTS)[member],
        "thrift": 0.3 * rng.normal(size=NUM_USERS) + 0.1,
        "user_weight": _skewed(rng, NUM_USERS, spread=0.5),
    }


def _queries(rng: np.random.Generator, item_category: Ints) -> tuple[Floats, Ints]:
    """Draw which categories answer a query, how well, and which of their items the shop's search retrieves."""
    fit = rng.normal(size=(NUM_QUERIES, NUM_CATEGORIES))
    categories = np.argsort(rng.uniform(size=(NUM_QUERIES, NUM_CATEGORIES)), axis=1, kind="stable")[:, :CATEGORIES_PER_QUERY]
    of_category = np.stack([np.flatnonzero(item_category == c) for c in range(NUM_CATEGORIES)])
    order = np.argsort(rng.uniform(size=(NUM_QUERIES, CATEGORIES_PER_QUERY, of_category.shape[1])), axis=2, kind="stable")
    picked = np.take_along_axis(of_category[categories], order[:, :, :CANDIDATES_PER_CATEGORY], axis=2)
    return fit, picked.reshape(NUM_QUERIES, CANDIDATES_PER_QUERY)


def _prices(rng: np.random.Generator, item_category: Ints) -> Floats:
    level = rng.normal(loc=np.log(30.0), scale=0.6, size=NUM_CATEGORIES)
    return _rounded(np.exp(level[item_category] + 0.4 * rng.normal(size=NUM_ITEMS)), decimals=2)


def _rounded(values: Floats, *, decimals: int) -> Floats:
    rounded: Floats = np.round(values, decimals)
    return rounded


def _skewed(rng: np.random.Generator, size: int, *, spread: float) -> Floats:
    weights = np.exp(spread * rng.normal(size=size))
    share: Floats = weights / weights.sum()
    return share


def _unit(vectors: Floats) -> Floats:
    scaled: Floats = vectors / np.sqrt((vectors * vectors).sum(axis=-1, keepdims=True))
    return scaled
