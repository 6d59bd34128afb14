"""One row per decision, one winner per race."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import event

from training.database.schema import LedgerDecisionRow
from training.errors import DeniedError
from training.registry.ledger.ledger import AliasHolder, Entry, Ledger, ModelAliases, Move, decision_key
from training.registry.ledger.reasons import Reason


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(f"sqlite:///{tmp_path}/ledger.db")


def entry(number: int, *, action: str = "promoted", key: str | None = None) -> Entry:
    return Entry(
        model="m",
        key=key or decision_key("m", f"w{number}", f"e{number}"),
        weights_digest=f"w{number}",
        version=str(number),
        action=action,
        outcome="accepted" if action == "promoted" else "rejected",
        reasons=[Reason(gate="finite", passed=True, words="fine")],
        evidence={"weights_digest": f"w{number}"},
        decided_by="m/run/promote",
    )


def seat(number: int, *, expected_revision: int = 0) -> Move:
    holder = AliasHolder(version=str(number), weights_digest=f"w{number}", model_uri="u", as_of=datetime(2026, 1, 1, tzinfo=UTC), bounds={})
    return Move(champion=holder, canary=None, expected_revision=expected_revision)


def champion_of(ledger: Ledger) -> tuple[str, int]:
    standing = ledger.standing("m")
    assert standing.champion is not None
    return standing.champion.version, standing.revision


def test_unknown_model_has_no_champion(ledger: Ledger) -> None:
    assert ledger.standing("m") == ModelAliases(model="m")
    assert ledger.history("m") == []


def test_promotion_moves_the_standing_and_keeps_the_evidence(ledger: Ledger) -> None:
    ledger.record(entry(1), seat(1))
    ledger.record(entry(2), seat(2, expected_revision=1))
    assert champion_of(ledger) == ("2", 2)
    assert [(row.version, row.evidence["weights_digest"]) for row in ledger.history("m")] == [("1", "w1"), ("2", "w2")]


def test_same_decision_twice_is_one_row_and_moves_nothing(ledger: Ledger) -> None:
    ledger.record(entry(1), seat(1))
    ledger.record(entry(1), seat(1))
    assert champion_of(ledger) == ("1", 1)
    assert len(ledger.history("m")) == 1


@pytest.mark.parametrize("expected_revision", [0, 2])
def test_decision_against_another_champion_is_refused_and_leaves_no_row(ledger: Ledger, expected_revision: int) -> None:
    ledger.record(entry(1), seat(1))
    with pytest.raises(DeniedError, match="moved on to revision 1") as caught:
        ledger.record(entry(2), seat(2, expected_revision=expected_revision))
    assert caught.value.code == "promotion.conflict"
    assert champion_of(ledger) == ("1", 1)
    assert len(ledger.history("m")) == 1


def test_of_eight_promotions_at_once_exactly_one_wins_each_round(ledger: Ledger) -> None:
    for revision in range(5):
        barrier, outcomes = threading.Barrier(8), []

        def race(number: int, revision: int = revision, barrier: threading.Barrier = barrier, outcomes: list[str] = outcomes) -> None:
            barrier.wait()
            try:
                ledger.record(entry(number), seat(number, expected_revision=revision))
                outcomes.append(str(number))
            except DeniedError:
                outcomes.append("refused")

        threads = [threading.Thread(target=race, args=(revision * 8 + n + 1,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = set(outcomes) - {"refused"}
        assert outcomes.count("refused") == 7
        assert champion_of(ledger) == (winner, revision + 1)
    assert len(ledger.history("m")) == 5


def test_rejection_is_kept_and_changes_nothing(ledger: Ledger) -> None:
    ledger.record(entry(1, action="recorded"))
    assert ledger.standing("m").champion is None
    assert [row.outcome for row in ledger.history("m")] == ["rejected"]


def long_history(ledger: Ledger, rows: int) -> list[Entry]:
    for number in range(1, rows + 1):
        ledger.record(entry(number, action="recorded"))
    return ledger.history("m")


def test_the_outline_of_a_history_has_all_of_it_but_the_evidence(ledger: Ledger) -> None:
    ledger.record(entry(1), seat(1))
    history = long_history(ledger, 3)
    assert all(row.evidence for row in history)
    assert ledger.outline("m") == [replace(row, evidence={}) for row in history]


def test_newest_first_is_the_whole_history_backwards_over_all_pages(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(ledger.newest_first("m")) == []
    monkeypatch.setattr("training.registry.ledger.ledger.PAGE_ROWS", 3)
    for rows in (2, 3, 4, 7):
        history = long_history(ledger, rows)
        assert len(history) == rows
        assert list(ledger.newest_first("m")) == history[::-1]


def test_the_newest_decision_of_a_long_history_is_read_with_one_page(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.registry.ledger.ledger.PAGE_ROWS", 3)
    long_history(ledger, 10)
    loaded: list[str] = []

    def note(target: LedgerDecisionRow, _context: object) -> None:
        loaded.append(target.version)

    event.listen(LedgerDecisionRow, "load", note)
    try:
        assert next(ledger.newest_first("m")).version == "10"
    finally:
        event.remove(LedgerDecisionRow, "load", note)
    assert loaded == ["10", "9", "8"]
