"""Rules of `validate.drift.columns`: which columns are compared, and by which limits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from training.spec.reader.problems import nearest
from training.spec.reader.yaml import Path
from training.spec.rules.rule_problems import Violation
from training.spec.sections.data import Data
from training.spec.sections.validation import Validate

VALUES: Final = frozenset({"string", "boolean"})
"""Types whose different values are compared, not their distribution."""


def drift_columns_fit(data: Data, validate: Validate) -> Iterator[Violation]:
    """Yield a violation for each column of `validate.drift.columns` that no table has, or that one of its limits cannot judge."""
    source = data.source
    compared = set(_compared(source.types, {*_alone(source.key), source.event_time}))
    known = dict.fromkeys(source.types)
    for table in data.features:
        types = {name: column.type for name, column in table.columns.items()}
        known |= dict.fromkeys(types)
        key = [*table.on.values(), *([table.event_time] if table.event_time else [])]
        compared |= set(_compared(types, {*_alone(key), table.event_time}))
    for name, limits in validate.drift.columns.items():
        path: Path = ("validate", "drift", "columns", name)
        kinds = {kind for other, kind in compared if other == name}
        if name not in known:
            yield Violation(path, "column.unknown", f"{name} is not a column of any table", nearest(name, known))
        elif not kinds:
            yield Violation(path, "field.conflict", f"{name} is a key, a date or a time, which are not compared", "remove it")
        elif limits.kolmogorov_smirnov is not None and not kinds - VALUES:
            message = f"kolmogorov_smirnov is of numbers, and {name} is of type {min(kinds)}"
            yield Violation((*path, "kolmogorov_smirnov"), "field.conflict", message, "set psi, jensen_shannon or new_categories")
        elif limits.new_categories is not None and not kinds & VALUES:
            message = f"new_categories is of texts and truth values, and {name} is of type {min(kinds)}"
            yield Violation((*path, "new_categories"), "field.conflict", message, "set psi, jensen_shannon or kolmogorov_smirnov")


def _alone(key: Sequence[str]) -> Sequence[str]:
    """Return the column of a key that identifies a row by itself; of several, each may be compared."""
    return key if len(key) == 1 else ()


def _compared(types: Mapping[str, str], keys: Collection[str | None]) -> Iterator[tuple[str, str]]:
    yield from ((name, kind) for name, kind in types.items() if name not in keys and kind not in ("date", "timestamp"))
