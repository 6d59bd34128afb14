"""A database that a release made is brought to the newest tables with every row, and is read as it was written.

`recorded/<version>.sql` is SQLite's dump of the database after two nights of search_ranking by that release; a later release adds its own.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from training.database import Base, connect
from training.database.connect import head_revision
from training.database.datasets import datasets
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.overview import overviews

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.sql"))
MODEL = "search_ranking"

Rows = dict[str, list[dict[str, Any]]]


def rows_of(path: Path) -> Rows:
    """Return the rows of each table but the one of the migrations."""
    with sqlite3.connect(path) as connection:
        connection.row_factory = sqlite3.Row
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables if table != "alembic_version"}  # noqa: S608
    return {table: [dict(row) for row in rows] for table, rows in found.items()}


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.stem)
def test_a_database_of_a_release_keeps_every_row_and_is_read_as_it_was_written(recorded: Path, tmp_path: Path) -> None:
    path = tmp_path / "nightshift.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(recorded.read_text(encoding="utf-8"))
    before = rows_of(path)

    engine = connect(f"sqlite:///{path}")

    after = rows_of(path)
    for table, rows in before.items():
        assert [{name: new[name] for name in old} for old, new in zip(rows, after[table], strict=True)] == rows
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert (context.get_current_revision(), compare_metadata(context, Base.metadata)) == (head_revision(), [])
    ledger = Ledger(f"sqlite:///{path}")
    decided = [(row["decision_key"], row["outcome"], row["weights_digest"]) for row in before["ledger_decision"]]
    assert [(entry.key, entry.outcome, entry.weights_digest) for entry in ledger.history(MODEL)] == decided
    (overview,) = overviews(ledger)
    assert (ledger.models(), overview.pipelines, overview.num_unmirrored) == ([MODEL], (MODEL,), 0)
    champion = ledger.standing(MODEL).champion
    assert overview.champion == champion
    assert champion is not None
    assert champion.weights_digest == [weights for _, outcome, weights in decided if outcome == "accepted"][-1]
    assert [found.version for found in datasets(engine, MODEL)] == [row["version"] for row in reversed(before["dataset_version"])]
