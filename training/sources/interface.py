"""The seam between a pipeline and where its rows are: a source lists parts with versions, and reads one part of one version.

A part is what is read at a time and what a snapshot names: a file, a day of a table, a range of keys. Nothing here needs a file system:
a version is anything that the source can read again (an ETag, a revision of a lake's table, a transaction). Light: operators list sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import NotRequired, Protocol, TypedDict


class ListedPart(TypedDict):
    """A part as a request has it, in JSON: what `SourcePart` says."""

    uri: str
    size_bytes: int
    version: str
    partition: str | None
    table: NotRequired[str]


@dataclass(frozen=True, slots=True)
class SourcePart:
    """One part of a table, of one version."""

    uri: str
    """Names it among the table's parts, the same for each version of it. Of a table with a `uri`, it begins with that."""
    size_bytes: int
    """As stored; 0 where the source does not know."""
    version: str
    """Another one whenever the content is another one."""
    partition: str | None = None
    """Its day, YYYY-MM-DD, of a source in daily parts; of files also an hour (2026-01-31T06) or a month (2026-01)."""

    table: str | None = None
    """Of which table of a union it is; None without `data.source.union`. A source leaves it out."""

    @classmethod
    def of(cls, listed: ListedPart) -> SourcePart:
        return cls(listed["uri"], listed["size_bytes"], listed["version"], listed["partition"], listed.get("table"))

    def as_json(self) -> ListedPart:
        found: ListedPart = {"uri": self.uri, "size_bytes": self.size_bytes, "version": self.version, "partition": self.partition}
        return found if self.table is None else {**found, "table": self.table}


@dataclass(frozen=True, slots=True)
class SourceWindow:
    """What a run may see of a table: event times in [start, end), of all that is known at `as_of`. A source may list more than that."""

    start: datetime | None
    """None: all of its past."""
    end: datetime | None
    as_of: datetime
    days: tuple[date, ...] = ()
    """Of a source in daily parts, in order: those of the window, in the pipeline's time zone."""
    partitions: tuple[str, ...] = ()
    """Of files in partitions, in order: the names of those that are needed, by the clock of the pipeline's time zone."""


class ArrowStream(Protocol):
    """Rows as Arrow's C stream: a `pyarrow.Table` or `RecordBatchReader`, and what ADBC, DuckDB or Polars return."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


@dataclass(frozen=True, slots=True)
class PartContent:
    """What a part holds."""

    rows: ArrowStream | Path
    """A path is of a Parquet file in the given folder."""
    digest: str = ""
    """Identifies the content at any place (`sha256:…`); empty: that of the file, or of the rows as the snapshot stores them."""


class Source(Protocol):
    """One table of a pipeline. It is made of the table's `TableContract`: `uri`, `partition`, `settings`, `columns`."""

    def list(self, window: SourceWindow) -> Sequence[SourcePart]:
        """Return the parts that a run may need, as they are now; a day without data has none.

        Raises:
            UnavailableError: the source does not answer; the task is retried.
            NightshiftError: of another class, the source cannot be used; the task fails.
        """
        ...

    def read(self, part: SourcePart, folder: Path, *, limit_bytes: int) -> PartContent:
        """Return the declared columns of a part that was listed, of that version; others than declared and ignored ones are refused.

        Two reads of one part give the same rows in the same order: with `data.source.newest_by` each part is read twice.

        Args:
            folder: an empty one on the local disk, removed once the part is stored.
            limit_bytes: the largest size of the rows, decoded.

        Raises:
            DataError: `source.changed`, the listed version no longer exists; `source.too_large`.
        """
        ...
