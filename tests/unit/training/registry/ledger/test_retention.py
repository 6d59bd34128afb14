"""What the ledger keeps of the store, what it notes of deleted weights, and that nobody goes back to those."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nightshift.client.show_command import history_lines
from nightshift.queries.models import summary_of
from tests.unit.training.registry.scenes import candidate, decide_on
from training.errors import DeniedError
from training.registry.ledger.decisions import answer_request, record_candidate, roll_back
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.reasons import Reason
from training.registry.ledger.retention import LedgerRoots


def uri(number: int, what: str = "a") -> str:
    return f"file:///store/manifests/sha256/{what}{number}/{what}{number:063x}.json"


def decide(ledger: Ledger, number: int, outcome: str = "accepted", **facts: Any) -> Any:
    """Record a decision about version `number`, whose model and snapshot are in the store."""
    holder = replace(candidate(number), model_uri=uri(number))
    evidence = {
        "evaluation_digest": f"e{number}",
        "weights_digest": f"w{number}",
        "revision": ledger.standing("m").revision,
        "has_canary": facts.get("canary", False),
        "model_uri": uri(number),
        "snapshot_uri": uri(number, "b"),
        "champion": {"model_uri": uri(number - 1)},
    }
    return record_candidate(
        ledger, holder, model="m", outcome=outcome, reasons=[Reason(gate="g", passed=True, words="w")], evidence=evidence, decided_by="n"
    )


@pytest.fixture
def ledger(empty_database: str) -> Ledger:
    return Ledger(empty_database)


def kept(url: str, champions: int) -> set[int]:
    """Return the versions whose model and snapshot stay."""
    found = set(LedgerRoots(url, champions=champions).uris())
    numbers = {number for number in range(1, 10) if uri(number) in found}
    assert all(uri(number, "b") in found for number in numbers)
    return numbers


def test_champion_canary_former_champions_and_open_requests_stay(ledger: Ledger, empty_database: str) -> None:
    for number in (1, 2, 3):
        decide(ledger, number)
    decide(ledger, 4, "rejected")
    decide(ledger, 5, canary=True)
    assert kept(empty_database, 0) == {3, 5}
    assert kept(empty_database, 1) == {2, 3, 5}
    assert kept(empty_database, 9) == {1, 2, 3, 5}
    decide(ledger, 6, "needs_approval")
    assert kept(empty_database, 0) == {3, 5, 6}
    assert uri(5) in LedgerRoots(empty_database, champions=0).uris()
    answer_request(ledger, ledger.open_requests("m")[0], "declined", by="ada", words="no")
    assert kept(empty_database, 0) == {3, 5}


def test_champion_that_was_rolled_back_counts_as_a_former_one(ledger: Ledger, empty_database: str) -> None:
    decide(ledger, 1)
    decide(ledger, 2)
    roll_back(ledger, "m", by="ada", reason="late")
    assert kept(empty_database, 1) == {1, 2}


def test_spec_of_the_newest_decision_stays_because_housekeeping_reads_it(ledger: Ledger, empty_database: str) -> None:
    specs = [f"file:///store/objects/sha256/c{number}/c{number:063x}" for number in (1, 2, 3)]
    decide_on(ledger, 1, evidence={"spec_uri": specs[0]})
    decide_on(ledger, 2, "rejected", evidence={"spec_uri": specs[1]})
    decide_on(ledger, 3, "rejected", evidence={"spec_uri": specs[2]})
    decide_on(ledger, 4, "rejected")
    found = LedgerRoots(empty_database, champions=0).uris()
    assert [spec in found for spec in specs] == [True, False, True]


def test_deleted_version_keeps_its_digests_and_says_when_its_weights_went(ledger: Ledger, empty_database: str) -> None:
    for number in (1, 2, 3):
        decide(ledger, number)
    assert LedgerRoots(empty_database, champions=0).release([uri(1)]) == set()
    rows = {entry.version: entry for entry in ledger.history("m")}
    assert rows["1"].deleted_at is not None
    assert rows["1"].evidence["weights_digest"] == "w1"
    assert (rows["2"].deleted_at, rows["3"].deleted_at) == (None, None)
    assert "1 (1.1.0), deleted" in "\n".join(history_lines([summary_of(entry) for entry in ledger.history("m")], 120))


def test_rollback_to_deleted_weights_is_refused_with_what_to_do(ledger: Ledger, empty_database: str) -> None:
    for number in (1, 2, 3):
        decide(ledger, number)
    LedgerRoots(empty_database, champions=0).release([uri(2)])
    for target in (None, "2", "1.2.0"):
        with pytest.raises(DeniedError, match=r"weights of version 1\.2\.0 of m were deleted by retention on \d{4}-") as caught:
            roll_back(ledger, "m", by="ada", reason="late", to=target)
        assert caught.value.code == "version.deleted"
        assert "2013-01-03" in caught.value.hint
    champion = ledger.standing("m").champion
    assert champion is not None
    assert champion.version == "3"
    assert roll_back(ledger, "m", by="ada", reason="late", to="1").version == "1"


def test_version_that_is_seated_or_asked_about_is_not_released(ledger: Ledger, empty_database: str) -> None:
    decide(ledger, 1)
    decide(ledger, 2, canary=True)
    decide(ledger, 3, "needs_approval")
    wanted = [uri(1), uri(2), uri(3)]
    assert LedgerRoots(empty_database, champions=0).release(wanted) == set(wanted)
    assert [entry.deleted_at for entry in ledger.history("m")] == [None, None, None]


def test_version_that_was_made_again_can_be_gone_back_to(ledger: Ledger, empty_database: str) -> None:
    decide(ledger, 1)
    decide(ledger, 2)
    LedgerRoots(empty_database, champions=0).release([uri(1)])
    decide_on(ledger, 1, "rejected", evidence={"evaluation_digest": "again", "model_uri": uri(1)})
    assert roll_back(ledger, "m", by="ada", reason="late", to="1").version == "1"
