"""Who does which trial: every slot once, whoever dies, whoever comes later."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from training.errors import StoreError
from training.spec.sections.train import Placement
from training.spec.sections.tuning import Tune
from training.store import Store
from training.tuning.records import StudyStore, TrialRecord, best_of, is_out_of_patience, num_workers

NOW = datetime(2026, 2, 1, 3, tzinfo=UTC)
SPACE = {"learning_rate": {"float": [0.1, 0.2]}}
WORKERS = [f"p/r/trials-{number}" for number in range(8)]


@pytest.fixture
def study(tmp_path: Path) -> StudyStore:
    return StudyStore(Store(str(tmp_path)), "p", "f" * 64)


def tune(**more: Any) -> Tune:
    return Tune.model_validate({"trials": 4, "space": SPACE, **more})


def record(slot: int, value: float | None = 1.0) -> TrialRecord:
    state: Any = "complete" if value is not None else "pruned"
    return TrialRecord(slot=slot, state=state, value=value, settings={"learning_rate": 0.1}, epochs=2, steps=8, losses=((1, 2.0), (2, 1.0)))


@pytest.mark.parametrize("change", [b"", b"{}", b"null", b"[1]", b"\xff", b'{"slot": 0}'])
def test_a_damaged_trial_is_an_error_that_names_its_file_and_the_remedy(study: StudyStore, tmp_path: Path, change: bytes) -> None:
    study.add(record(0))
    [path] = tmp_path.rglob("00000.json")
    path.write_bytes(change)

    for read in (study.records, lambda: study.find(0), lambda: study.add(record(0))):
        with pytest.raises(StoreError, match=r"00000\.json is damaged.*delete it") as caught:
            read()
        assert caught.value.code == "record.damaged"


def test_a_changed_value_of_a_trial_is_found_by_its_digest(study: StudyStore, tmp_path: Path) -> None:
    study.add(record(0, value=0.5))
    [path] = tmp_path.rglob("00000.json")
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.4"))

    with pytest.raises(StoreError, match="does not have the digest"):
        study.records()


def test_a_worker_that_is_repeated_continues_with_what_it_had_begun(study: StudyStore) -> None:
    assert study.take("p/r/trials-0", WORKERS, tune()) == 0
    assert study.take("p/r/trials-1", WORKERS, tune()) == 1
    assert study.take("p/r/trials-0", WORKERS, tune()) == 0
    study.add(record(0))
    assert study.take("p/r/trials-0", WORKERS, tune()) == 2


def test_many_workers_at_once_take_each_slot_once(study: StudyStore) -> None:
    asked = tune(trials=40)

    def worker(number: int) -> list[int]:
        taken = []
        while (slot := study.take(f"p/r/trials-{number}", WORKERS, asked)) is not None:
            taken.append(slot)
            study.add(record(slot))
        return taken

    with ThreadPoolExecutor(8) as pool:
        taken = [slot for slots in pool.map(worker, range(8)) for slot in slots]
    assert Counter(taken) == dict.fromkeys(range(40), 1)


def test_a_worker_leaves_what_another_of_its_run_has_begun_and_takes_what_another_run_left(study: StudyStore) -> None:
    old, new = ([f"p/{run}/trials-{number}" for number in range(2)] for run in ("old", "new"))
    asked = tune(trials=2)
    assert study.take("p/old/trials-0", old, asked) == 0
    assert study.take("p/new/trials-0", new, asked) == 1
    study.add(record(1))
    assert study.take("p/old/trials-1", old, asked) is None
    assert study.take("p/new/trials-0", new, asked) == 0, "nobody of this run has it"
    assert study.take("p/new/trials-1", new, asked) is None


def test_a_run_that_is_cleared_with_fewer_workers_ends_what_the_others_had_begun(study: StudyStore) -> None:
    for number in range(4):
        assert study.take(WORKERS[number], WORKERS, tune()) == number
    for slot in range(2):
        study.add(record(slot))
    assert study.take(WORKERS[0], WORKERS[:2], tune()) == 2
    study.add(record(2))
    assert study.take(WORKERS[1], WORKERS[:2], tune()) == 3


def test_a_longer_search_continues_with_what_is_there(study: StudyStore) -> None:
    for slot in range(4):
        study.add(record(slot))
    assert study.take("p/r/trials-0", WORKERS, tune()) is None
    assert study.take("p/r/trials-0", WORKERS, tune(trials=6)) == 4


def test_a_slot_has_one_record(study: StudyStore) -> None:
    assert study.add(record(3, 1.0)).value == 1.0
    assert study.add(record(3, 0.5)).value == 1.0
    assert [found.value for found in study.records()] == [1.0]


def test_records_come_back_as_they_were(study: StudyStore) -> None:
    study.add(record(3))
    assert study.find(3) == record(3)
    assert study.find(2) is None


def test_no_trial_begins_after_the_studys_time(study: StudyStore) -> None:
    asked = tune(within="1h")
    assert study.take("p/r/trials-0", WORKERS, asked, now=NOW) == 0
    study.add(record(0))
    assert study.take("p/r/trials-0", WORKERS, asked, now=NOW + timedelta(minutes=59)) == 1
    assert study.take("p/r/trials-1", WORKERS, asked, now=NOW + timedelta(minutes=61)) is None
    assert study.take("p/r/trials-0", WORKERS, asked, now=NOW + timedelta(days=1)) == 1, "what was begun in time is ended"


def test_patience_counts_the_trials_after_the_best(study: StudyStore) -> None:
    asked = tune(trials=10, patience=2)
    for slot, value in enumerate((3.0, 1.0, 2.0)):
        assert study.take("p/r/trials-0", WORKERS, asked) == slot
        study.add(record(slot, value))
    assert study.take("p/r/trials-0", WORKERS, asked) == 3
    study.add(record(3, None))
    assert study.take("p/r/trials-0", WORKERS, asked) is None
    assert not is_out_of_patience(tune(), study.records())


def test_the_first_planners_champion_is_everybodys(study: StudyStore) -> None:
    assert study.plan("file:///model-1") == "file:///model-1"
    assert study.plan("file:///model-2") == "file:///model-1"
    assert study.plan(None) == "file:///model-1"


def test_the_best_is_the_first_of_equals_and_never_a_pruned_one() -> None:
    assert best_of([record(0, None)]) is None
    best = best_of([record(0, 2.0), record(2, 1.0), record(1, 1.0), record(3, None)])
    assert best is not None
    assert best.slot == 1


@pytest.mark.parametrize(
    ("asked", "placement", "workers"),
    [
        ({"parallel": 3}, {}, 3),
        ({"parallel": 9}, {}, 4),
        ({"parallel": 4, "gpus": 8}, {"gpus": 2, "nodes": 2}, 2),
        ({"parallel": 4, "gpus": 7}, {"gpus": 2, "nodes": 2}, 1),
        ({"parallel": 4, "gpus": 2}, {}, 4),
        ({"parallel": 4, "sampler": "grid", "space": {"learning_rate": {"choices": [0.1, 0.2]}}}, {}, 2),
    ],
)
def test_number_of_workers_is_bounded_by_gpus_and_trials(asked: dict[str, Any], placement: dict[str, Any], workers: int) -> None:
    assert num_workers(tune(**asked), Placement.model_validate(placement)) == workers
