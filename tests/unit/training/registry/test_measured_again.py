"""A forced night measures the same weights again: it has what it won, and nothing moves."""

from pathlib import Path

import pytest

from tests.unit.training.registry.scenes import decide_on, seats
from training.errors import DeniedError
from training.registry.ledger.decisions import roll_back
from training.registry.ledger.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(f"sqlite:///{tmp_path}/ledger.db")


@pytest.mark.parametrize("outcome", ["accepted", "needs_approval"])
def test_the_champion_measured_again_stays_and_requests_no_approval(ledger: Ledger, outcome: str) -> None:
    first = decide_on(ledger, 1)
    again = decide_on(ledger, 1, outcome, evidence={"evaluation_digest": "again", "revision": 0})
    assert (again.action, again.outcome, again.revision) == ("recorded", "accepted", None)
    assert again.key != first.key
    assert again.reasons[-1].words == "the candidate is the champion: same weights, nothing moves"
    assert ledger.open_requests("m") == []
    assert (seats(ledger), ledger.standing("m").revision) == (("1", None), 1)


def test_the_canary_measured_again_stays_canary(ledger: Ledger) -> None:
    decide_on(ledger, 1)
    decide_on(ledger, 2, canary=True)
    again = decide_on(ledger, 2, canary=True, evidence={"evaluation_digest": "again", "revision": 1})
    assert again.action == "recorded"
    assert seats(ledger) == ("1", "2")


def test_a_worse_second_look_at_the_champion_is_a_rejection_on_record_that_moves_nothing(ledger: Ledger) -> None:
    decide_on(ledger, 1)
    assert decide_on(ledger, 1, "rejected", evidence={"evaluation_digest": "again"}).outcome == "rejected"
    assert seats(ledger) == ("1", None)


def test_the_same_decision_given_twice_is_still_the_first_one(ledger: Ledger) -> None:
    first = decide_on(ledger, 1)
    assert decide_on(ledger, 1, evidence={"revision": 0}) == first
    assert len(ledger.history("m")) == 1


def test_an_older_nights_question_does_not_end_a_newer_ones(ledger: Ledger) -> None:
    decide_on(ledger, 1)
    newer = decide_on(ledger, 5, "needs_approval")
    older = decide_on(ledger, 3, "needs_approval")
    assert (older.outcome, older.reasons[-1].gate) == ("rejected", "standing")
    assert older.reasons[-1].words == "version 1.5.0, of a later run, waits for an answer: nothing goes backwards"
    assert ledger.open_requests("m") == [newer]


@pytest.mark.parametrize("outcome", ["rejected", "needs_approval"])
def test_an_order_to_roll_back_goes_around_no_gate_and_no_person(ledger: Ledger, outcome: str) -> None:
    decide_on(ledger, 1)
    decide_on(ledger, 2, outcome)
    with pytest.raises(DeniedError, match=r"version 2 \(1\.2\.0\) of m was never champion") as caught:
        roll_back(ledger, "m", by="bob", reason="I want it", to="2")
    assert caught.value.code == "rollback.never_champion"
    assert seats(ledger) == ("1", None)
