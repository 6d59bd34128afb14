"""The transform `text`: n-grams of a text counted by hash, one float cell of the model's input per bucket.

    cell[BLAKE2b(n-gram) modulo buckets] = how often its n-grams occur, or their share of all n-grams of the text (`scale: share`)

The text is normalised first (NFC) and lower-cased unless `lowercase` is false. A word is a run of letters, marks and digits; all else
divides words. An n-gram is n words that follow one another, or n characters of the text with each run of white space as one space. A
missing text has no n-grams, as an empty one: its cells are 0. N-grams of one bucket are counted together. Nothing is fitted.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from training.contracts import JsonObject
from training.data.dataset.shard_format import CellType
from training.data.features.character_ngrams import character_places
from training.data.features.encoders import Encoder, EncoderSettings, is_text, stable_hash
from training.data.features.fitting import check_known
from training.errors import DataError, shown

DEFAULT_TEXT_BUCKETS: Final = 128
DEFAULT_NGRAMS: Final = (1, 1)
FEW_CHARACTERS: Final = 1 << 8
"""Up to which arrays take longer than a loop."""
CHUNK_CHARACTERS: Final = 1 << 19
"""Of the texts whose n-grams are in memory at a time; a longer text is alone."""

REMEMBERED: Final = 1 << 16
"""N-grams whose hash is kept: those of one language repeat."""

Tokens = Literal["words", "characters"]
Scale = Literal["count", "share"]


class TextGrams:
    """`buckets` float cells."""

    kind: ClassVar[str] = "text"
    dtype: ClassVar[CellType] = "float32"
    cardinality: ClassVar[int] = 0

    def __init__(self, *, buckets: int, tokens: Tokens, ngrams: Sequence[int], lowercase: bool, scale: Scale) -> None:
        """Take the settings.

        Args:
            buckets: cells.
            ngrams: smallest and largest n.
            scale: whether a cell is a number of n-grams or a share of the text's.
        """
        self._buckets, self._tokens, self._lowercase, self._scale = buckets, tokens, lowercase, scale
        self._least, self._most = ngrams

    @property
    def width(self) -> int:
        """Number of cells."""
        return self._buckets

    def cell_names(self, name: str) -> list[str]:
        return text_cells(name, self._buckets)

    def encode(self, column: pd.Series[Any], name: str) -> NDArray[np.float32]:
        """Return [n, buckets]."""
        texts = _texts(column, name)
        cells = np.zeros((len(texts), self._buckets), dtype=np.float32)
        for rows in _chunks(texts):
            self._count(texts[rows], cells[rows])
        return cells

    def parameters(self) -> JsonObject:
        return {
            "buckets": self._buckets,
            "tokens": self._tokens,
            "ngrams": [self._least, self._most],
            "lowercase": self._lowercase,
            "scale": self._scale,
        }

    def _count(self, texts: Sequence[str], cells: NDArray[np.float32]) -> None:
        """Fill the cells of texts, [n, buckets], which are 0."""
        units = [self._units(text) for text in texts]
        if self._tokens == "characters" and sum(map(len, units)) > FEW_CHARACTERS:
            places = character_places(units, self._least, self._most, buckets=self._buckets)
        else:
            places = self._places(units)
        found, counts = np.unique(places, return_counts=True)
        row_of = found // self._buckets
        divisors = np.bincount(row_of, weights=counts)[row_of] if self._scale == "share" else 1
        cells.reshape(-1)[found] = counts / divisors

    def _units(self, text: str) -> Any:
        """Return the words of a text, or its characters as one text."""
        clean = unicodedata.normalize("NFC", text)
        if self._lowercase:
            # J with a caron is two characters, its lower case is one.
            clean = unicodedata.normalize("NFC", clean.lower())
        return clean.translate(_DIVIDED).split() if self._tokens == "words" else " ".join(clean.split())

    def _places(self, units: Sequence[Sequence[str]]) -> NDArray[np.int64]:
        """Return `row * buckets + bucket` of each n-gram of each text."""
        between = " " if self._tokens == "words" else ""
        places: list[int] = []
        for row, of_text in enumerate(units):
            first = row * self._buckets
            for size in range(self._least, self._most + 1):
                starts = range(len(of_text) - size + 1)
                grams = of_text if size == 1 else (between.join(of_text[start : start + size]) for start in starts)
                places += [first + _hash_of(gram) % self._buckets for gram in grams]
        return np.array(places, dtype=np.int64)


def _chunks(texts: Sequence[str]) -> Iterator[slice]:
    """Yield the rows whose n-grams are counted together."""
    first = characters = 0
    for row, text in enumerate(texts):
        characters += len(text)
        if row > first and characters > CHUNK_CHARACTERS:
            yield slice(first, row)
            first, characters = row, len(text)
    yield slice(first, len(texts))


class _Divided(dict[int, int]):
    """A table for `str.translate`: what is no letter, mark or digit becomes a space."""

    def __missing__(self, point: int) -> int:
        self[point] = point if unicodedata.category(chr(point))[0] in "LMN" else ord(" ")
        return self[point]


_DIVIDED: Final = _Divided()
_hash_of = functools.lru_cache(maxsize=REMEMBERED)(stable_hash)


def text_cells(name: str, buckets: int) -> list[str]:
    """Return the names of the cells that a feature becomes."""
    return [f"{name}.{bucket}" for bucket in range(buckets)]


class TextFit:
    """`text`: raises `data.all_missing`; nothing but that is learned from the rows."""

    def __init__(self, settings: EncoderSettings, name: str) -> None:
        self._name = name
        self._found = TextGrams(
            buckets=settings.buckets or DEFAULT_TEXT_BUCKETS,
            tokens=settings.tokens,
            ngrams=settings.ngrams or DEFAULT_NGRAMS,
            lowercase=settings.lowercase,
            scale=settings.scale,
        )
        self._num_rows, self._num_known = 0, 0

    def add(self, column: pd.Series[Any]) -> None:
        _texts(column, self._name)
        self._num_rows += len(column)
        self._num_known += int(column.notna().sum())

    def cells(self) -> list[tuple[str, Encoder]]:
        check_known(self._name, self._num_known, self._num_rows)
        return [(self._name, self._found)]


def _texts(column: pd.Series[Any], name: str) -> list[str]:
    """Return the texts, a missing one as an empty one.

    Raises:
        DataError: `schema.type`.
    """
    missing = column.isna()
    if missing.all():
        return [""] * len(column)
    texts: list[str] = column.astype(object).where(~missing, "").tolist()
    if not is_text(column) or not all(isinstance(text, str) for text in texts):
        message = f"column {shown(name)} holds {column.dtype}, the transform text takes texts"
        raise DataError("schema.type", message, hint="derive a text in prepare.derive")
    return texts
