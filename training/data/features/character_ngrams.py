"""Where the character n-grams of many texts are counted: arrays of n-grams, of which each different one is hashed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from training.data.features.encoders import text_hashes

LARGEST_KEY: Final = 2**63 - 1


def character_places(texts: Sequence[str], least: int, most: int, *, buckets: int) -> NDArray[np.int64]:
    """Return `row * buckets + stable_hash(n-gram) % buckets` of each n-gram of each text, the sizes one after another.

    Args:
        texts: as they are, white space included.
        least: smallest n.
        most: largest n.
        buckets: how many there are.
    """
    joined = "".join(texts)
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    row_of = np.repeat(np.arange(len(texts)), lengths)
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(joined))
    places = [np.empty(0, dtype=np.int64)]
    for size, starts, grams in _numbered(joined, left, least, most):
        firsts = np.flatnonzero(np.diff(np.maximum.accumulate(grams), prepend=-1))
        hashes = text_hashes(joined[start : start + size] for start in starts[firsts].tolist())
        bucket_of = (hashes % np.uint64(buckets)).astype(np.int64)
        places.append(row_of[starts] * buckets + bucket_of[grams])
    return np.concatenate(places)


def _numbered(joined: str, left: NDArray[np.int64], least: int, most: int) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Yield of each size the places of its n-grams, and for each a number: equal for equal ones, from 0 in the order of appearance.

    Args:
        left: characters of the text from each place to its end, at least 1.
    """
    if not joined:
        return
    characters = pd.factorize(np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int64))[0]
    base = int(characters.max()) + 1
    starts, keys, num_keys = np.arange(len(joined)), characters, base
    for size in range(1, most + 1):
        if size > 1:
            goes_on = left[starts] >= size
            starts, keys = starts[goes_on], keys[goes_on]
            if num_keys > LARGEST_KEY // base:
                keys = pd.factorize(keys)[0]
                num_keys = len(keys) + 1
            keys, num_keys = keys * base + characters[starts + size - 1], num_keys * base
        if not len(starts):
            return
        if size >= least:
            yield size, starts, pd.factorize(keys)[0]
