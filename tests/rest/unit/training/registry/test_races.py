"""Many decide at once: one wins, the others get an error, and each request ends once. On SQLite and on PostgreSQL."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.unit.training.registry.scenes import at_once, candidate, decide_on, seats
from training.errors import DeniedError, NightshiftError
from training.registry.ledger.decisions import answer_request, roll_back, settle_canary
from training.registry.ledger.ledger import Entry, Ledger
from training.registry.ledger.semver import Recipe, semantic_version

pytestmark = pytest.mark.slow

RIVALS = 8
ROUNDS = pytest.mark.parametrize("rounds", [20, pytest.param(100, marks=pytest.mark.long)])


@pytest.fixture
def ledger(empty_database: str) -> Ledger:
    return Ledger(empty_database)


def refusals(results: list[Any]) -> list[str]:
    return [result.code for result in results if isinstance(result, NightshiftError)]


def answers(results: list[Any]) -> list[Entry]:
    return [result for result in results if isinstance(result, Entry)]


@ROUNDS
def test_of_eight_promotions_at_once_one_wins_in_each_round(ledger: Ledger, rounds: int) -> None:
    for revision in range(rounds):
        numbers = range(revision * RIVALS + 1, revision * RIVALS + RIVALS + 1)
        results = at_once([partial(decide_on, ledger, number, revision=revision) for number in numbers])
        (winner,) = answers(results)
        assert refusals(results) == ["promotion.conflict"] * (RIVALS - 1)
        assert seats(ledger) == (winner.version, None)
        assert ledger.standing("m").revision == revision + 1
    assert [entry.revision for entry in ledger.history("m")] == list(range(1, rounds + 1))


def rival(url: str, place: int, rounds: int, barrier: Any, results: Any) -> None:
    """One process: promotes its own candidate in every round."""
    ledger, outcomes = Ledger(url), []
    for revision in range(rounds):
        barrier.wait(240)
        try:
            decide_on(ledger, revision * RIVALS + place + 1, revision=revision)
            outcomes.append("won")
        except DeniedError as err:
            outcomes.append(err.code)
        barrier.wait(240)
    results.put((place, outcomes))


@ROUNDS
def test_of_eight_processes_at_once_one_wins_in_each_round(empty_database: str, rounds: int) -> None:
    ledger, context = Ledger(empty_database), multiprocessing.get_context("fork")
    barrier, queue = context.Barrier(RIVALS), context.Queue()
    processes = [context.Process(target=rival, args=(empty_database, place, rounds, barrier, queue)) for place in range(RIVALS)]
    for process in processes:
        process.start()
    found = dict(queue.get(timeout=240) for _ in processes)
    for process in processes:
        process.join()
    by_round = list(zip(*found.values(), strict=True))
    assert [sorted(outcomes) for outcomes in by_round] == [["promotion.conflict"] * (RIVALS - 1) + ["won"]] * rounds
    assert [entry.revision for entry in ledger.history("m")] == list(range(1, rounds + 1))


def test_the_same_decision_requested_by_eight_at_once_is_one_row_and_one_answer(ledger: Ledger) -> None:
    for number in range(1, 11):
        results = at_once([partial(decide_on, ledger, number, revision=number - 1)] * RIVALS)
        assert len({(entry.key, entry.revision, entry.decided_at) for entry in answers(results)}) == 1
        assert len(answers(results)) == RIVALS
        assert len(ledger.history("m")) == number


def test_a_request_that_all_answer_at_once_has_one_ending(ledger: Ledger) -> None:
    decide_on(ledger, 1)
    for number in range(2, 22):
        revision = ledger.standing("m").revision
        request = decide_on(ledger, number, "needs_approval")
        answer = partial(answer_request, ledger, request, by="ada", words="so")
        works: list[Callable[[], Any]] = [
            *[partial(answer, outcome) for outcome in ("approved", "approved", "declined", "expired", "bypassed")],
            partial(decide_on, ledger, number + 100, "needs_approval", revision=revision),
            partial(decide_on, ledger, number + 200, "accepted", revision=revision),
        ]
        results = at_once(works)
        endings = [entry for entry in ledger.history("m") if entry.request_key == request.key]
        assert len(endings) == 1
        assert ledger.ending_of("m", request.key) == endings[0]
        for result in results[:5]:
            assert result == endings[0] if isinstance(result, Entry) else result.code == "approval.ended"
        champion = seats(ledger)[0]
        if endings[0].outcome == "approved":
            assert champion == str(number)
        else:
            assert champion != str(number)
    assert len(ledger.open_requests("m")) <= 1


def test_an_approval_and_another_promotion_at_once_move_the_standing_once(ledger: Ledger) -> None:
    decide_on(ledger, 1)
    for number in range(2, 22):
        revision = ledger.standing("m").revision
        request = decide_on(ledger, number, "needs_approval")
        results = at_once(
            [
                partial(answer_request, ledger, request, "approved", by="ada", words="so"),
                partial(decide_on, ledger, number + 100, revision=revision),
            ]
        )
        assert ledger.standing("m").revision == revision + 1
        ending = ledger.ending_of("m", request.key)
        assert ending is not None
        if ending.outcome == "approved":
            assert refusals(results) == ["promotion.conflict"]
            assert seats(ledger) == (str(number), None)
        else:
            # Superseded by the promotion before it was answered.
            assert ending.outcome == "superseded"
            assert refusals(results) == ["approval.ended"]
            assert seats(ledger) == (str(number + 100), None)


def test_a_canary_settled_rolled_back_and_displaced_at_once_ends_one_way(ledger: Ledger) -> None:
    decide_on(ledger, 1)
    decide_on(ledger, 2)
    for number in range(3, 23):
        decide_on(ledger, number, canary=True)
        standing = ledger.standing("m")
        settle = partial(settle_canary, ledger, standing, reasons=[], evidence={}, decided_by="canary")
        results = at_once(
            [
                partial(settle, "accepted"),
                partial(settle, "rolled_back"),
                partial(decide_on, ledger, number + 100, canary=True, revision=standing.revision),
                partial(roll_back, ledger, "m", by="ada", reason="poison", to="1" if seats(ledger)[0] != "1" else "2"),
            ]
        )
        ends = [entry for entry in ledger.history("m") if entry.version == str(number) and entry.action in ("promoted", "canary_ended")]
        assert len(ends) == 1
        assert all(code == "promotion.conflict" for code in refusals(results))
        if seats(ledger)[1] is not None:
            settle_canary(ledger, ledger.standing("m"), "rolled_back", reasons=[], evidence={}, decided_by="canary")


@pytest.mark.parametrize("order", ["", "rollback/manual__1"])
def test_one_rollback_ordered_eight_times_at_once_goes_back_once(ledger: Ledger, order: str) -> None:
    for number in (1, 2, 3):
        decide_on(ledger, number)
    revision = ledger.standing("m").revision
    back = partial(roll_back, ledger, "m", by="ada", reason="late", order=order, expected_revision=revision)
    results = at_once([back] * RIVALS)
    assert {entry.key for entry in answers(results)} == {ledger.history("m")[-1].key}
    assert seats(ledger) == ("2", None)
    assert len(ledger.history("m")) == 4
    if order:
        assert refusals(results) == []


def test_eight_callers_at_once_get_semantic_versions_of_their_own(empty_database: str) -> None:
    recipe = Recipe(
        input_schema={"distance": "int"},
        output_schema={"label": "late"},
        recipe_digest="r",
        framework="torch",
        snapshot_digest="s",
        code_version="c",
    )
    named = [partial(semantic_version, "m", f"w{number}", recipe, empty_database) for number in range(RIVALS)]
    assert sorted(at_once(named)) == [f"1.0.{patch}" for patch in range(RIVALS)]
    same = [partial(semantic_version, "m", "w0", recipe, empty_database)] * RIVALS
    assert set(at_once(same)) == {semantic_version("m", candidate(0).weights_digest, recipe, empty_database)}
