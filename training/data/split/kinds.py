"""Splits that are not made by time: random by row, by group, stratified, or named by a column.

Where a row goes at random is decided by a hash of the row's own key (or of its group) and `data.split.seed`, not by its place among the
others: the order of the rows, new rows and the engine change nothing. A hash is the first 64 bits of BLAKE2b (RFC 7693) as a number
below 2**64; a row is in test where it is below `test` * 2**64, in validation where it is below (`test` + `validation`) * 2**64, and
otherwise in train.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from training.contracts import JsonObject
from training.data.dataset.scratch_arrays import ScratchArrays
from training.data.join.contract import LABEL
from training.data.join.engines.interface import Frame
from training.data.split.by_time import SPLITS, Parts
from training.data.split.hashing import row_hashes
from training.data.split.strata import SmallestHashes, shares_of, value_numbers
from training.errors import DataError, shown
from training.spec import PipelineSpec

MAX_SHOWN: Final = 5
TRAIN, VALIDATION, TEST = range(len(SPLITS))
STABLE: Final = ("random", "group", "column")
"""Kinds that give a row the same split in every run, whatever other rows there are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """How much validation and test have, exactly as written."""

    validation: Fraction
    test: Fraction

    @classmethod
    def of(cls, validation: object, test: object) -> Shares:
        """Read shares as a spec has them."""
        return cls(validation=Fraction(repr(validation)), test=Fraction(repr(test)))


def kind_parts(spec: PipelineSpec, frame: Frame, arrays: ScratchArrays) -> Iterator[Parts]:
    """Yield where the rows go as `data.split.by` says, some rows at a time.

    Args:
        frame: joined rows.
        arrays: makes the arrays.

    Raises:
        DataError: `split.value`, the split's column has a value that names no split; after the last rows.
    """
    split = spec.data.split
    if split.by == "column":
        yield from named_parts(frame.column_batches(str(split.column)), split.values, column_name=str(split.column))
        return
    unit = split.column or spec.data.group if split.by == "group" else spec.data.group
    columns = [frame.column_batches(name) for name in ([unit] if unit else spec.data.source.key)]
    hashes = (row_hashes(batch, split.seed) for batch in zip(*columns, strict=True))
    shares = Shares.of(split.validation, split.test)
    if split.by != "stratified":
        yield from (hashed_parts(batch, shares) for batch in hashes)
        return
    strata = frame.column_batches(split.column or LABEL)
    yield from stratified_parts(arrays.filled(hashes, frame.num_rows, np.uint64), strata, shares, arrays)


def split_meta(spec: PipelineSpec, frame: Frame, test_rows: NDArray[np.int64]) -> JsonObject | None:
    """Return what decides where a row goes, for the meta of datasets and models; None for splits by time, which the bounds describe.

    Args:
        frame: the dataset's rows.
        test_rows: numbers of the rows in test. Of `stratified` they are described too, by a hash of their keys, because other rows change
            them.
    """
    split = spec.data.split
    if split.by == "time":
        return None
    values: JsonObject = split.model_dump(mode="json", exclude_none=True, exclude={"end", "gap"})
    # What is hashed: another key sends rows to other splits.
    key = list(spec.data.source.key)
    found: JsonObject = {**values, "key": key, "group": spec.data.group}
    if split.by != "stratified":
        return found
    hashes = row_hashes([frame.column(name).take(pa.array(test_rows)) for name in key], split.seed)
    return {**found, "test_rows": hashlib.blake2b(np.sort(hashes).astype(">u8").tobytes(), digest_size=16).hexdigest()}


def is_same_division(one: JsonObject | None, other: JsonObject | None) -> bool:
    """Return whether no test row of one division is a row of train or validation of the other; each is what `split_meta` returned.

    The kinds in `STABLE` send every row to the same split, whatever other rows there are. Of `stratified` the test rows must be the same.
    """
    return one is not None and one == other and (one["by"] in STABLE or "test_rows" in one)


def is_same_rule(one: JsonObject | None, other: JsonObject | None) -> bool:
    """Return whether two divisions follow one rule, whatever rows they have; each is what `split_meta` returned.

    By the kinds in `STABLE` each row has then the same split in both. By `stratified` rows that are in one of them only move a few others.
    """

    def rule(division: JsonObject) -> JsonObject:
        return {name: value for name, value in division.items() if name != "test_rows"}

    return one is not None and other is not None and rule(one) == rule(other)


def division_words(division: JsonObject) -> str:
    """Say in a line how the rows were divided, for a report; `division` is what `split_meta` returned."""
    parts = [f"by {division['by']}", *(f"{name} {division[name]}" for name in ("column", "validation", "test") if name in division)]
    return ", ".join([*parts, f"seed {division['seed']}"] if division["by"] != "column" else parts)


def hashed_parts(hashes: NDArray[np.uint64], shares: Shares) -> Parts:
    """Return where each row goes by its hash, [n]."""
    test, both = (math.floor(share * 2**64) for share in (shares.test, shares.test + shares.validation))
    parts = np.full(len(hashes), TRAIN, dtype=np.int8)
    parts[hashes < np.uint64(both)] = VALIDATION
    parts[hashes < np.uint64(test)] = TEST
    return parts


def stratified_parts(
    hashes: NDArray[np.uint64], strata: Iterable[pa.ChunkedArray], shares: Shares, arrays: ScratchArrays
) -> Iterator[Parts]:
    """Yield where each row goes such that each value of `strata`, [n], has its share in every split, to less than one row.

    Of each stratum the rows with the smallest hashes are test, the next ones validation; of equal hashes the earlier row comes first.
    Missing values are a stratum.
    """
    smallest = SmallestHashes(hashes, *value_numbers(strata, len(hashes), arrays), arrays)
    test, both = (shares_of(smallest.sizes, share) for share in (shares.test, shares.test + shares.validation))
    for is_both, is_test in zip(smallest.chosen(both), smallest.chosen(test), strict=True):
        parts = np.full(len(is_both), TRAIN, dtype=np.int8)
        parts[is_both] = VALIDATION
        parts[is_test] = TEST
        yield parts


def named_parts(column: Iterable[pa.ChunkedArray], values: Mapping[Any, Sequence[object]] | None, *, column_name: str) -> Iterator[Parts]:
    """Yield where each row goes by the value of a column.

    Args:
        column: texts, integers or booleans, some rows at a time.
        values: split to the values of its rows; None: the values are the splits' names.
        column_name: for messages.

    Raises:
        DataError: `split.value`, a value that names no split, or a missing one; after the last rows.
    """
    named = {name: (name,) for name in SPLITS} if values is None else values
    part_of = {value: SPLITS.index(name) for name, listed in named.items() for value in listed}
    unknown: dict[Any, int] = {}
    for rows in column:
        encoded = pc.dictionary_encode(rows.combine_chunks(), null_encoding="encode")
        codes, found = np.asarray(encoded.indices, dtype=np.int64), encoded.dictionary.to_pylist()
        for number, value in enumerate(found):
            if value not in part_of:
                unknown[value] = unknown.get(value, 0) + int((codes == number).sum())
        yield np.array([part_of.get(value, TRAIN) for value in found], dtype=np.int8)[codes]
    if unknown:
        shown_rows = list(unknown.items())[:MAX_SHOWN]
        listed = ", ".join(f"{'null' if value is None else shown(value)} ({rows} rows)" for value, rows in shown_rows)
        message = f"column {column_name} has {len(unknown)} values that name no split: {listed}"
        raise DataError("split.value", message, hint="list every value in data.split.values, or filter these rows")


def check_groups(parts: Parts, groups: NDArray[np.int32], *, by: str, group: str) -> None:
    """Check that the rows of each group are in one split.

    Args:
        parts: where the rows go.
        groups: [n] dense numbers.
        by: `data.split.by`, for the message.
        group: column of the groups, for the message.

    Raises:
        DataError: `split.group_divided`.
    """
    num_groups = int(groups.max(initial=-1)) + 1
    lowest, highest = np.full(num_groups, len(SPLITS), dtype=np.int8), np.full(num_groups, -1, dtype=np.int8)
    np.minimum.at(lowest, groups, parts)
    np.maximum.at(highest, groups, parts)
    divided = int((lowest != highest).sum())
    if divided:
        message = f"{divided} of {num_groups} groups of {group} have rows in more than one split (data.split.by: {by})"
        raise DataError("split.group_divided", message, hint=f"divide by a column that has one value per {group}")
