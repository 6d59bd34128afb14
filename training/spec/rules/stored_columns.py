"""Rules of the keys that say what the values of a Parquet file mean: `stored_as`, `scale` and `zone` of a column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from training.spec.descriptors.sources import SOURCES
from training.spec.reader.yaml import Path
from training.spec.rules.rule_problems import Violation
from training.spec.sections.data import Column, Data

TYPES_OF_STORED: Final[Mapping[str | None, str]] = {"int96_utc": "timestamp", "decimal": "double", "scale": "int64", "zone": "timestamp"}
"""By the key, or the value of `stored_as`."""
PARQUET: Final = "parquet"


def stored_columns_fit(data: Data) -> Iterator[Violation]:
    """Yield a violation for each such key of a column that has another type, is not in the file, or is in text files."""
    source = data.source
    tables: list[tuple[Path, Mapping[str, Column], set[str]]] = [
        (("data", "source"), source.columns, {source.kind, *(table.kind for table in source.union)})
    ]
    tables += [(("data", "features", index), table.columns, {table.kind}) for index, table in enumerate(data.features)]
    for start, columns, kinds in tables:
        is_text = all(kind in SOURCES.built_in and kind != PARQUET for kind in kinds)
        for name, column in columns.items():
            path: Path = (*start, "columns", name)
            for key in column.stored_keys:
                wanted = TYPES_OF_STORED[column.stored_as if key == "stored_as" else key]
                if (is_text and key != "zone") or not column.is_in_file:
                    message = f"{key} is of columns of {'files' if key == 'zone' else 'Parquet files'}, and {name} " + (
                        "is text" if is_text else "is not in the file"
                    )
                    yield Violation((*path, key), "field.conflict", message, "remove the key")
                elif column.type != wanted:
                    message = f"{name} is of type {column.type}, and {key} is of type {wanted}"
                    yield Violation((*path, "type"), "column.type", message, "correct the type")
            if column.stored_as is not None and column.zone is not None:
                yield Violation((*path, "zone"), "field.conflict", f"{name} has the keys stored_as and zone", "remove one of the two keys")
