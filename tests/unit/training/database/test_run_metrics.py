"""Rows of metrics are those of the journals: each once, whoever copies and how often."""

from __future__ import annotations

import math
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine, insert, text

from training.database import connect, run_metrics
from training.database.run_metrics import copy_points, copy_recent, delete_expired
from training.database.schema import RunMetricRow
from training.errors import UnavailableError
from training.store import Bucket
from training.store.metric_journal import JournalWriter, MetricJournal

AT = 1_770_000_000_000


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket((tmp_path / "store").as_uri())


def write(bucket: Bucket, run_id: str, steps: range, attempt: str = "a1") -> JournalWriter:
    writer = JournalWriter(MetricJournal(bucket, "p", run_id), attempt)
    writer.append([("loss", step / 4, step, AT + step) for step in steps])
    return writer


def rows(engine: Engine) -> list[tuple[object, ...]]:
    with engine.connect() as connection:
        found = connection.execute(
            text("SELECT run_id, attempt, metric_name, step, value FROM bi_run_metric ORDER BY run_id, attempt, step")
        )
        return [tuple(row) for row in found]


def test_points_are_copied_once_and_new_ones_are_added(empty_database: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_metrics, "ROWS", 2)
    engine, writer = connect(empty_database), write(bucket, "r1", range(5))
    assert [copy_points(engine, bucket, "p", "r1") for _ in range(2)] == [5, 0]
    writer.append([("loss", math.nan, 5, AT)])
    write(bucket, "r1", range(4, 6), "a2")
    assert copy_points(engine, bucket, "p", "r1") == 3
    first = [("p:r1", 1, "loss", step, step / 4) for step in range(5)]
    assert rows(engine) == [*first, ("p:r1", 1, "loss", 5, None), ("p:r1", 2, "loss", 4, 1.0), ("p:r1", 2, "loss", 5, 1.25)]
    assert copy_points(engine, bucket, "p", "none") == 0


@pytest.mark.parametrize("num_points", [3, 9], ids=["shorter", "longer"])
def test_a_run_whose_journal_was_gone_and_began_again_has_the_points_of_its_new_training_alone(
    empty_database: str, bucket: Bucket, num_points: int
) -> None:
    engine, journal = connect(empty_database), MetricJournal(bucket, "p", "r1")
    write(bucket, "r1", range(5))
    write(bucket, "r2", range(1))
    assert copy_points(engine, bucket, "p", "r1") + copy_points(engine, bucket, "p", "r2") == 6
    for place in journal.places():
        bucket.delete(place.key)
    assert copy_points(engine, bucket, "p", "r1") == 0
    assert len(rows(engine)) == 6, "until the training has begun again, or the rows expire"
    JournalWriter(journal, "b1").append([("loss", 9.0, step, AT + 1_000_000 + step) for step in range(num_points)])
    assert [copy_points(engine, bucket, "p", "r1") for _ in range(2)] == [num_points, 0]
    assert rows(engine) == [*(("p:r1", 1, "loss", step, 9.0) for step in range(num_points)), ("p:r2", 1, "loss", 0, 0.0)]


RUNS, POINTS = 3000, 10
READS = {
    "copy": "SELECT number, step FROM run_metric WHERE run_id = 'p:r1500' ORDER BY number DESC LIMIT 1",
    "view": "SELECT step, value FROM bi_run_metric WHERE run_id = 'p:r1500' AND metric_name = 'loss' ORDER BY step",
}


def test_points_of_a_run_are_found_by_an_index_among_those_of_thousands_of_runs(empty_database: str, bucket: Bucket) -> None:
    engine, at = connect(empty_database), datetime(2026, 2, 1, tzinfo=UTC)
    fixed = {"attempt": 1, "metric_name": "loss", "value": 0.5, "logged_at": at}
    with engine.begin() as connection:
        for run in range(RUNS):
            connection.execute(
                insert(RunMetricRow), [{"run_id": f"p:r{run}", "number": step, "step": step, **fixed} for step in range(1, POINTS + 1)]
            )
        connection.execute(text("ANALYZE"))
        explain = "EXPLAIN " if engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN "
        for name, query in READS.items():
            plan = " ".join(str(row[-1]) for row in connection.execute(text(explain + query))).lower()
            assert "index" in plan, (name, plan)
            assert "seq scan" not in plan, (name, plan)
            assert "scan run_metric" not in plan, (name, plan)
    # The copy of one more run looks at no other.
    write(bucket, "new", range(4))
    assert copy_points(engine, bucket, "p", "new") == 4


def test_housekeeping_copies_journals_that_changed_and_one_that_is_damaged_keeps_no_other_out(
    empty_database: str, bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    engine = connect(empty_database)
    for run_id in ("r1", "r2", "old"):
        write(bucket, run_id, range(2))
    bucket.put("metrics/p/r1/000000000001.jsonl", b"no journal")
    for path in Path(bucket.root_uri.removeprefix("file://")).glob("metrics/p/old/*"):
        os.utime(path, (time.time() - 8 * 86_400,) * 2)
    assert copy_recent(engine, bucket) == 2
    assert {row[0] for row in rows(engine)} == {"p:r2"}
    assert "the metrics of p:r1 are not copied" in caplog.text


def test_rows_are_deleted_after_their_journal_once_their_last_point_is_old(empty_database: str, bucket: Bucket) -> None:
    engine = connect(empty_database)
    for run_id in ("gone", "there", "young"):
        write(bucket, run_id, range(3))
    write(bucket, "young", range(3, 4), "a2").append([("loss", 0.1, 9, AT + 10_000)])
    assert copy_recent(engine, bucket) == 11
    for run_id in ("gone", "young"):
        for place in MetricJournal(bucket, "p", run_id).places():
            bucket.delete(place.key)
    before = datetime.fromtimestamp(AT / 1000 + 5, UTC)
    assert [delete_expired(engine, bucket, before=before) for _ in range(2)] == [3, 0]
    assert {row[0] for row in rows(engine)} == {"p:there", "p:young"}
    # What is deleted is not copied again: its journal is gone.
    assert copy_recent(engine, bucket) == 0


def test_a_store_that_does_not_answer_is_an_error_that_is_retried(
    empty_database: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(bucket, "r1", range(2))

    def away(_journal: MetricJournal) -> None:
        raise UnavailableError("storage.unavailable", "no answer")

    monkeypatch.setattr(MetricJournal, "places", away)
    with pytest.raises(UnavailableError):
        copy_recent(connect(empty_database), bucket)
