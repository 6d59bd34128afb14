"""Columns that are known too late to be features, found in the spec alone: no row is read.

A column is late where the YAML says `known: after`. A derived one is late if its SQL mentions a late column, directly or by way
of others, or the label; unless it states `known: before` and why (`because`). No feature, join key or event time may be late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from training.spec.reader.yaml import Path
from training.spec.rules.rule_problems import Violation
from training.spec.sections.data import Data
from training.spec.sections.derived import Derived
from training.spec.sections.prepare import Prepare
from training.sql.analysis import in_order_of_use, words

CODE = "leakage.time"


class Lateness:
    """Why a column is late, by its name; names are compared as SQL does, without regard to case."""

    def __init__(self, data: Data, prepare: Prepare) -> None:
        self._label = data.label.column.lower()
        self._why: dict[str, str] = {}
        self.unfounded: list[tuple[Path, str, str]] = []
        """(path, name, late columns that it mentions) of derived columns that are `known: before` and do not say why."""
        for name, column in data.source.columns.items():
            self._declare(name, column.known)
        for table in data.features:
            for name, joined in table.joined.items():
                self._declare(name, joined.known)
        self._why.setdefault(self._label, "is the label")
        derived = {**data.source.derive, **prepare.derive}
        for name, column_sql in in_order_of_use(derived):
            section: Path = ("data", "source", "derive") if name in data.source.derive else ("prepare", "derive")
            self._derive(section, name, column_sql)

    def why(self, name: str) -> str | None:
        """Return why the column is late, as the end of a sentence that begins with its name, or None."""
        return "is the label" if name.lower() == self._label else self._why.get(name.lower())

    def _declare(self, name: str, known: str) -> None:
        if known == "after":
            self._why[name.lower()] = "is `known: after`"

    def _derive(self, section: Path, name: str, column: Derived) -> None:
        late = sorted(word for word in words(column.sql) if word in self._why and word != name.lower())
        if column.known == "after":
            self._why[name.lower()] = "is `known: after`"
        elif column.known is None and late:
            self._why[name.lower()] = f"is derived from {late[0]}, which {self._why[late[0]]}"
        elif column.known == "before" and late and column.because is None:
            self.unfounded.append(((*section, name), name, ", ".join(late)))


def late_columns(data: Data, prepare: Prepare) -> Iterator[Violation]:
    """Yield a violation for each late column that the model, or a join, would see."""
    lateness = Lateness(data, prepare)
    for path, name, late in lateness.unfounded:
        message = f"{name} is said to be `known: before`, and its SQL mentions {late}, known only after the decision"
        yield Violation(path, "leakage.because", message, "say why it is known before all the same: `because: …`")
    for path, name, role in _uses(data, prepare):
        why = lateness.why(name)
        if why is not None:
            message = f"{role} {name} is known only after the decision: {name} {why}"
            yield Violation(path, CODE, message, _remedy(data, name, prepare.derive))


def _uses(data: Data, prepare: Prepare) -> Iterator[tuple[Path, str, str]]:
    """Yield (path, column, its role) of every column whose value must be known before."""
    yield ("data", "source", "event_time"), data.source.event_time, "the event time"
    for index, table in enumerate(data.features):
        for ours in table.on:
            yield ("data", "features", index, "on", ours), ours, "the join key"
    for name in prepare.features:
        yield ("prepare", "features", name), name, "feature"


def _remedy(data: Data, name: str, derive: Mapping[str, Derived]) -> str:
    if name.lower() == data.label.column.lower():
        return "take it out: a model that is given the answer learns nothing"
    if name in data.source.derive or name in derive:
        return "take it out; if it is known before all the same, give its `derive` a `known: before` and a `because`"
    return "take it out; if it is known before all the same, correct `known` where the column is declared"
