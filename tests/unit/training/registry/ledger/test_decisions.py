"""What each decision does to champion and canary, case by case."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.training.registry.scenes import FINE, candidate, decide_on, rows, seats
from training.errors import DeniedError
from training.registry.ledger import ledger as ledger_module
from training.registry.ledger.decisions import (
    answer_request,
    approved_findings,
    champions,
    find_version,
    roll_back,
    settle_canary,
    settlement,
)
from training.registry.ledger.ledger import Entry, Ledger, ModelAliases
from training.registry.ledger.reasons import Reason


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(f"sqlite:///{tmp_path}/ledger.db")


def settle(ledger: Ledger, outcome: str) -> Entry:
    return settle_canary(ledger, ledger.standing("m"), outcome, reasons=[], evidence={}, decided_by="canary")


def back(ledger: Ledger, to: str | None = None, **named: str) -> Entry:
    return roll_back(ledger, "m", by="ada", reason="late flights", to=to, **named)


def code_of(caught: pytest.ExceptionInfo[DeniedError]) -> str:
    return caught.value.code


@pytest.mark.parametrize(
    ("outcome", "canary", "has_champion", "action", "expected"),
    [
        ("accepted", False, True, "promoted", ("2", None)),
        ("accepted", True, True, "canary", ("1", "2")),
        # The first champion ever has nobody to stand beside.
        ("accepted", True, False, "promoted", ("2", None)),
        ("rejected", True, True, "recorded", ("1", None)),
        ("needs_approval", False, True, "recorded", ("1", None)),
    ],
)
def test_a_candidate_gets_an_alias_as_the_gates_say(
    ledger: Ledger, outcome: str, canary: bool, has_champion: bool, action: str, expected: tuple[str | None, str | None]
) -> None:
    if has_champion:
        decide_on(ledger, 1)
    kept = decide_on(ledger, 2, outcome, canary=canary)
    assert (kept.action, kept.outcome) == (action, outcome)
    assert seats(ledger) == expected
    assert kept.revision == (None if action == "recorded" else ledger.standing("m").revision)


def test_a_seat_keeps_what_a_reader_of_the_ledger_needs(ledger: Ledger) -> None:
    kept = decide_on(ledger, 1)
    champion = ledger.standing("m").champion
    assert champion is not None
    assert replace(champion, since="", decision_key="") == candidate(1)
    assert champion.decision_key == kept.key
    assert champion.since[:10] == f"{kept.decided_at:%Y-%m-%d}"


@pytest.mark.parametrize(
    ("outcome", "canary", "action", "expected"),
    [
        ("approved", False, "promoted", ("2", None)),
        ("approved", True, "canary", ("1", "2")),
        ("declined", False, "recorded", ("1", None)),
        ("expired", False, "recorded", ("1", None)),
        ("bypassed", False, "recorded", ("1", None)),
    ],
)
def test_an_answer_ends_the_request_and_only_an_approval_moves(
    ledger: Ledger, outcome: str, canary: bool, action: str, expected: tuple[str, str | None]
) -> None:
    decide_on(ledger, 1)
    request = decide_on(ledger, 2, "needs_approval", canary=canary)
    assert ledger.open_requests("m") == [request]
    kept = answer_request(ledger, request, outcome, by="ada", words="because")
    assert (kept.outcome, kept.action, kept.decided_by, kept.request_key) == (outcome, action, "ada", request.key)
    assert [reason.words for reason in kept.reasons] == ["gap 0.2 is above 0.1", "because"]
    assert kept.reasons[-1].passed == (outcome == "approved")
    assert ledger.open_requests("m") == []
    assert ledger.ending_of("m", request.key) == kept
    assert seats(ledger) == expected


def test_repeated_answer_is_one_row_and_a_different_one_gets_the_first_result(ledger: Ledger) -> None:
    request = decide_on(ledger, 1, "needs_approval")
    first = answer_request(ledger, request, "approved", by="ada", words="yes")
    assert answer_request(ledger, request, "approved", by="bob", words="yes") == first
    with pytest.raises(DeniedError, match="approved by ada") as caught:
        answer_request(ledger, request, "declined", by="bob", words="no")
    assert code_of(caught) == "approval.ended"
    assert len(ledger.history("m")) == 2


def test_a_promotion_ends_what_waited_for_a_person(ledger: Ledger) -> None:
    request = decide_on(ledger, 2, "needs_approval")
    decide_on(ledger, 3)
    with pytest.raises(DeniedError, match=r"superseded by night/3 \(version 1.3.0 became champion meanwhile\)"):
        answer_request(ledger, request, "approved", by="ada", words="yes")
    assert seats(ledger) == ("3", None)
    assert rows(ledger)[-1] == ("2", "superseded", "recorded")


@pytest.mark.parametrize("newer", ["asks", "is canary", "is rolled back to"])
def test_a_newer_seat_or_question_ends_the_open_request_once(ledger: Ledger, newer: str) -> None:
    decide_on(ledger, 1)
    decide_on(ledger, 2)
    request = decide_on(ledger, 3, "needs_approval")
    if newer == "asks":
        decide_on(ledger, 4, "needs_approval")
    elif newer == "is canary":
        decide_on(ledger, 4, canary=True)
    else:
        back(ledger)
    ending = ledger.ending_of("m", request.key)
    assert ending is not None
    assert ending.outcome == "superseded"
    assert [entry.version for entry in ledger.open_requests("m")] == (["4"] if newer == "asks" else [])


@pytest.fixture
def stale_request(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Entry:
    """An open request whose standing moves while its answer is on its way: nothing has ended it yet."""
    decide_on(ledger, 1)
    decide_on(ledger, 2, canary=True)
    request = decide_on(ledger, 3, "needs_approval")
    with monkeypatch.context() as patch:
        patch.setattr("training.registry.ledger.ledger._supersede", lambda *_: None)
        settle(ledger, "rolled_back")
    assert ledger.open_requests("m") == [request]
    return request


def test_an_approval_of_what_was_measured_against_an_older_standing_is_stale_however_often_it_is_given(
    ledger: Ledger, stale_request: Entry
) -> None:
    kept = answer_request(ledger, stale_request, "approved", by="ada", words="yes")
    assert (kept.outcome, kept.action, kept.decided_by) == ("stale", "recorded", "ada")
    assert "evaluated against champion none (revision 2); champion is 1.1.0 now (revision 3)" in kept.reasons[-1].words
    assert answer_request(ledger, stale_request, "approved", by="ada", words="yes") == kept
    assert seats(ledger) == ("1", None)


def test_no_person_is_asked_about_a_candidate_measured_before_the_standing_moved(ledger: Ledger) -> None:
    decide_on(ledger, 1)
    # Measured against nobody, while the first champion was being decided about.
    with pytest.raises(DeniedError, match=r"moved on to revision 1 from 0.*clear the evaluate task") as caught:
        decide_on(ledger, 2, "needs_approval", revision=0)
    assert code_of(caught) == "promotion.conflict"
    assert rows(ledger) == [("1", "accepted", "promoted")]


def test_a_request_that_is_recorded_again_after_the_standing_moved_is_the_same_row(ledger: Ledger) -> None:
    request = decide_on(ledger, 1, "needs_approval")
    decide_on(ledger, 2)
    assert decide_on(ledger, 1, "needs_approval", revision=0) == request


def test_a_canary_that_ends_also_ends_the_request_that_was_measured_beside_it(ledger: Ledger) -> None:
    decide_on(ledger, 1)
    decide_on(ledger, 2, canary=True)
    request = decide_on(ledger, 3, "needs_approval")
    settle(ledger, "rolled_back")
    ending = ledger.ending_of("m", request.key)
    assert ending is not None
    assert ending.outcome == "superseded"
    assert "version 1.2.0 was settled as canary meanwhile" in ending.reasons[-1].words


@pytest.mark.parametrize("outcome", ["accepted", "needs_approval"])
@pytest.mark.parametrize("canary", [False, True])
def test_a_candidate_of_a_night_that_has_not_come_gets_no_alias_and_no_question(ledger: Ledger, outcome: str, canary: bool) -> None:
    decide_on(ledger, 1)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    with pytest.raises(DeniedError, match="later than now") as caught:
        decide_on(ledger, 2, outcome, canary=canary, as_of=tomorrow)
    assert code_of(caught) == "as_of.future"
    assert seats(ledger) == ("1", None)
    assert len(rows(ledger)) == 1


def test_a_champion_of_the_future_in_an_older_ledger_can_be_rolled_back(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    decide_on(ledger, 1)
    with monkeypatch.context() as patch:
        patch.setattr("training.registry.ledger.ledger.check_as_of", lambda *_: None)
        decide_on(ledger, 2, as_of=datetime.now(UTC) + timedelta(days=400))
    assert back(ledger).version == "1"
    assert seats(ledger) == ("1", None)
    with pytest.raises(DeniedError) as caught:
        back(ledger, "2")
    assert code_of(caught) == "as_of.future"


def test_nothing_is_approved_that_was_never_asked(ledger: Ledger) -> None:
    rejected = decide_on(ledger, 1, "rejected")
    for forged in (rejected, replace(rejected, key="0" * 64)):
        with pytest.raises(DeniedError) as caught:
            answer_request(ledger, forged, "approved", by="eve", words="yes")
        assert code_of(caught) == "approval.unknown"
    assert seats(ledger) == (None, None)


BOUND = Reason(gate="minimum", passed=False, severity="approve", words="auc 0.59", numbers={"metric": "auc", "bound": 0.6})
WARNED = Reason(gate="overlap", passed=False, severity="warn", words="share 0.95", numbers={})


def test_what_a_person_approved_about_a_canary_is_read_from_the_decision_that_made_it_canary(ledger: Ledger) -> None:
    decide_on(ledger, 1)
    request = decide_on(ledger, 2, "needs_approval", canary=True, reasons=[*FINE, BOUND, WARNED])
    assert approved_findings(ledger, ledger.standing("m")) == []
    answer_request(ledger, request, "approved", by="eve", words="eve said yes")
    assert seats(ledger) == ("1", "2")
    found = approved_findings(ledger, ledger.standing("m"))
    assert found == [{"gate": "minimum", "words": "auc 0.59", "numbers": {"metric": "auc", "bound": 0.6}, "by": "eve"}]
    settle(ledger, "accepted")
    assert approved_findings(ledger, ledger.standing("m")) == []


def test_canary_without_an_approval_has_no_approved_findings(ledger: Ledger) -> None:
    decide_on(ledger, 1)
    decide_on(ledger, 2, canary=True, reasons=[*FINE, WARNED])
    assert seats(ledger) == ("1", "2")
    assert approved_findings(ledger, ledger.standing("m")) == []


def test_holder_of_an_older_ledger_without_a_decision_key_has_no_approved_findings(ledger: Ledger) -> None:
    holder = replace(candidate(2), decision_key="")
    assert approved_findings(ledger, ModelAliases(model="m", canary=holder, revision=3)) == []


@pytest.mark.parametrize(
    ("outcome", "action", "expected"), [("accepted", "promoted", ("2", None)), ("rolled_back", "canary_ended", ("1", None))]
)
def test_a_canary_is_settled_once(ledger: Ledger, outcome: str, action: str, expected: tuple[str, None]) -> None:
    decide_on(ledger, 1)
    decide_on(ledger, 2, canary=True)
    standing = ledger.standing("m")
    assert settlement(ledger, "m", weights_digest="w2", revision=standing.revision) is None
    kept = settle(ledger, outcome)
    assert (kept.version, kept.outcome, kept.action) == ("2", outcome, action)
    assert seats(ledger) == expected
    assert settle_canary(ledger, standing, outcome, reasons=[], evidence={}, decided_by="again") == kept
    assert settlement(ledger, "m", weights_digest="w2", revision=standing.revision) == kept
    with pytest.raises(DeniedError) as caught:
        settle(ledger, outcome)
    assert code_of(caught) == "canary.missing"


@pytest.mark.parametrize("by", ["canary", "champion", "rollback"])
def test_a_canary_that_loses_its_seat_to_another_version_has_a_row_that_says_so(ledger: Ledger, by: str) -> None:
    decide_on(ledger, 1)
    decide_on(ledger, 2)
    decide_on(ledger, 3, canary=True)
    standing = ledger.standing("m")
    if by == "rollback":
        back(ledger)
    else:
        decide_on(ledger, 4, canary=by == "canary")
    assert rows(ledger)[-1] == ("3", "superseded", "canary_ended")
    assert seats(ledger) == {"canary": ("2", "4"), "champion": ("4", None), "rollback": ("1", None)}[by]
    with pytest.raises(DeniedError) as caught:
        settle_canary(ledger, standing, "accepted", reasons=[], evidence={}, decided_by="late")
    assert code_of(caught) == "promotion.conflict"


@pytest.mark.parametrize("is_settled", [False, True])
def test_no_order_makes_a_canary_champion_before_its_time_or_after_its_end(ledger: Ledger, is_settled: bool) -> None:
    decide_on(ledger, 1)
    decide_on(ledger, 2, canary=True)
    if is_settled:
        settle(ledger, "rolled_back")
    before = seats(ledger)
    with pytest.raises(DeniedError, match=r"version 2 \(1\.2\.0\) of m was never champion") as caught:
        back(ledger, "2")
    assert code_of(caught) == "rollback.never_champion"
    assert seats(ledger) == before


def test_each_rollback_goes_further_back_until_a_new_promotion(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        decide_on(ledger, number)
    assert [back(ledger).version, back(ledger).version] == ["2", "1"]
    with pytest.raises(DeniedError) as caught:
        back(ledger)
    assert code_of(caught) == "rollback.nothing"
    decide_on(ledger, 4)
    assert [entry.version for entry in champions(ledger.outline("m"))] == ["1", "4"]
    assert back(ledger).version == "1"


@pytest.mark.parametrize(("promoted", "expected"), [([1, 2, 2], "1"), ([1, 2, 1, 3], "1"), ([1, 2, 1], "2")])
def test_a_champion_that_is_promoted_again_is_no_champion_before_itself(ledger: Ledger, promoted: list[int], expected: str) -> None:
    for place, number in enumerate(promoted):
        decide_on(ledger, number, evidence={"evaluation_digest": f"e{place}"})
    assert back(ledger).version == expected


def test_going_back_to_the_later_of_two_times_as_champion_leaves_the_earlier_ones_in_the_line(ledger: Ledger) -> None:
    for place, number in enumerate([1, 2, 1, 3]):
        decide_on(ledger, number, evidence={"evaluation_digest": f"e{place}"})
    back(ledger)
    assert [entry.version for entry in champions(ledger.outline("m"))] == ["1", "2", "1"]


@pytest.mark.parametrize("name", ["1", "1.1.0"])
def test_a_version_is_named_by_number_or_by_semantic_version(ledger: Ledger, name: str) -> None:
    for number in (1, 2, 3):
        decide_on(ledger, number)
    kept = back(ledger, name)
    assert (kept.version, kept.decided_by, kept.evidence["reason"]) == ("1", "ada", "late flights")
    assert kept.evidence["from"]["version"] == "3"
    assert seats(ledger) == ("1", None)
    assert find_version(ledger, ledger.outline("m"), name, "m").weights_digest == "w1"


@pytest.mark.parametrize(
    ("to", "code", "words"),
    [
        ("7", "version.unknown", r"known: 1 \(1.1.0\), 2 \(1.2.0\)"),
        ("2", "rollback.same", "champion of m already"),
        ("1.2.0", "rollback.same", "champion of m already"),
    ],
)
def test_a_rollback_to_nowhere_is_refused(ledger: Ledger, to: str, code: str, words: str) -> None:
    decide_on(ledger, 1)
    decide_on(ledger, 2)
    with pytest.raises(DeniedError, match=words) as caught:
        back(ledger, to)
    assert code_of(caught) == code
    assert len(ledger.history("m")) == 2


def test_without_a_champion_there_is_nothing_to_roll_back(ledger: Ledger) -> None:
    with pytest.raises(DeniedError, match="models: none") as caught:
        back(ledger)
    assert code_of(caught) == "rollback.nothing"
    decide_on(ledger, 1)
    with pytest.raises(DeniedError, match="no champion before this one"):
        back(ledger, "")


@pytest.mark.slow
def test_one_order_given_again_is_the_rollback_that_it_was(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        decide_on(ledger, number)
    first = back(ledger, order="rollback/manual__1")
    assert back(ledger, order="rollback/manual__1") == first
    assert seats(ledger) == ("2", None)
    second = back(ledger, order="rollback/manual__2")
    assert second.version == "1"
    # There is nothing further back: what was done is the answer all the same.
    assert back(ledger, order="rollback/manual__2") == second
    assert back(ledger, order="rollback/manual__1") == first
    assert seats(ledger) == ("1", None)


def test_an_order_about_a_standing_that_has_moved_on_is_refused(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        decide_on(ledger, number)
    with pytest.raises(DeniedError) as caught:
        roll_back(ledger, "m", by="ada", reason="late", to="1", expected_revision=2)
    assert code_of(caught) == "promotion.conflict"
    assert seats(ledger) == ("3", None)


def test_numbers_that_are_none_and_characters_that_no_database_keeps_do_not_stop_a_decision(empty_database: str) -> None:
    ledger = Ledger(empty_database)
    evidence = {"metrics": {"auc": math.nan, "loss": [math.inf, 0.5]}, "note": "a\0b", "pair": (1, 2)}
    kept = decide_on(ledger, 1, evidence=evidence)
    assert kept.evidence["metrics"] == {"auc": "nan", "loss": ["inf", 0.5]}
    assert (kept.evidence["note"], kept.evidence["pair"]) == ("a\N{REPLACEMENT CHARACTER}b", [1, 2])
    assert ledger.history("m") == [kept]


@pytest.mark.parametrize("to", [None, "2", "1.2.0"])
def test_a_rollback_reads_the_evidence_of_the_versions_that_it_is_about(
    ledger: Ledger, to: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 30):
        decide_on(ledger, number)
    read: list[str] = []
    entry_of = ledger_module.entry_of

    def counted(row: Any, evidence: Any = None) -> Entry:
        if evidence is None:
            read.append(row.version)
        return entry_of(row, evidence)

    monkeypatch.setattr(ledger_module, "entry_of", counted)
    assert back(ledger, to).version == ((to and "2") or "28")
    assert len(read) <= 3
