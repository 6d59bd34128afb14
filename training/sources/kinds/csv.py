"""CSV files, plain or compressed."""

from __future__ import annotations

from pathlib import Path

from training.sources.file_source import FileSource
from training.sources.interface import PartContent, SourcePart


class CsvSource(FileSource):
    """Files with a header line; values that are not of their column's declared type are refused."""

    def read(self, part: SourcePart, folder: Path, *, limit_bytes: int) -> PartContent:
        """Read one file.

        Raises:
            DataError: `schema.unexpected`, columns neither declared nor ignored; of `plain_file`, `read_header` and `read_csv`;
                `source.too_large`, by the size of the file, decompressed.
        """
        # Imported here: operators list files, and need no Arrow for it.
        from training.sources.arrow_schema import declared_columns, types_in_file
        from training.sources.compression import plain_file
        from training.sources.csv_reader import read_csv, read_header
        from training.sources.size_limits import check_size
        from training.store.objects import file_digest

        copied, contract = self.copied(part, folder), self.contract
        path = plain_file(copied, folder, source=part.uri, limit_bytes=limit_bytes)
        check_size(path.stat().st_size, limit_bytes, what=part.uri)
        present = declared_columns(contract, read_header(path, source=part.uri), source=part.uri)
        types = types_in_file(contract, present)
        table = read_csv(path, types, source=part.uri, may_be_empty=self.is_one_of_several(part))
        return PartContent(table, f"sha256:{file_digest(copied)}")


SOURCE = CsvSource
