"""Which earlier models a candidate can be compared with, and on which of its test rows.

A champion must be older, and made with none of the rows that it is measured on. Where rows are divided by a hash of what they are, its
test rows and the candidate's are the same ones, or new. A stratified division has exact shares, so rows that arrive or leave move a few
others: those that a rival was trained or chosen on are left out of the evaluation, for all models alike.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.contracts import Instant, JsonObject, instant_text
from training.data.dataset.reader import DatasetReader
from training.data.join.engines.interface import BATCH_ROWS
from training.data.split.hashing import row_hashes
from training.data.split.kinds import is_same_division, is_same_rule
from training.errors import StoreError
from training.evaluation.raw_rows import Hashes, Ints, found_in
from training.evaluation.record import Rival
from training.models.predictor import Predictor, load_predictor
from training.store import Manifest, Store
from training.store.condemned import GONE

logger = logging.getLogger(__name__)

NO_CHAMPION: Final = "no champion"
IS_BASELINE: Final = "champion"
LEARNED_FROM: Final = ("train", "validation")
MIN_UNSEEN: Final = 0.5
"""Share of the test rows that must be left. A stratified division moves about one row in a hundred; fewer are another table."""


def rivals_in(parameters: JsonObject) -> dict[str, Rival | None]:
    """Return `champion` and `canary` as the parameters of the stage name them; None where there is none."""
    found = {name: parameters.get(name) for name in ("champion", "canary")}
    return {name: None if rival is None else Rival.model_validate(rival) for name, rival in found.items()}


def load_rival(store: Store, rival: Rival, folder: Path) -> Predictor:
    """Fetch a rival's files to a folder, and return the model."""
    return load_predictor(store.manifests.fetch(store.manifests.get(rival.model_uri, kind="model"), folder))


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Which rivals can be compared, and the test rows on which all models are."""

    words: dict[str, str]
    """`champion`, `canary`: `IS_BASELINE`, `NO_CHAMPION`, or why it cannot be compared."""
    test: Ints
    """Numbers of the rows, ascending."""
    seen: dict[str, int]
    """How many of the dataset's test rows are left out because this rival was trained or chosen on them; none: the key is missing."""

    def is_baseline(self, name: str) -> bool:
        return self.words[name] == IS_BASELINE


def compared(
    store: Store, dataset: Manifest, reader: DatasetReader, test: Ints, rivals: dict[str, Rival | None], *, as_of: Instant, folder: Path
) -> Compared:
    """Return which of the rivals scores the test rows of a dataset, and which rows these are.

    Args:
        dataset: the candidate's.
        reader: of that.
        test: numbers of its test rows, ascending.
        rivals: by name; None: there is none.
        as_of: of the run.
        folder: for the rivals' datasets.

    Raises:
        DataError: a part of a rival's dataset is altered.
    """
    words, seen = {}, {}
    is_left = np.ones(len(test), dtype=np.bool_)
    for name, rival in rivals.items():
        words[name] = _words(store, dataset, rival, as_of)
        if rival is None or words[name] != IS_BASELINE or not _may_have_moved(*_divisions(store, dataset, rival)):
            continue
        mask, why = _unseen(store, dataset, reader, test, rival, folder / f"{name}-dataset")
        if why is not None:
            words[name] = why
        elif not mask.all():
            is_left &= mask
            seen[name] = int(np.count_nonzero(~mask))
    if seen:
        listed = ", ".join(f"{number} of the {name}" for name, number in seen.items())
        logger.info("left out %d of %d test rows: rows of train or validation: %s", np.count_nonzero(~is_left), len(test), listed)
    return Compared(words=words, test=test[is_left] if seen else test, seen=seen)


def _divisions(store: Store, dataset: Manifest, rival: Rival) -> tuple[JsonObject | None, JsonObject | None]:
    division = dataset.meta.get("split")
    return division, None if division is None else store.manifests.get(rival.model_uri, kind="model").meta.get("split")


def _may_have_moved(division: JsonObject | None, theirs: JsonObject | None) -> bool:
    return is_same_rule(division, theirs) and not is_same_division(division, theirs)


def _words(store: Store, dataset: Manifest, rival: Rival | None, as_of: Instant) -> str:
    if rival is None:
        return NO_CHAMPION
    if rival.as_of > as_of:
        return f"it is later (as of {instant_text(rival.as_of)})"
    division, theirs = _divisions(store, dataset, rival)
    if is_same_rule(division, theirs):
        return IS_BASELINE
    test_start = datetime.fromisoformat(dataset.meta["bounds"]["test"][0])
    for split in LEARNED_FROM:
        end = datetime.fromisoformat(rival.bounds[split][1])
        if end > test_start:
            otherwise = ", and its rows were divided otherwise (data.split, data.source.key, data.group): give promote.model another name"
            return f"its {split} rows end at {end.isoformat()}, after the test rows begin{'' if division is None else otherwise}"
    return IS_BASELINE


def _unseen(
    store: Store, dataset: Manifest, reader: DatasetReader, test: Ints, rival: Rival, folder: Path
) -> tuple[NDArray[np.bool_], str | None]:
    """Return whether the rival was neither trained nor chosen on each test row, and why it cannot be compared, or None."""
    everything = np.ones(len(test), dtype=np.bool_)
    digest = store.manifests.get(rival.model_uri, kind="model").meta["dataset"]
    try:
        theirs = DatasetReader(store, store.manifests.get(store.manifests.uri(digest), kind="dataset"), folder)
    except StoreError as err:
        if err.code not in GONE:
            raise
        return everything, f"its dataset {digest} is gone, so which test rows it was trained on is unknown: give promote.model another name"
    key = dataset.meta["split"]["key"]
    hashes = np.concatenate([np.empty(0, dtype=np.uint64), *_hashes(reader, test, key)])
    learned = (part for split in LEARNED_FROM for part in _hashes(theirs, theirs.numbers(split), key))
    known, places = np.unique(hashes, return_inverse=True)
    mask = ~found_in(learned, known)[places]
    if mask.sum() < MIN_UNSEEN * len(test):
        return everything, f"it was trained on {np.count_nonzero(~mask)} of the {len(test)} test rows: give promote.model another name"
    return mask, None


def _hashes(reader: DatasetReader, numbers: Ints, key: Sequence[str]) -> Iterator[Hashes]:
    """Yield the hash of the key of each of the rows, some rows at a time."""
    for rows in reader.tables(numbers, key, batch_rows=BATCH_ROWS):
        yield row_hashes([rows.column(name) for name in key], 0)
