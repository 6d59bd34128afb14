"""A warning for SQL whose meaning another engine, or another version of this one, need not share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from training.errors import shown
from training.spec.rules.findings import Finding
from training.spec.sections.data import Data, Derived, Prepare
from training.spec.yaml_reader import Path
from training.sql.analysis import called
from training.sql.portable_functions import FUNCTIONS


def functions_are_portable(data: Data, prepare: Prepare) -> Iterator[Finding]:
    """Yield a finding for each function of a derived column or of `where` that is not in `training.sql.portable_functions`."""
    yield from _derived(("data", "source", "derive"), data.source.derive)
    if data.source.where is not None:
        yield from _of_sql(("data", "source", "where", "sql"), data.source.where.sql)
    for name, window in data.windows.items():
        if window.where is not None:
            yield from _of_sql(("data", "windows", name, "where"), window.where)
    yield from _derived(("prepare", "derive"), prepare.derive)


def _derived(section: Path, columns: Mapping[str, Derived]) -> Iterator[Finding]:
    for name, column in columns.items():
        yield from _of_sql((*section, name, "sql"), column.sql)


def _of_sql(path: Path, sql: str) -> Iterator[Finding]:
    unlisted = [name for name in called(sql) if name not in FUNCTIONS]
    if unlisted:
        message = f"the SQL calls {', '.join(map(shown, unlisted))}, whose values another version of the engine need not share"
        yield Finding(
            path, "derive.portability", message, "use functions of the list in docs/data.md, or keep it: it works with this version"
        )
