"""Sources whose parts are files: listed by storage, one file of one version copied to the local disk."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from training.sources.interface import SourcePart, SourceWindow
from training.sources.listing import SourceObject, list_partitions, list_source, read_source
from training.sources.table_contract import TableContract
from training.store.bucket import as_uri

logger = logging.getLogger(__name__)

MAX_NAMED: Final = 3


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
        passed_over: list[str] = []
        if self.contract.partition is None:
            parts = _with_content(list_source(self._uri, passed_over=passed_over), None, passed_over)
        else:
            listed = list_partitions(self._uri, self.contract.partition, window.partitions, passed_over=passed_over)
            parts = [part for name, found in sorted(listed.items()) for part in _with_content(found, name, passed_over)]
        if passed_over:
            named = ", ".join(passed_over[:MAX_NAMED]) + (", …" if len(passed_over) > MAX_NAMED else "")
            logger.info(
                "%s: %d files are passed over: no data, in no partition, or of 0 bytes: %s", self.contract.name, len(passed_over), named
            )
        return parts

    def is_one_of_several(self, part: SourcePart) -> bool:
        """Whether a part may be without rows: it is not the file that is the whole table."""
        return self.contract.partition is not None or part.uri != as_uri(self._uri)

    def copied(self, part: SourcePart, folder: Path) -> Path:
        """Copy a file of the listed version into `folder`.

        Raises:
            DataError: of `read_source`.
        """
        return read_source(part.uri, part.version, folder / "source", root=self._uri)


def _with_content(found: list[SourceObject], partition: str | None, passed_over: list[str]) -> list[SourcePart]:
    """Return the files as parts, without those of 0 bytes that have others beside them."""
    held = [each for each in found if each.size_bytes] or found
    passed_over += [each.uri for each in found if not each.size_bytes and each not in held]
    return [SourcePart(each.uri, each.size_bytes, each.version, partition) for each in held]
