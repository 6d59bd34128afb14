"""Checks whether a storage has the properties that Nightshift relies on: python -m training.store.probe [STORE_URI]

Every commit is a conditional create. Some servers that speak S3 ignore the condition, or look and write in two steps, so that two writers
at once both win: with such a store, two runs could both believe that their checkpoint stands. Exit code 0: it keeps all; 1: it does not.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Final

from training.errors import NightshiftError
from training.installation import STORE
from training.store.bucket import Bucket

ROUNDS: Final = 20
WRITERS: Final = 8

Check = tuple[str, Callable[[Bucket, str], str]]


def problems_of(bucket: Bucket) -> Iterator[tuple[str, str]]:
    """Yield each property with what is wrong with it, empty for nothing. Leaves nothing in the bucket.

    Raises:
        UnavailableError, DeniedError: it does not answer, or not to us.
    """
    prefix = f"probe/{secrets.token_hex(8)}"
    try:
        for words, check in CHECKS:
            yield words, check(bucket, prefix)
    finally:
        for entry in bucket.list(prefix):
            bucket.delete(entry.key)


def _reads_back(bucket: Bucket, prefix: str) -> str:
    data = secrets.token_bytes(100_000)
    bucket.put(f"{prefix}/read", data)
    return "" if bucket.get(f"{prefix}/read") == data else "other bytes came back than were written"


def _lists_at_once(bucket: Bucket, prefix: str) -> str:
    for number in range(5):
        bucket.put(f"{prefix}/listed/{number}", b"x")
        seen = len(bucket.list(f"{prefix}/listed"))
        if seen != number + 1:
            return f"{number + 1} objects were written, {seen} are listed"
    return ""


def _refuses_the_second(bucket: Bucket, prefix: str) -> str:
    first, second = bucket.create(f"{prefix}/once", b"first"), bucket.create(f"{prefix}/once", b"second")
    if second:
        return "a second create of one key was accepted: the condition is ignored"
    return "" if first and bucket.get(f"{prefix}/once") == b"first" else "the first create did not stand"


def _has_one_winner(bucket: Bucket, prefix: str) -> str:
    with ThreadPoolExecutor(WRITERS) as pool:
        for round_number in range(ROUNDS):
            barrier = Barrier(WRITERS)

            def race(writer: int, key: str = f"{prefix}/race-{round_number}", at: Barrier = barrier) -> bool:
                at.wait()
                return bucket.create_own(key, f"writer {writer}".encode())

            winners = sum(pool.map(race, range(WRITERS)))
            if winners != 1:
                return f"round {round_number + 1}: {winners} of {WRITERS} concurrent writers got the answer that they won"
    return ""


CHECKS: Final[tuple[Check, ...]] = (
    ("what is written is read back", _reads_back),
    ("what is written is listed at once", _lists_at_once),
    ("a key is created once", _refuses_the_second),
    (f"of {WRITERS} writers at once exactly one wins, {ROUNDS} times", _has_one_winner),
)


def main() -> int:
    """Print a line for each property; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.store.probe", description=__doc__.splitlines()[0])
    parser.add_argument("store", nargs="?", default=STORE.text(), help="root URI; default: NIGHTSHIFT_STORE")
    store = parser.parse_args().store
    if not store:
        parser.error("name a store, or set NIGHTSHIFT_STORE")
    is_good = True
    try:
        for words, problem in problems_of(Bucket(store)):
            is_good = is_good and not problem
            sys.stdout.write(f"{'FAILED' if problem else 'ok':<7} {words}{': ' + problem if problem else ''}\n")
    except NightshiftError as err:
        sys.stdout.write(f"FAILED  {err}\n")
        is_good = False
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
