"""Folders of lake tables (Delta, Hudi, Iceberg). Their logs alone say which files count: those of deleted and replaced rows stay there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

from training.errors import DataError

MARKER: Final = re.compile(
    r"^(?P<table>(?:.*/)?)(?:(?P<Delta>_delta_log/)|(?P<Hudi>\.hoodie/|\.hoodie_partition_metadata)"
    r"|(?P<Iceberg>metadata/(?:[^/]*\.metadata\.json|[^/]*\.metadata\.json\.gz|version-hint\.text)$))"
)
FORMATS: Final = ("Delta", "Hudi", "Iceberg")
HINT: Final = "write the rows of its current version to Parquet files in another folder, or install a source that reads its log"


def refuse_lake_table(place: str, names: Iterable[str]) -> None:
    """Raise DataError `source.lake_table` where a name is that of a lake table's log.

    Args:
        place: the folder, for the message.
        names: of files below it, with their folders; `_delta_log/` for a folder.
    """
    for found in filter(None, map(MARKER.search, names)):
        kind = next(name for name in FORMATS if found[name])
        table = f"{place}/{found['table']}".rstrip("/")
        message = f"{table} is in a table of the format {kind} (it has {found[kind]}), whose files also hold deleted and replaced rows"
        raise DataError("source.lake_table", message, hint=HINT)


def tables_above(uri: str, partition: str | None) -> list[str]:
    """Return the folders that a lake table may begin in and that no listing of the source shows.

    Above the folders of partitions (`dt=2026-01-31`), a file of Parquet, and `data`, where Iceberg has its files.

    Args:
        uri: of a file or folder, `scheme://…`.
        partition: of the folders that are listed below it; None: all of it is listed.
    """
    scheme, _, path = uri.partition("://")
    parts, found = path.split("/"), [] if partition is None else [path]
    while len(parts) > 1 and ("=" in unquote(parts[-1]) or parts[-1].endswith(".parquet")):
        parts.pop()
    top = "/".join(parts)
    found += [top] if top not in (path, *found) else []
    if len(parts) > 1 and parts[-1] == "data":
        found.append("/".join(parts[:-1]))
    return [f"{scheme}://{each}" for each in found]
