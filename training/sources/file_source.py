"""Sources whose parts are files: listed by storage, one file of one version copied to the local disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from training.sources.interface import SourcePart, SourceWindow
from training.sources.listing import SourceObject, list_partitions, list_source, read_source
from training.sources.table_contract import TableContract


class FileSource:
    """A file, all files of a folder, or those of a folder for each hour, day or month."""

    def __init__(self, contract: TableContract) -> None:
        self.contract = contract
        self._uri = contract.place

    def list(self, window: SourceWindow) -> Sequence[SourcePart]:
        """Return the data files, sorted by partition and URI.

        Raises:
            DataError, UnavailableError, DeniedError: of `list_source`.
        """
        if self.contract.partition is None:
            return [_part(found, None) for found in list_source(self._uri)]
        listed = list_partitions(self._uri, self.contract.partition, window.partitions)
        return [_part(found, name) for name, sources in sorted(listed.items()) for found in sources]

    def copied(self, part: SourcePart, folder: Path) -> Path:
        """Copy a file of the listed version into `folder`.

        Raises:
            DataError: of `read_source`.
        """
        return read_source(part.uri, part.version, folder / "source", root=self._uri)


def _part(found: SourceObject, partition: str | None) -> SourcePart:
    return SourcePart(found.uri, found.size_bytes, found.version, partition)
