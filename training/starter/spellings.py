"""Values of one text in several spellings: capitals, blanks around it, a full stop, another Unicode form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from training.errors import shown
from training.sql.expressions import quoted
from training.starter.tables import FoundTable
from training.starter.yaml_scalars import scalar

MAX_VALUES: Final = 1_000
MAX_SHOWN: Final = 5


def spellings(table: FoundTable, names: Sequence[str]) -> Iterator[str]:
    """Yield a note for each of the columns of texts that has several spellings of a value, with the expression that makes one of them."""
    for name in names:
        column = table.columns.get(name)
        if column is None or column.type != "string":
            continue
        plain = f"rtrim(lower(trim(nfc_normalize({quoted(name)}))), '.')"
        text = quoted(name)
        values = f"SELECT DISTINCT {text} FROM rows WHERE {text} IS NOT NULL LIMIT {MAX_VALUES}"  # noqa: S608 - quoted
        query = f"SELECT list({text} ORDER BY {text}) FROM ({values}) GROUP BY {plain} HAVING count(*) > 1 ORDER BY 1"  # noqa: S608 - quoted
        groups = table.rows(query)
        if groups:
            alike = ", ".join(shown(text) for text in groups[0][0][:MAX_SHOWN])
            more = f" (and {len(groups) - 1} more values)" if len(groups) > 1 else ""
            derived = f"{name}_plain: {{type: string, sql: {scalar(plain)}}}"
            yield f"{name} has one value in several spellings, {alike}{more}: use instead, in data.source.derive, {derived}"
