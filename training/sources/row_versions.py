"""Of rows with the same key the newest that was known at `as_of`: change data, and files that were exported again."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

import duckdb
import numpy as np
import pyarrow as pa

from training.contracts import microseconds_of
from training.errors import DataError
from training.sources.arrow_schema import require
from training.sources.interface import SourcePart
from training.sources.snapshot_files import instants
from training.sources.table_contract import TableContract
from training.sql.expressions import hardened, quoted


@dataclass(slots=True)
class RowVersions:
    """The versions of the rows of a table, over all of its parts."""

    contract: TableContract
    """With `newest_by`."""
    as_of: datetime
    counts: dict[str, int] = field(default_factory=dict)
    """Rows that do not count, by the name of the scalar: see `training.sources.rows_outside.VERSIONS`."""
    _parts: dict[SourcePart, pa.Table] = field(default_factory=dict)
    _kept: dict[SourcePart, pa.Array] = field(default_factory=dict)
    """Numbers of the rows of a part that count, sorted, int64; made by `settle`."""
    _digests: dict[SourcePart, object] = field(default_factory=dict)

    def add(self, part: SourcePart, table: pa.Table) -> None:
        """Take the keys and times of a part's rows, with the derived columns.

        Raises:
            DataError: `schema.missing`, `schema.type`.
        """
        key, newest_by, deleted_by = self.contract.key, str(self.contract.newest_by), self.contract.deleted_by
        require({*key, *([deleted_by] if deleted_by else [])}, table, "versions of a row are compared by it", source=part.uri)
        instants(table, newest_by, source=part.uri)
        keys = ", ".join(f"{quoted(name)} AS key_{place}" for place, name in enumerate(key))
        deleted = f"coalesce({quoted(deleted_by)}, false)" if deleted_by else "false"
        content = f"hash({', '.join(map(quoted, table.column_names))})"
        with hardened() as connection:
            self._digests[part] = self._digest(connection, table)
            self._parts[part] = connection.sql(
                f"SELECT {keys}, epoch_us({quoted(newest_by)}) AS moment, {deleted} AS deleted, {content} AS content, "  # noqa: S608 - quoted
                f"{len(self._parts)} AS part, nightshift_row AS row FROM source_rows"
            ).to_arrow_table()

    def rows_of(self, part: SourcePart, table: pa.Table) -> pa.Array:
        """Return the numbers of a part's rows that count, sorted, int64. To be called after `settle`.

        Args:
            table: as `add` had it, of a second read.

        Raises:
            DataError: `source.changed`, it has other rows, or the same in another order.
        """
        with hardened() as connection:
            if self._digest(connection, table) != self._digests[part]:
                message = f"{part.uri} was read twice, and gave other rows, or another order of them"
                hint = "a source of data.source.newest_by gives one version of a part in one order: sort its rows by the key and the time"
                raise DataError("source.changed", message, hint=hint)
        return self._kept[part]

    def _digest(self, connection: duckdb.DuckDBPyConnection, table: pa.Table) -> object:
        """Register the rows with their numbers; return what identifies their number, keys and times, in order."""
        number = pa.Array.from_buffers(pa.int64(), table.num_rows, [None, pa.py_buffer(np.arange(table.num_rows, dtype=np.int64))])
        connection.register("source_rows", table.append_column("nightshift_row", number))
        names = ", ".join(map(quoted, ["nightshift_row", *self.contract.key, str(self.contract.newest_by)]))
        return connection.sql(f"SELECT count(*), bit_xor(hash({names})) FROM source_rows").fetchall()  # noqa: S608 - quoted

    def settle(self) -> None:
        """Decide which rows count. For validation to report, all do of different rows with one key and one time, and those without a time
        or without a value of the key.

        A deletion counts before other rows of its time.
        """
        keys = ", ".join(f"key_{place}" for place in range(len(self.contract.key)))
        keyless = " OR ".join(f"key_{place} IS NULL" for place in range(len(self.contract.key)))
        known = f"moment <= {microseconds_of(self.as_of)}"
        query = f"""
            SELECT part, row, CASE
                WHEN moment IS NULL THEN 'kept'
                WHEN NOT known THEN 'rows_updated_later'
                WHEN keyless THEN 'kept'
                WHEN copy > 1 THEN 'rows_repeated'
                WHEN place > 1 THEN 'rows_replaced'
                WHEN is_deleted THEN 'rows_deleted'
                ELSE 'kept' END AS what
            FROM (
                SELECT part, row, moment, {known} AS known, {keyless} AS keyless,
                    row_number() OVER (PARTITION BY {known}, {keys}, moment, content ORDER BY part, row) AS copy,
                    rank() OVER (PARTITION BY {known}, {keys} ORDER BY moment DESC) AS place,
                    bool_or(deleted) OVER (PARTITION BY {keys}, moment) AS is_deleted
                FROM versions
            )
        """  # noqa: S608 - numbers and names of its own
        with hardened() as connection:
            connection.register("versions", pa.concat_tables(self._parts.values()))
            connection.execute(f"CREATE TABLE found AS {query}")
            counted = connection.sql("SELECT what, count(*) FROM found WHERE what <> 'kept' GROUP BY what ORDER BY what").fetchall()
            self.counts = {str(what): int(count) for what, count in counted}
            for number, part in enumerate(self._parts):
                rows = connection.sql(f"SELECT row FROM found WHERE part = {number} AND what = 'kept' ORDER BY row")  # noqa: S608
                self._kept[part] = rows.to_arrow_table().column("row").combine_chunks()
        self._parts.clear()
