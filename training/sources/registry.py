"""The source of a table, by its kind; `spec.descriptors.sources` says which there are. Light: a source is imported where it is used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from training.errors import DataError, NightshiftError, UnavailableError, shown, spec_error
from training.sanitizing import masked
from training.sources.interface import PartContent, Source, SourcePart, SourceWindow
from training.sources.table_contract import TableContract
from training.spec.descriptors.sources import SOURCES
from training.spec.registry import imported

SourceClass = Callable[[TableContract], Source]


def source_of(contract: TableContract) -> Source:
    """Return the source of a table, which knows the columns by its own names (`TableContract.at_source`).

    Raises:
        SpecError: `source.unknown`, its kind is not installed here; `source.not_a_source`, the kind's module has no `SOURCE` with `list`
            and `read`.
    """
    contract, kind = contract.at_source(), contract.kind
    if kind in SOURCES.built_in:
        own: Source = importlib.import_module(f"training.sources.kinds.{kind}").SOURCE(contract)
        return own
    if SOURCES.package_of(kind) is None:
        where = "where Airflow parses DAG files and where stages run"
        message = f"table {shown(contract.name)} is of the kind {shown(kind)}, which is not installed here"
        raise spec_error("data", "source.unknown", message, hint=f"install the distribution that adds it {where}")
    hint = "assign SOURCE = a class with the methods of training.sources.interface.Source"
    return _InstalledSource(contract, imported(kind, SOURCES.implementation_of(kind), _is_source, code="source.not_a_source", hint=hint))


def _is_source(found: object) -> bool:
    return callable(getattr(found, "list", None)) and callable(getattr(found, "read", None))


class _InstalledSource:
    """A source of another distribution: what it raises and returns is made sure to be what the protocol says."""

    def __init__(self, contract: TableContract, kind: SourceClass) -> None:
        self._contract = contract
        with self._faults("set up"):
            self._source = kind(contract)

    def list(self, window: SourceWindow) -> Sequence[SourcePart]:
        with self._faults("listed"):
            parts = tuple(self._source.list(window))
        fault = _listing_fault(parts, window)
        if fault:
            raise DataError("source.listing", f"{self._name()} returned a listing in which {fault}", hint="correct its method `list`")
        return sorted(parts, key=lambda part: (part.partition or "", part.uri))

    def read(self, part: SourcePart, folder: Path, *, limit_bytes: int) -> PartContent:
        with self._faults(f"read ({part.uri})"):
            content = self._source.read(part, folder, limit_bytes=limit_bytes)
        if isinstance(content, PartContent) and (isinstance(content.rows, Path) or hasattr(content.rows, "__arrow_c_stream__")):
            return content
        found = type(content.rows if isinstance(content, PartContent) else content).__name__
        raise DataError(
            "source.content", f"{self._name()} returned a {found} for {part.uri}", hint="return a PartContent of Arrow rows or a path"
        )

    def _name(self) -> str:
        return f"the source {shown(self._contract.kind)} of table {shown(self._contract.name)}"

    @contextmanager
    def _faults(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (NightshiftError, MemoryError):
            raise
        except (ConnectionError, TimeoutError) as err:
            raise UnavailableError("source.unavailable", masked(f"{self._name()} cannot be {doing}: {type(err).__name__}: {err}")) from err
        except (Exception, SystemExit) as err:
            message = masked(f"{self._name()} cannot be {doing}: {type(err).__name__}: {err}")
            raise DataError("source.failed", message, hint="the log has the stack of the source's own code") from err


def _listing_fault(parts: Sequence[SourcePart], window: SourceWindow) -> str:
    """Return what is wrong with a listing, or nothing."""
    days = {day.isoformat() for day in window.days}
    seen: set[str] = set()
    for part in parts:
        if not isinstance(part, SourcePart):
            return f"an entry is a {type(part).__name__}, not a SourcePart"
        if not all(isinstance(text, str) and text for text in (part.uri, part.version)):
            return f"a part has no uri or no version, or one that is not text: {shown(part)}"
        if not isinstance(part.size_bytes, int) or part.size_bytes < 0:
            return f"{shown(part.uri)} has the size {shown(part.size_bytes)}, which is not a number of bytes"
        if part.uri in seen:
            return f"{shown(part.uri)} appears twice"
        if days and part.partition not in days:
            return f"{shown(part.uri)} is of the day {shown(part.partition)}, which is outside of the window"
        if not days and part.partition is not None:
            return f"{shown(part.uri)} has a day, and the table is not in daily parts"
        seen.add(part.uri)
    return ""
