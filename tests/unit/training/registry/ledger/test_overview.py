"""What lists show of models and data is what their histories say, and costs the same whatever they hold."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
from sqlalchemy import Engine, event

from tests.long_histories import pipeline_names, weights_of, write_histories
from tests.unit.training.registry.scenes import candidate, decide_on
from training.database import connect
from training.database.datasets import datasets, last_datasets, newest_datasets, pipelines_with_data
from training.registry.ledger.decisions import answer_request, roll_back, settle_canary
from training.registry.ledger.entries import BY_GATES, name_of
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.overview import ModelOverview, overview_of, overviews, pipelines
from training.registry.ledger.reasons import Reason, shown_gain
from training.registry.ledger.version_weights import MLflowRegistration

ALL = 1000


def recorded(ledger: Ledger, model: str) -> ModelOverview:
    """What the model's own records say, read one by one."""
    standing, history = ledger.standing(model), ledger.history(model)
    waiting = [name_of(request) for request in ledger.open_requests(model)]
    assert len(waiting) <= 1
    return ModelOverview(
        model=model,
        pipelines=tuple(sorted({str(entry.evidence["pipeline"]) for entry in history if "pipeline" in entry.evidence})),
        champion=standing.champion,
        canary=standing.canary,
        revision=standing.revision,
        request=waiting[0] if waiting else None,
        num_unmirrored=len(history) - standing.mirrored_decisions,
        shows_gains_above=next((shown_gain(entry.reasons) for entry in reversed(history) if entry.outcome in BY_GATES), None),
    )


def test_an_overview_says_what_the_records_of_the_model_say_after_every_kind_of_decision(empty_database: str) -> None:
    ledger, shop = Ledger(empty_database), {"pipeline": "shop"}
    assert overviews(ledger) == []

    def check() -> None:
        assert overviews(ledger) == [recorded(ledger, "m")] == [overview_of(ledger, "m")]

    decide_on(ledger, 1, evidence=shop)
    check()
    ledger.note_registration("m", "w1", MLflowRegistration(number="77", logged_model="m-1", artifact_digest="f" * 64))
    check()
    assert overviews(ledger)[0].champion == replace(candidate(1), version="77", artifact_digest="f" * 64, since=ANY, decision_key=ANY)
    decide_on(ledger, 2, canary=True, evidence=shop)
    check()
    settle_canary(ledger, ledger.standing("m"), "accepted", reasons=[], evidence={}, decided_by="night")
    check()
    decide_on(ledger, 3, canary=True, evidence=shop)
    # Its request waits, and ends as superseded when another one comes; the canary is displaced by what is approved.
    decide_on(ledger, 4, "needs_approval", evidence={"pipeline": "second_shop"})
    check()
    decide_on(ledger, 5, "needs_approval", evidence=shop)
    check()
    answer_request(ledger, ledger.open_requests("m")[0], "approved", by="ann", words="fine")
    check()
    roll_back(ledger, "m", by="ann", reason="wrong")
    check()
    ledger.end_mirror("m", None, revision=ledger.standing("m").revision, decisions=4)
    check()
    assert (ledger.models(), ledger.pipelines_of("m"), pipelines(ledger)) == (["m"], ["second_shop", "shop"], {"second_shop", "shop"})


@pytest.mark.parametrize(("ends", "gain"), [((-0.01, 0.03), 0.02), ((None, None), None)])
def test_an_overview_says_which_gain_the_newest_interval_shows(
    empty_database: str, ends: tuple[float | None, float | None], gain: float | None
) -> None:
    ledger, numbers = Ledger(empty_database), dict(zip(("low", "high"), ends, strict=True))
    interval = Reason(gate="significance", passed=False, words="lower end > 0 required", numbers={**numbers, "row_low": -0.01})
    decide_on(ledger, 1, evidence={"pipeline": "shop"})
    assert overviews(ledger)[0].shows_gains_above is None
    decide_on(ledger, 2, evidence={"pipeline": "shop"}, reasons=[interval])
    roll_back(ledger, "m", by="ann", reason="a person's order has no interval", to="1")
    assert overviews(ledger)[0].shows_gains_above == gain


def test_models_are_listed_in_parts_without_those_of_a_hidden_pipeline(empty_database: str) -> None:
    ledger = Ledger(empty_database)
    for number, (model, pipeline) in enumerate([("a", "x"), ("b", "x"), ("b", "y"), ("c", "y"), ("d", "x")]):
        decide_on(ledger, number, model=model, evidence={"pipeline": pipeline})
    decide_on(ledger, 9, model="of_no_pipeline")

    def names(**options: Any) -> list[str]:
        return [found.model for found in overviews(ledger, **options)]

    assert names() == ["a", "b", "c", "d"]
    assert (names(first="b", limit=2), names(limit=1), names(first="bb")) == (["b", "c"], ["a"], ["c", "d"])
    assert (names(hidden={"y"}), names(hidden={"x"}), names(hidden={"x", "y"})) == (["a", "d"], ["c"], [])
    assert names(first="b", hidden={"y"}) == ["d"]
    assert overview_of(ledger, "bb") is None


def test_decisions_are_listed_from_any_one_backwards(empty_database: str) -> None:
    ledger = Ledger(empty_database)
    entries = [decide_on(ledger, number, "rejected") for number in range(5)]
    decide_on(ledger, 9, "rejected", model="other")
    newest = [replace(entry, evidence={}) for entry in reversed(entries)]
    assert ledger.newest_outlined("m") == newest
    assert ledger.newest_outlined("m", first=newest[1].key, limit=2) == newest[1:3]
    assert ledger.newest_outlined("other", first=newest[1].key) == []


def test_newest_data_of_each_pipeline_and_versions_are_listed_in_parts(empty_database: str) -> None:
    engine = connect(empty_database)
    assert (pipelines_with_data(engine), last_datasets(engine, first=None, limit=ALL, hidden=())) == (set(), [])
    write_histories(engine, num_models=4, num_nights=3)
    names = pipeline_names(4)
    assert pipelines_with_data(engine) == set(names)
    newest = [datasets(engine, name)[0] for name in names]
    assert last_datasets(engine, first=None, limit=ALL, hidden=()) == newest
    assert last_datasets(engine, first=names[1], limit=2, hidden={names[2]}) == [newest[1], newest[3]]
    versions = datasets(engine, names[0])
    assert newest_datasets(engine, names[0], first=None, limit=2) == versions[:2]
    assert newest_datasets(engine, names[0], first=versions[1].version, limit=ALL) == versions[1:]
    assert newest_datasets(engine, names[0], first="nothing", limit=ALL) == []


READS: dict[str, Callable[[Ledger], object]] = {
    "models of a page": lambda ledger: overviews(ledger, first=pipeline_names(9)[3], limit=5),
    "one model": lambda ledger: overview_of(ledger, pipeline_names(9)[4]),
    "names of the models": lambda ledger: ledger.models(),
    "pipelines of the models": lambda ledger: (pipelines(ledger), ledger.pipelines_of(pipeline_names(9)[4])),
    "what MLflow does not show": lambda ledger: ledger.unmirrored(),
    "newest decisions": lambda ledger: ledger.newest_outlined(pipeline_names(9)[4], limit=5),
    "decisions of a page": lambda ledger: ledger.newest_outlined(pipeline_names(9)[4], first=weights_of(5), limit=5),
    "pipelines with data": lambda ledger: pipelines_with_data(ledger.engine),
    "newest data": lambda ledger: last_datasets(ledger.engine, first=None, limit=5, hidden={pipeline_names(9)[0]}),
    "versions of data": lambda ledger: newest_datasets(ledger.engine, pipeline_names(9)[4], first=f"{5:016x}", limit=5),
}


def steps_of(engine: Engine, read: Callable[[], object]) -> int:
    """Return how many instructions SQLite's machine ran: it looks at a row, or moves to the next one, in a fixed number of them."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    def count(connection: sqlite3.Connection, *_given: object) -> None:
        connection.set_progress_handler(step, 1)

    event.listen(engine, "checkout", count)
    read()
    event.remove(engine, "checkout", count)
    return steps


@pytest.mark.parametrize("what", READS)
def test_a_list_reads_as_much_after_a_hundred_nights_as_after_fourteen(what: str, tmp_path: Any) -> None:
    steps = []
    for num_nights in (14, 98):
        ledger = Ledger(f"sqlite:///{tmp_path}/{num_nights}.db")
        write_histories(ledger.engine, num_models=9, num_nights=num_nights)
        READS[what](ledger)
        steps.append(steps_of(ledger.engine, lambda ledger=ledger: READS[what](ledger)))  # type: ignore[misc]
    assert 0 < steps[1] <= 1.1 * steps[0]


@pytest.mark.parametrize("num_models", [2, 9])
def test_all_models_are_one_query(empty_database: str, num_models: int) -> None:
    ledger, queries = Ledger(empty_database), []
    write_histories(ledger.engine, num_models=num_models, num_nights=14)
    event.listen(ledger.engine, "before_cursor_execute", lambda *given: queries.append(given[2]))
    assert len(overviews(ledger)) == num_models
    assert [query.split()[0] for query in queries if not query.startswith("BEGIN")] == ["SELECT"]
