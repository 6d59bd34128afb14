"""Reads each file of a table as a run will, before a pipeline is written for it: what `init` accepts, ingest reads."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

from training.errors import DataError
from training.sources.derived_columns import derive
from training.sources.interface import SourceWindow
from training.sources.local_folder import local_path
from training.sources.registry import source_of
from training.sources.size_limits import table_limit_bytes
from training.sources.snapshot_files import read_rows
from training.sources.table_contract import contracts_of
from training.spec import PipelineSpec
from training.starter.table_files import TableFiles


def read_as_ingest(spec: PipelineSpec, files: TableFiles, folder: Path) -> None:
    """Read the rows of all files, and compute the derived columns; nothing is kept.

    Args:
        spec: with the files' URI in it.
        folder: for scratch files.

    Raises:
        DataError: of the source of the table's kind, and of `read_rows` and `derive`; it names a file by its path.
    """
    contract, limit_bytes = contracts_of(spec)[0], table_limit_bytes()
    source = source_of(contract)
    window = SourceWindow(None, None, datetime.now(UTC), partitions=tuple(sorted(set(files.names))))
    for number, part in enumerate(source.list(window)):
        scratch = folder / f"part-{number}"
        scratch.mkdir()
        try:
            content = source.read(part, scratch, limit_bytes=limit_bytes)
            rows = read_rows(contract, content, source=part.uri, limit_bytes=limit_bytes, partition=part.partition)
            derive(contract, rows, source=part.uri)
        except DataError as err:
            message = err.message.replace(part.uri, str(local_path(part.uri)))
            raise DataError(err.code, message, hint=err.hint, details=err.details) from err
        shutil.rmtree(scratch)
