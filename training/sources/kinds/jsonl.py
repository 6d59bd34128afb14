"""JSON lines: one object per line."""

from __future__ import annotations

from pathlib import Path

from training.errors import DataError
from training.sources.file_source import FileSource
from training.sources.interface import PartContent, SourcePart


class JsonLinesSource(FileSource):
    """Files of one JSON object per line, plain or compressed; values that are not of their column's declared type are refused."""

    def read(self, part: SourcePart, folder: Path, *, limit_bytes: int) -> PartContent:
        """Read one file, as a stream of its rows.

        Raises:
            DataError: `data.empty`, a file without rows that is the whole table; `schema.unexpected`, keys neither declared nor
                ignored; of `plain_file` and `first_keys`; while the rows are read, those of `read_jsonl`.
        """
        # Imported here: operators list files, and need no Arrow for it.
        from training.sources.arrow_schema import declared_columns, types_in_file
        from training.sources.compression import plain_file
        from training.sources.jsonl_reader import TEXTS, first_keys, read_jsonl
        from training.store.objects import file_digest

        copied, contract = self.copied(part, folder), self.contract
        path = plain_file(copied, folder, source=part.uri, limit_bytes=limit_bytes)
        keys = first_keys(path, source=part.uri)
        if keys is None:
            if not self.is_one_of_several(part):
                raise DataError("data.empty", f"{part.uri} has no rows", hint="see whether the source was written")
            # A file without rows names no columns.
            keys = list(contract.columns)
        present = declared_columns(contract, keys, source=part.uri)
        types = types_in_file(contract, present)
        # A number has no decimal comma: beside a number format it is refused.
        marked = {name: contract.columns[name] for name in present if contract.columns[name].number_format is None}
        as_texts = {name: column.type for name, column in marked.items() if column.missing and column.type not in TEXTS}
        return PartContent(read_jsonl(path, keys, types, source=part.uri, as_texts=as_texts), f"sha256:{file_digest(copied)}")


SOURCE = JsonLinesSource
