"""A simulated online shop: one Parquet partition of search clicks per day, deterministic per (seed, day) alone.

    python -m devstack.shop --root PATH --first 2026-01-01 --days 30

A day is made in this order:
1. searches: a user and a query each, at a time of day; more at weekends (never more than a tenth off the day before);
2. results: twelve of the query's candidates. The shop's old policy orders them by popularity and the query's fit,
   plus noise, and knows no user; a quarter of the pages is in random order;
3. clicks: a result is looked at with probability position ** -EXAMINATION_DECAY (the position-based model of
   Craswell et al., "An experimental comparison of click position-bias models", WSDM 2008), and a looked-at one is
   clicked with its true relevance (`devstack.shop_world`), which drifts slowly.

`popularity` is clicks per showing over the seven days before: drawn from the click-through that the true relevance
implies for those days, so it leaks nothing of the day itself and needs no history on disk.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from devstack.shop_world import NUM_ITEMS, Floats, Ints, World, generator, world
from training.errors import DataError, shown

logger = logging.getLogger(__name__)

DEFAULT_SEED: Final = 2026
DEFAULT_SEARCHES: Final = 1750
"""Searches on an average day; each shows `RESULTS_PER_SEARCH` results."""
RESULTS_PER_SEARCH: Final = 12
MAX_SEARCHES: Final = 1_000_000
"""Search ids are day number times this, plus the search's number."""
RANDOM_PAGE_SHARE: Final = 0.25
EXAMINATION_DECAY: Final = 0.35
POLICY_NOISE: Final = 0.8
POPULARITY_DAYS: Final = 7
CONTEXTS_PER_CANDIDATE: Final = 6
WEEKDAY_FACTOR: Final = (0.99, 0.96, 0.95, 0.97, 1.02, 1.08, 1.06)
"""Searches relative to an average day, Monday first."""
HOUR_WEIGHT: Final = (3, 2, 1, 1, 1, 2, 4, 7, 10, 12, 13, 13, 14, 13, 12, 12, 13, 15, 18, 20, 20, 17, 11, 6)
MICROSECONDS_PER_HOUR: Final = 3_600_000_000
METADATA_KEY: Final = b"nightshift.shop"

SCHEMA: Final = pa.schema(
    [
        ("search_id", pa.int64()),
        ("shown_at", pa.timestamp("us", tz="UTC")),
        ("user_id", pa.int32()),
        ("query_id", pa.int32()),
        ("item_id", pa.int32()),
        ("category_id", pa.int32()),
        ("price", pa.float32()),
        ("rating", pa.float32()),
        ("popularity", pa.float32()),
        ("position", pa.int32()),
        ("clicked", pa.int8()),
    ]
)

FAULTS: Final = ("missing_column", "volume", "null_key", "duplicated_day", "repair")


def true_relevance(user_id: Any, query_id: Any, item_id: Any, day: date, seed: int = DEFAULT_SEED) -> NDArray[np.float64]:
    """Return the oracle, float64 [n]: the probability of a click on a result that is looked at, for ids as the data has them."""
    users, queries, items = (np.asarray(ids, dtype=np.int64) - 1 for ids in (user_id, query_id, item_id))
    return world(seed).relevance(users, queries, items, day)


def day_path(root: Path, day: date) -> Path:
    """Return where a day's partition lies below the shop's root."""
    return root / "clicks" / f"dt={day.isoformat()}" / "part-00000.parquet"


def make_day(day: date, *, seed: int = DEFAULT_SEED, searches: int = DEFAULT_SEARCHES) -> pa.Table:
    """Return one day of clicks, `SCHEMA`, ordered by (shown_at, search, position).

    Args:
        day: a day in UTC.
        seed: of the population and of the day.
        searches: on an average day, 1 to `MAX_SEARCHES` / 2.

    Raises:
        DataError: `shop.searches`, the number is out of range.
    """
    if not 1 <= searches <= MAX_SEARCHES // 2:
        raise DataError("shop.searches", f"searches must be 1 to {MAX_SEARCHES // 2}, got {shown(searches)}")
    shop = world(seed)
    rng = generator(seed, 1, day.toordinal())
    num_searches = max(1, round(searches * WEEKDAY_FACTOR[day.weekday()] * rng.uniform(0.99, 1.01)))
    users = rng.choice(shop.user_weight.size, size=num_searches, p=shop.user_weight)
    queries = rng.choice(shop.query_weight.size, size=num_searches, p=shop.query_weight)
    popularity = _popularity(shop, day, searches)
    items = _pages(shop, rng, queries, popularity)
    position = np.tile(np.arange(1, RESULTS_PER_SEARCH + 1), num_searches)
    user, query, item = np.repeat(users, RESULTS_PER_SEARCH), np.repeat(queries, RESULTS_PER_SEARCH), items.ravel()
    chance = position**-EXAMINATION_DECAY * shop.relevance(user, query, item, day)
    columns = {
        "search_id": np.repeat(day.toordinal() * MAX_SEARCHES + np.arange(num_searches), RESULTS_PER_SEARCH),
        "shown_at": np.repeat(_times(rng, day, num_searches), RESULTS_PER_SEARCH),
        "user_id": user + 1,
        "query_id": query + 1,
        "item_id": item + 1,
        "category_id": shop.item_category[item] + 1,
        "price": shop.item_price[item],
        "rating": shop.item_rating[item],
        "popularity": popularity[item],
        "position": position,
        "clicked": rng.uniform(size=item.size) < chance,
    }
    arrays = [pa.array(columns[field.name].astype(_numpy_type(field)), type=field.type) for field in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA.with_metadata({METADATA_KEY: json.dumps({"searches": searches, "seed": seed})}))


def write_day(root: Path, day: date, *, seed: int = DEFAULT_SEED, searches: int = DEFAULT_SEARCHES) -> Path:
    """Write one day's partition, replacing an existing one, and return its path. Atomic; the same arguments give the same bytes."""
    path = day_path(root, day)
    _write(make_day(day, seed=seed, searches=searches), path)
    return path


def break_day(root: Path, day: date, fault: str) -> Path:
    """Damage a day that exists, or repair it, and return its path.

    Args:
        root: the shop's root.
        day: whose partition.
        fault: `missing_column` (no rating), `volume` (three of five searches are missing), `null_key` (every hundredth
            item_id), `duplicated_day` (every row twice) or `repair` (what `write_day` had written).

    Raises:
        DataError: `shop.no_day` or `shop.fault`.
    """
    path = day_path(root, day)
    if fault not in FAULTS:
        raise DataError("shop.fault", f"no fault {shown(fault)}", hint=f"one of {', '.join(FAULTS)}")
    if not path.exists():
        raise DataError("shop.no_day", f"{path} does not exist", hint="make the day first")
    written_with = json.loads(pq.read_schema(path).metadata[METADATA_KEY])
    table = make_day(day, seed=written_with["seed"], searches=written_with["searches"])
    if fault == "missing_column":
        table = table.drop_columns(["rating"])
    elif fault == "volume":
        table = table.filter(pa.array(table["search_id"].to_numpy() % 5 < 2))
    elif fault == "null_key":
        gone = np.arange(table.num_rows) % 100 == 0
        column = pa.array(table["item_id"].to_numpy(), type=pa.int32(), mask=gone)
        table = table.set_column(table.schema.get_field_index("item_id"), SCHEMA.field("item_id"), column)
    elif fault == "duplicated_day":
        table = pa.concat_tables([table, table])
    _write(table, path)
    return path


def _popularity(shop: World, day: date, searches: int) -> Floats:
    """Return [items]: observed clicks per showing in the days before `day`, in expectation that of the middle day."""
    rng = generator(shop.seed, 2, day.toordinal())
    middle = day - timedelta(days=(POPULARITY_DAYS + 1) // 2)
    shape = (*shop.query_candidates.shape, CONTEXTS_PER_CANDIDATE)
    users = rng.choice(shop.user_weight.size, size=shape, p=shop.user_weight).ravel()
    queries = np.broadcast_to(np.arange(shape[0])[:, None, None], shape).ravel()
    items = np.broadcast_to(shop.query_candidates[:, :, None], shape).ravel()
    looked_at = float(np.mean(np.arange(1, RESULTS_PER_SEARCH + 1) ** -EXAMINATION_DECAY))
    weight = shop.query_weight[queries]
    seen = np.bincount(items, weights=weight, minlength=NUM_ITEMS)
    clicked = np.bincount(items, weights=weight * shop.relevance(users, queries, items, middle), minlength=NUM_ITEMS)
    rate = looked_at * clicked / np.maximum(seen, 1e-12)
    showings = np.round(POPULARITY_DAYS * searches * RESULTS_PER_SEARCH * seen / seen.sum()).astype(np.int64)
    observed: Floats = rng.binomial(showings, np.clip(rate, 0.0, 1.0)) / np.maximum(showings, 1)
    return observed


def _pages(shop: World, rng: np.random.Generator, queries: Ints, popularity: Floats) -> Ints:
    """Return [searches, results]: item rows in the order shown."""
    candidates = shop.query_candidates[queries]
    chosen = np.argpartition(rng.uniform(size=candidates.shape), RESULTS_PER_SEARCH, axis=1)[:, :RESULTS_PER_SEARCH]
    items = np.take_along_axis(candidates, np.sort(chosen, axis=1), axis=1)
    known = np.log(popularity[items] + 0.01) + 0.3 * shop.query_fit[queries[:, None], shop.item_category[items]]
    noise = rng.normal(size=items.shape)
    is_random = rng.uniform(size=(len(queries), 1)) < RANDOM_PAGE_SHARE
    score = np.where(is_random, noise, known + POLICY_NOISE * noise)
    return np.take_along_axis(items, np.argsort(-score, axis=1, kind="stable"), axis=1)


def _times(rng: np.random.Generator, day: date, num_searches: int) -> Ints:
    """Return [searches]: microseconds since the epoch, sorted, all inside the day."""
    weights = np.array(HOUR_WEIGHT, dtype=np.float64)
    hours = rng.choice(len(HOUR_WEIGHT), size=num_searches, p=weights / weights.sum())
    within = rng.integers(MICROSECONDS_PER_HOUR, size=num_searches)
    midnight = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000
    return np.sort(midnight + hours * MICROSECONDS_PER_HOUR + within)


def _numpy_type(field: pa.Field) -> Any:
    return np.int64 if pa.types.is_timestamp(field.type) else field.type.to_pandas_dtype()


def _write(table: pa.Table, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name that starts with a dot is not a part of a partition to any reader.
    unfinished = path.with_name(f".{path.name}.unfinished")
    pq.write_table(table, unfinished, compression="zstd", write_page_checksum=True)
    unfinished.replace(path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m devstack.shop", description="Make (or damage) days of a simulated shop.")
    parser.add_argument("--root", type=Path, required=True, help="folder of the shop; partitions go to clicks/dt=YYYY-MM-DD below it")
    parser.add_argument("--first", type=date.fromisoformat, required=True, help="first day")
    parser.add_argument("--days", type=int, default=1, help="number of days (default 1)")
    parser.add_argument("--searches", type=int, default=DEFAULT_SEARCHES, help="searches on an average day")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="of population and days")
    parser.add_argument("--fault", choices=FAULTS, help="damage or repair the days instead of making missing ones")
    options = parser.parse_args(arguments)
    made = 0
    for offset in range(options.days):
        day = options.first + timedelta(days=offset)
        if options.fault:
            logger.info("%s: %s", options.fault, break_day(options.root, day, options.fault))
        elif not day_path(options.root, day).exists():
            write_day(options.root, day, seed=options.seed, searches=options.searches)
            made += 1
    if not options.fault:
        logger.info("made %d of %d days in %s, the others were there", made, options.days, options.root)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    main()
