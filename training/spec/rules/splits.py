"""Rules about `data.split`: which keys each kind has, and whether its columns can divide rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from training.spec.reader.problems import nearest
from training.spec.reader.yaml import Path
from training.spec.rules.rule_problems import Violation
from training.spec.scalar_types import duration_text, in_yaml
from training.spec.sections.data import Data, Split
from training.spec.sections.evaluation import Evaluate

PATH: Path = ("data", "split")
KEYS: Final = {
    "time": ("validation", "test", "gap"),
    "random": ("validation", "test", "seed"),
    "group": ("validation", "test", "column", "seed"),
    "stratified": ("validation", "test", "column", "seed"),
    "column": ("column", "values"),
}
"""Kind of split to the keys that it has, besides `by` and `end`."""
COMPARED: Final = ("string", "boolean", "int8", "int16", "int32", "int64")
"""Types of columns whose values name splits."""


def split_keys_fit(data: Data) -> Iterator[Violation]:
    """Yield a violation for each key of the split that its kind needs and lacks, or has and does not read."""
    split = data.split
    known = KEYS[split.by]
    for key in ("validation", "test", "gap", "column", "values", "seed"):
        if key not in known and getattr(split, key) != Split.model_fields[key].default:
            kinds = ", ".join(kind for kind, keys in KEYS.items() if key in keys)
            yield Violation((*PATH, key), "field.conflict", f"a split by {split.by} has no {key}", f"remove it; {key} is for {kinds}")
    for key in ("validation", "test"):
        if key in known:
            yield from _size(split, key)
    shares = [size for size in (split.validation, split.test) if isinstance(size, float)]
    if split.by != "time" and sum(shares) >= 1:
        message = f"validation ({shares[0]}) and test ({shares[1]}) leave no rows to train on"
        yield Violation(PATH, "split.shares", message, "make their sum smaller than 1")


def _size(split: Split, key: str) -> Iterator[Violation]:
    value = getattr(split, key)
    path = (*PATH, key)
    if value is None:
        wanted = "a duration such as 1d" if split.by == "time" else "a share such as 0.1"
        yield Violation(path, "field.missing", f"the key {key} is missing: a split by {split.by} needs it", f"write {wanted}")
    elif split.by == "time" and not isinstance(value, timedelta):
        message = f"a split by time is so long, got the share {value}"
        yield Violation(path, "field.conflict", message, "write a duration such as 1d, or set by: random")
    elif split.by != "time" and isinstance(value, timedelta):
        message = f"a split by {split.by} has a share of the rows, got the duration {duration_text(value)}"
        yield Violation(path, "field.conflict", message, "write a share such as 0.1, or set by: time")


def split_columns_fit(data: Data) -> Iterator[Violation]:
    """Yield a violation where the split's column is missing, cannot divide rows, or would divide groups."""
    split, types = data.split, data.source.types
    path: Path = (*PATH, "column")
    if split.by == "column" and split.column is None:
        yield Violation(path, "field.missing", "the key column is missing: its values name the splits")
    if split.by == "group" and split.column is None and data.group is None:
        yield Violation(path, "field.missing", "the key column is missing: a split by group needs it, or data.group")
    if split.by == "stratified" and data.group is not None:
        message = f"a stratified split would divide the groups of {data.group}"
        yield Violation((*PATH, "by"), "field.conflict", message, "set by: group, random or time")
    if split.column is None or "column" not in KEYS[split.by]:
        return
    if split.column not in types:
        message = f"{split.column} is not a column of table {data.source.table}"
        yield Violation(path, "column.unknown", message, nearest(split.column, types))
        return
    kind = types[split.column]
    if split.by == "column":
        yield from _values(split, kind)
    elif kind in ("float", "double"):
        message = f"{split.column} is of type {kind}: a split by {split.by} needs values that are equal in many rows"
        yield Violation(path, "column.type", message, "derive an integer or a text from it in data.source.derive")


def _values(split: Split, kind: str) -> Iterator[Violation]:
    path: Path = (*PATH, "values")
    if kind not in COMPARED:
        message = f"{split.column} is of type {kind}: values of text, integers or booleans name splits"
        yield Violation((*PATH, "column"), "column.type", message, "derive such a column in data.source.derive")
        return
    if split.values is None:
        if kind != "string":
            message = f"the key values is missing: {split.column} is of type {kind}, so its values are not train, validation and test"
            yield Violation(path, "field.missing", message, "list the values of each split: {train: [1, 2], validation: [3], test: [4]}")
        return
    for name in ("train", "validation", "test"):
        if name not in split.values:
            yield Violation(path, "field.missing", f"the key {name} is missing: every split needs values")
    wanted = {"string": str, "boolean": bool}.get(kind, int)
    seen: dict[object, str] = {}
    for name, values in split.values.items():
        for index, value in enumerate(values):
            if type(value) is not wanted:
                message = f"{in_yaml(value)} cannot be a value of {split.column}, which is of type {kind}"
                yield Violation((*path, name, index), "column.type", message, "quote texts; write integers and booleans without quotes")
            elif value in seen:
                yield Violation(
                    (*path, name, index), "field.conflict", f"{in_yaml(value)} is a value of {seen[value]} too", "keep one of the two"
                )
            seen.setdefault(value, name)


def strata_exist(data: Data, evaluate: Evaluate) -> Iterator[Violation]:
    """Yield a violation where a stratified split would take each number to be predicted as a class."""
    if data.split.by == "stratified" and data.split.column is None and evaluate.task not in ("binary", "multiclass"):
        message = f"the label of the task {evaluate.task} has no classes to keep the shares of"
        yield Violation((*PATH, "column"), "field.missing", message, "name a column, or set by: random")
