"""Two installed kinds of sources, a table of SQLite and a calendar, and a shop that has the table."""

from __future__ import annotations

import sqlite3
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.unit.training.code.named_work import code_of_request, run_process
from training.contracts import RunIdentity, StageRequest, StageResult
from training.spec import PipelineSpec, freeze, parse_spec, resolve_uris
from training.store import Store

SQLITE = '''
"""A table of a SQLite file, one part for each day; a day's version is the sum of its rows' revisions."""

import sqlite3
from urllib.parse import unquote, urlsplit

from training.errors import DataError
from training.sources.interface import PartContent, SourcePart
from training.spec.descriptors.sources import Days, SourceDescriptor
from training.spec.scalar_types import Section


class SqliteSettings(Section):
    table: str
    revision: str = "revision"


DESCRIPTOR = SourceDescriptor(settings=SqliteSettings, days=Days.ALWAYS)


class SqliteSource:
    def __init__(self, contract):
        self.contract = contract
        self.path = unquote(urlsplit(contract.uri).path)

    def list(self, window):
        if not window.days:
            raise ValueError("the table has days")
        first, last = window.days[0].isoformat(), window.days[-1].isoformat()
        counted = "SELECT day, count(*), sum({revision}) FROM {table} WHERE day BETWEEN ? AND ? GROUP BY day"
        rows = self._select(counted.format(**self.contract.settings), first, last)
        return [SourcePart(f"{self.contract.uri}#{day}", 0, f"{count}-{revisions}", day) for day, count, revisions in rows]

    def read(self, part, folder, *, limit_bytes):
        import pyarrow as pa

        from training.sql.arrow_types import ARROW_TYPES

        columns = self.contract.columns
        fields = pa.schema([(name, ARROW_TYPES[column.type]) for name, column in columns.items()])
        counted = "SELECT count(*), sum({revision}) FROM {table} WHERE day = ?".format(**self.contract.settings)
        if "-".join(map(str, self._select(counted, part.partition)[0])) != part.version:
            raise DataError("source.changed", f"{part.uri} changed after it was listed", hint="trigger the run again")
        selected = "SELECT {} FROM {} WHERE day = ?".format(", ".join(columns), self.contract.settings["table"])
        cells = self._select(selected, part.partition)
        # As a stream of batches, as a warehouse's client returns.
        batches = [pa.RecordBatch.from_arrays([pa.array(c).cast(f.type) for c, f in zip(zip(*rows), fields)], schema=fields)
                   for rows in (cells[:2], cells[2:]) if rows]
        return PartContent(pa.RecordBatchReader.from_batches(fields, batches))

    def _select(self, text, *values):
        connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
        try:
            return connection.execute(text, values).fetchall()
        finally:
            connection.close()


SOURCE = SqliteSource
'''
CALENDAR = '''
"""The days of the week, computed: a table that is in no place."""

from training.sources.interface import PartContent, SourcePart
from training.spec.descriptors.sources import SourceDescriptor

DESCRIPTOR = SourceDescriptor(has_uri=False)


class CalendarSource:
    def __init__(self, contract):
        pass

    def list(self, window):
        return [SourcePart("calendar:weekdays", 0, "1")]

    def read(self, part, folder, *, limit_bytes):
        import pyarrow as pa

        names = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
        return PartContent(pa.table({"weekday": list(range(7)), "name": names}))


SOURCE = CalendarSource
'''
FILES = {"acme_sqlite.py": SQLITE, "acme_calendar.py": CALENDAR, "acme_broken.py": "raise RuntimeError('no driver')\n", "acme_empty.py": ""}
KINDS = {"sqlite": "acme_sqlite", "calendar": "acme_calendar", "broken": "acme_broken", "empty": "acme_empty"}
SPEC = """
name: orders
owner: tests
timezone: Europe/Amsterdam
data:
  source:
    table: orders
    kind: sqlite
    uri: "${SHOP_URI}/shop.db"
    settings: {table: sales}
    event_time: ordered_at
    window: 4d
    wait: 2h
    key: [order_id]
    columns:
      order_id: {type: int64}
      ordered_at: {type: timestamp}
      weekday: {type: int64}
      value: {type: double}
      cancelled: {type: int64, known: after}
  features:
    - table: weekdays
      kind: calendar
      on: {weekday: weekday}
      columns:
        weekday: {type: int64}
        name: {type: string, as: weekday_name}
  label: {column: cancelled}
  split: {by: time, validation: 1d, test: 1d}
prepare:
  features:
    weekday_name: {transform: category}
    value: {transform: number}
train: {model: boosted_trees, epochs: 1, learning_rate: 0.3}
evaluate: {task: binary, primary: auc}
promote: {model: orders}
"""
AS_OF = datetime(2026, 1, 7, 2, tzinfo=UTC)
LAST = date(2026, 1, 6)
ROWS_PER_DAY = 5


class Shop:
    """A SQLite file with four days of orders, and a store."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "shop.db"
        self.store = Store(str(folder / "store"))
        with sqlite3.connect(self.path) as table:
            table.execute("CREATE TABLE sales (day, order_id, ordered_at, weekday, value, cancelled, revision)")
        for back in range(4):
            self.write_day(LAST - timedelta(days=back))

    def write_day(self, day: date) -> None:
        noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
        rows = [
            (day.isoformat(), int(noon.timestamp()) + n, int(noon.timestamp() * 1e6), day.isoweekday() % 7, n / 2, n % 2, 1)
            for n in range(ROWS_PER_DAY)
        ]
        with sqlite3.connect(self.path) as table:
            table.executemany("INSERT INTO sales VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def change(self, statement: str) -> None:
        with sqlite3.connect(self.path) as table:
            table.execute(statement)

    def spec(self, *changes: tuple[str, str]) -> PipelineSpec:
        return resolve_uris(parse_spec(changed(*changes)), {"SHOP_URI": self.folder.as_uri()})

    def stage(self, work: Any, site: Path, inputs: dict[str, str], parameters: dict[str, Any]) -> StageResult:
        name = work.__name__.rsplit(".", 1)[-1]
        address = self.store.work_folder("orders", name, "f" * 64)
        request = StageRequest(
            pipeline="orders",
            stage=name,
            work_id="f" * 64,
            attempt_id="a",
            store_uri=self.store.root_uri,
            spec_uri=self.store.put_json(freeze(self.spec())),
            as_of=AS_OF,
            inputs=inputs,
            run=RunIdentity(dag_id="orders", run_id="r", task_id=name),
            parameters=parameters,
        )
        uri = address.write_request(request)
        assert "acme_sqlite.py" in code_of_request(uri).files
        environment = {
            "PYTHONPATH": str(site),
            "NIGHTSHIFT_HOME": str(self.folder),
            "NIGHTSHIFT_DATABASE": f"sqlite:///{self.folder}/nightshift.db",
        }
        run_process(work.work, uri, environment, self.folder)
        result = address.result()
        assert result is not None
        return result


def changed(*changes: tuple[str, str]) -> bytes:
    text = SPEC
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text.encode()
