"""The journal of a training's metrics: numbers without gaps, whatever is merged, repeated or late."""

from __future__ import annotations

import math
import random
from contextlib import suppress
from pathlib import Path

import pytest

from training.errors import UnavailableError
from training.store import Bucket
from training.store.metric_journal import MERGED, JournalWriter, MetricJournal, RawPoint, encode, journal_name, owner_key


@pytest.fixture
def journal(tmp_path: Path) -> MetricJournal:
    return MetricJournal(Bucket(tmp_path.as_uri()), "p", "manual__2026-02-01T02:00:00+00:00")


def points(start: int, count: int) -> list[RawPoint]:
    return [("train_loss", 1.0 / (step + 1), step, 1_700_000_000_000 + step) for step in range(start, start + count)]


def steps(journal: MetricJournal, after: int = 0) -> list[int]:
    return [point.step for point in journal.after(after)]


def test_points_come_back_in_order_from_any_number(journal: MetricJournal) -> None:
    writer = JournalWriter(journal, "a1")
    for start in range(0, 30, 3):
        writer.append(points(start, 3))
    found = list(journal.after(0))
    assert [point.step for point in found] == list(range(30))
    assert [point.number for point in found] == list(range(2, 32))
    for point in found:
        assert steps(journal, point.number) == list(range(point.step + 1, 30))


def test_values_that_are_not_finite_are_words(journal: MetricJournal) -> None:
    JournalWriter(journal, "a1").append([("loss", math.nan, 0, 1), ("loss", -math.inf, 1, 1), ("loss", 2.0, 2, 1)])
    assert [point.value for point in journal.after(0)] == ["nan", "-inf", 2.0]


def test_merged_batches_keep_their_numbers_and_leave_few_objects(journal: MetricJournal) -> None:
    writer, seen = JournalWriter(journal, "a1"), 0
    heard: list[int] = []
    for start in range(MERGED * MERGED + 100):
        writer.append(points(start, 1))
        if start % 7 == 0:
            found = list(journal.after(seen))
            heard += [point.step for point in found]
            seen = found[-1].number
        if start % 500 == 0:
            assert len(journal.places()) < 3 * MERGED
    writer.close()
    heard += steps(journal, seen)
    assert heard == list(range(MERGED * MERGED + 100)) == steps(journal)
    assert len(journal.places()) == 1


def test_a_merge_that_was_interrupted_shows_nothing_twice(journal: MetricJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = JournalWriter(journal, "a1")
    for start in range(MERGED - 2):
        writer.append(points(start, 1))

    def killed(_key: str, **_options: object) -> None:
        raise UnavailableError("storage.unavailable", "killed here")

    monkeypatch.setattr(journal.bucket, "delete", killed)
    writer.append(points(MERGED - 2, 1))
    monkeypatch.undo()
    assert steps(journal) == list(range(MERGED - 1))
    assert steps(journal, 20) == list(range(19, MERGED - 1))
    JournalWriter(journal, "a2").append(points(100, 2))
    assert steps(journal) == [*range(MERGED - 1), 100, 101]


def test_merged_objects_that_could_not_be_deleted_hide_no_later_point(journal: MetricJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, delete, is_away = JournalWriter(journal, "a1"), Bucket.delete, True

    def away(bucket: Bucket, key: str, **how: bool) -> None:
        if is_away and len(journal.places()) < MERGED - 2:
            raise UnavailableError("storage.unavailable", "the storage is away")
        delete(bucket, key, **how)

    monkeypatch.setattr(Bucket, "delete", away)
    for start in range(MERGED):
        writer.append(points(start, 1))
    is_away = False
    seen = next(point.number for point in journal.after(0) if point.step == MERGED - 2)
    for start in range(MERGED, 3 * MERGED):
        writer.append(points(start, 1))
    assert steps(journal, seen) == list(range(MERGED - 1, 3 * MERGED))


def test_the_next_attempt_goes_on_and_an_attempt_taken_for_dead_adds_nothing(journal: MetricJournal) -> None:
    first, second = JournalWriter(journal, "a1"), JournalWriter(journal, "a2")
    first.append(points(0, 3))
    second.append(points(2, 2))
    first.append(points(3, 5))
    assert first.is_superseded
    second.append(points(4, 1))
    found = list(journal.after(0))
    assert [(point.attempt, point.step) for point in found] == [(1, 0), (1, 1), (1, 2), (2, 2), (2, 3), (2, 4)]
    assert [point.number for point in found] == sorted({point.number for point in found})


def test_an_attempt_that_begins_while_the_one_before_appends_and_merges_takes_none_of_its_numbers(
    journal: MetricJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier, later = JournalWriter(journal, "a1"), JournalWriter(journal, "a2")
    earlier.append(points(0, 3))
    create, is_late = journal.bucket.create, [True]

    def created_late(key: str, data: bytes) -> bool:
        if is_late.pop() if is_late else False:
            # Between the look for the last number and the name that follows it: the name is taken, and free again.
            earlier.append(points(3, 4))
            earlier.close()
        return create(key, data)

    monkeypatch.setattr(journal.bucket, "create", created_late)
    assert later.append(points(7, 2)) == 2

    assert steps(journal) == list(range(9))
    numbers = [point.number for point in journal.after(0)]
    assert numbers == sorted(set(numbers))
    assert earlier.append(points(9, 1)) == 0
    assert earlier.is_superseded


def test_a_beginning_that_nobody_took_back_hides_no_point_and_gives_no_number_twice(journal: MetricJournal) -> None:
    earlier = JournalWriter(journal, "a1")
    for start in (0, 3, 6):
        earlier.append(points(start, 3))
    earlier.close()
    # Attempts that had looked for the last number before the merge, and were killed before they looked again.
    for number in (5, 6):
        assert journal.bucket.create(journal.key(number), encode(2, number, [{"began": "a2"}]))
    seen = [point.number for point in journal.after(0)]
    assert [steps(journal, number) for number in seen] == [list(range(step, 9)) for step in range(1, 10)]

    JournalWriter(journal, "a3").append(points(9, 2))
    assert steps(journal) == list(range(11))
    assert [steps(journal, number) for number in seen] == [list(range(step, 11)) for step in range(1, 10)]
    assert earlier.append(points(11, 1)) == 0


def test_a_write_whose_answer_was_lost_is_repeated_and_has_one_effect(journal: MetricJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, create, chance = JournalWriter(journal, "a1"), journal.bucket.create, random.Random(7)  # noqa: S311 - lost answers of a test

    def lossy(key: str, data: bytes) -> bool:
        if chance.random() < 0.3:
            raise UnavailableError("storage.unavailable", "before")
        made = create(key, data)
        if chance.random() < 0.3:
            raise UnavailableError("storage.unavailable", "after")
        return made

    monkeypatch.setattr(journal.bucket, "create", lossy)
    waiting: list[RawPoint] = []
    for start in range(0, 300, 3):
        waiting += points(start, 3)
        with suppress(UnavailableError):
            del waiting[: writer.append(waiting)]
    while waiting:
        with suppress(UnavailableError):
            del waiting[: writer.append(waiting)]
    assert steps(journal) == list(range(300))


def test_a_damaged_line_is_left_out_and_the_numbers_of_the_others_stay(journal: MetricJournal, caplog: pytest.LogCaptureFixture) -> None:
    JournalWriter(journal, "a1").append(points(0, 3))
    place = journal.places()[1]
    lines = journal.bucket.get(place.key).splitlines()
    journal.bucket.put(place.key, b"\n".join([*lines[:2], b'["train_lo', lines[3]]))
    assert [(point.number, point.step) for point in journal.after(0)] == [(2, 0), (4, 2)]
    assert "event 3 of a metrics journal is damaged" in caplog.text


def test_work_that_trains_has_a_journal_of_its_run_or_of_its_trial() -> None:
    study = "5" * 64
    assert journal_name("train", "r1", {}) == "r1"
    assert journal_name("trial", "r1", {"study": study, "slot": 3}) == f"{study}-00003"
    assert journal_name("evaluate", "r1", {}) is None
    assert [owner_key("p", str(journal_name(stage, "r1", {}))) for stage in ("train", "refit")] == ["runs/p/r1"] * 2
    assert owner_key("p", f"{study}-00003") == f"studies/p/{study}"
