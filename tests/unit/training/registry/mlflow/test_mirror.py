"""MLflow says what the ledger says, whoever dies, whoever comes late."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.tracking._model_registry.client import ModelRegistryClient

from tests.unit.training.registry.scenes import at_once, decide_on, seats
from training.errors import DeniedError, UnavailableError
from training.registry.ledger import ledger as ledger_module
from training.registry.ledger.alias_findings import RecordedFindings
from training.registry.ledger.decisions import answer_request, roll_back, settle_canary
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.reasons import Reason
from training.registry.mlflow import mirror as mirror_module
from training.registry.mlflow.mirror import differences, mirror
from training.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(f"sqlite:///{tmp_path}/ledger.db")


def aliases(registry: mlflow.MlflowClient, model: str) -> tuple[str | None, str | None]:
    found = registry.get_registered_model(model).aliases
    champion, canary = found.get("champion"), found.get("canary")
    return None if champion is None else str(champion), None if canary is None else str(canary)


def tags(registry: mlflow.MlflowClient, model: str, version: str) -> dict[str, str]:
    return dict(registry.get_model_version(model, version).tags)


def test_aliases_and_lifecycles_follow_every_kind_of_decision(
    ledger: Ledger, store: Store, registry: mlflow.MlflowClient, model: str
) -> None:
    def lifecycles() -> list[str]:
        mirror(ledger, store, model)
        assert aliases(registry, model) == seats(ledger, model)
        assert ledger.unmirrored() == {}
        return [tags(registry, model, str(number))["lifecycle"] for number in range(1, 5)]

    decide_on(ledger, 1, model=model)
    assert lifecycles() == ["champion", "candidate", "candidate", "candidate"]
    decide_on(ledger, 2, model=model, canary=True)
    assert lifecycles() == ["champion", "canary", "candidate", "candidate"]
    settle_canary(ledger, ledger.standing(model), "accepted", reasons=[], evidence={}, decided_by="night")
    assert lifecycles() == ["archived", "champion", "candidate", "candidate"]
    decide_on(ledger, 3, model=model, canary=True)
    settle_canary(ledger, ledger.standing(model), "rolled_back", reasons=[], evidence={}, decided_by="night")
    assert lifecycles() == ["archived", "champion", "archived", "candidate"]
    decide_on(ledger, 4, "rejected", model=model)
    assert lifecycles() == ["archived", "champion", "archived", "candidate"]
    roll_back(ledger, model, by="ada", reason="late")
    assert lifecycles() == ["champion", "archived", "archived", "candidate"]


def test_a_version_carries_the_words_and_the_name_of_its_last_decision(
    ledger: Ledger, store: Store, registry: mlflow.MlflowClient, model: str
) -> None:
    decide_on(ledger, 1, model=model)
    request = decide_on(ledger, 2, "needs_approval", model=model)
    mirror(ledger, store, model)
    assert tags(registry, model, "2")["nightshift.decision"] == "needs_approval"
    answer_request(ledger, request, "approved", by="ada", words="approved by ada: \N{SNOWMAN} fine")
    mirror(ledger, store, model)
    found = tags(registry, model, "2")
    assert (found["nightshift.decision"], found["nightshift.decided_by"], found["promoted_by"]) == ("approved", "ada", "ada")
    assert found["nightshift.reasons"] == "gap 0.2 is above 0.1; approved by ada: \N{SNOWMAN} fine"
    assert found["nightshift.weights_digest"] == "w2"


def test_the_reason_of_a_rollback_is_in_the_registry_and_not_in_the_log_which_others_may_read(
    ledger: Ledger, store: Store, registry: mlflow.MlflowClient, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    decide_on(ledger, 1, model=model)
    decide_on(ledger, 2, model=model)
    roll_back(ledger, model, by="ada", reason="complaints of Acme")
    with caplog.at_level(logging.INFO):
        mirror(ledger, store, model)
    assert "complaints of Acme" in tags(registry, model, "1")["nightshift.reasons"]
    assert f"{model}: alias champion is not there, the ledger says version 1.1.0" in caplog.text
    assert f"{model}: tag nightshift.reasons of version 1 is set right" in caplog.text
    assert "Acme" not in caplog.text


def test_what_another_process_keeps_setting_back_is_named_and_no_reason_is_quoted(
    ledger: Ledger, store: Store, registry: mlflow.MlflowClient, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide_on(ledger, 1, model=model)
    decide_on(ledger, 2, model=model)
    roll_back(ledger, model, by="ada", reason="complaints of Acme")
    monkeypatch.setattr(mirror_module, "_mend", lambda difference: None)
    words = r"after 20 rounds MLflow still says otherwise than the ledger: tag \S+ of version"
    with pytest.raises(UnavailableError, match=words) as caught:
        mirror(ledger, store, model)
    assert (caught.value.code, "Acme" in str(caught.value)) == ("mlflow.unavailable", False)


def test_a_versions_description_has_its_last_decision_and_a_persons_text_stays(
    ledger: Ledger, store: Store, registry: mlflow.MlflowClient, model: str
) -> None:
    def description(version: str) -> str:
        return str(registry.get_model_version(model, version).description)

    decide_on(ledger, 1, model=model)
    request = decide_on(ledger, 2, "needs_approval", model=model)
    # What the registration writes stays below each decision.
    schema = "**Schema**\n\n| | column | type |\n| --- | --- | --- |\n| input | price | double |"
    registry.update_model_version(model, "2", schema)
    mirror(ledger, store, model)
    assert description("2").endswith(f" |\n\n{schema}")
    assert description("1").startswith(f"promoted: better by 0.01; version 1.1.0 of {model}\n\nDecided by night/1, 20")
    assert "| improvement | pass | better by 0.01 |" in description("1")
    assert description("2").startswith(f"needs approval: gap 0.2 is above 0.1; version 1.2.0 of {model}")
    registry.update_model_version(model, "1", "Kept for the audit.")
    answer_request(ledger, request, "approved", by="ada", words="approved by ada: fine | good")
    mirror(ledger, store, model)
    assert description("1") == "Kept for the audit."
    assert "approved by ada: fine \\| good |" in description("2")
    assert description("2").endswith(f" |\n\n{schema}")
    assert differences(ledger, store, model) == []


def test_a_description_is_cut_at_a_whole_line_of_what_mlflow_keeps(
    ledger: Ledger, store: Store, registry: mlflow.MlflowClient, model: str
) -> None:
    reasons = [Reason(gate=f"g{number}", passed=True, words="w" * 300) for number in range(40)]
    decide_on(ledger, 1, "rejected", model=model, reasons=[Reason(gate="minimum", passed=False, words="too low"), *reasons])
    mirror(ledger, store, model)
    found = registry.get_model_version(model, "1").description
    assert 4500 < len(found) <= 5000
    assert found.endswith("w |")
    assert differences(ledger, store, model) == []
    registry.update_model_version(model, "1", "x" * 300 + "\n\nDecided by me")
    (difference,) = differences(ledger, store, model)
    cut = "x" * 200 + " …"
    assert str(difference).startswith(f"{model}: description of version 1 is {cut}, the ledger says rejected: ")
    assert "\n" not in str(difference)


def test_what_another_writer_set_is_listed_and_set_right(ledger: Ledger, store: Store, registry: mlflow.MlflowClient, model: str) -> None:
    decide_on(ledger, 1, model=model)
    mirror(ledger, store, model)
    registry.set_registered_model_alias(model, "champion", "3")
    registry.set_registered_model_alias(model, "canary", "4")
    registry.set_registered_model_alias(model, "shadow", "5")
    registry.set_model_version_tag(model, "1", "lifecycle", "archived")
    assert [str(difference) for difference in differences(ledger, store, model)] == [
        f"{model}: tag lifecycle of version 1 is archived, the ledger says champion",
        f"{model}: alias champion is version 3 (weights w3), the ledger says version 1.1.0 (weights w1)",
        f"{model}: alias canary is version 4 (weights w4), the ledger says none",
    ]
    mirror(ledger, store, model)
    assert aliases(registry, model) == ("1", None)
    assert differences(ledger, store, model) == []
    assert registry.get_registered_model(model).aliases["shadow"] in (5, "5")


@pytest.mark.parametrize("is_registered", [True, False])
def test_a_champion_that_is_nowhere_any_more_is_a_finding_with_its_weights_and_the_reason(
    ledger: Ledger, store: Store, model: str, is_registered: bool
) -> None:
    name = model if is_registered else f"{model}_gone"
    decide_on(ledger, 50, model=name)
    expected = [("alias champion", "version 1.50.0 (weights w50)")]
    assert [(found.what, found.expected) for found in differences(ledger, store, name)] == expected
    mirror(ledger, store, name)
    (finding,) = RecordedFindings(ledger.database_url).open(name)
    assert finding.kind == "missing"
    assert "version 1.50.0 (weights w50), is not in MLflow and cannot be registered again: [registry.rebuild]" in finding.words
    assert [(found.what, found.expected) for found in differences(ledger, store, name)] == expected


def test_a_missing_champion_keeps_nothing_else_from_being_set_right(
    ledger: Ledger, store: Store, registry: mlflow.MlflowClient, model: str
) -> None:
    decide_on(ledger, 1, model=model)
    mirror(ledger, store, model)
    decide_on(ledger, 50, model=model)
    decide_on(ledger, 2, model=model, canary=True)
    mirror(ledger, store, model)
    assert aliases(registry, model) == (None, "2")
    assert tags(registry, model, "1")["lifecycle"] == "archived"


def test_a_model_that_only_the_ledger_knows_without_a_champion_is_no_difference(ledger: Ledger, store: Store, model: str) -> None:
    decide_on(ledger, 1, "rejected", model=f"{model}_new")
    mirror(ledger, store, f"{model}_new")
    assert ledger.unmirrored() == {}


def overtaken(monkeypatch: pytest.MonkeyPatch, meanwhile: Any) -> None:
    """Let `meanwhile` happen between the first look and the first write of whoever follows next."""
    look, has_happened = mirror_module._compared, []

    def slow(*arguments: Any, **options: Any) -> Any:
        found = look(*arguments, **options)
        if found[1] and not has_happened:
            has_happened.append(True)
            meanwhile()
        return found

    monkeypatch.setattr(mirror_module, "_compared", slow)


def test_a_slow_writer_overtaken_by_a_newer_champion_ends_with_the_newest(
    ledger: Ledger, store: Store, registry: mlflow.MlflowClient, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide_on(ledger, 1, model=model)

    def newer() -> None:
        decide_on(ledger, 2, model=model)
        mirror(ledger, store, model)
        assert aliases(registry, model) == ("2", None)

    overtaken(monkeypatch, newer)
    standing = mirror(ledger, store, model)
    assert standing.champion is not None
    assert standing.champion.version == "2"
    assert aliases(registry, model) == ("2", None)
    assert differences(ledger, store, model) == []
    assert ledger.unmirrored() == {}


def test_a_slow_writer_overtaken_by_an_answer_that_moves_nothing_leaves_the_newest_words(
    ledger: Ledger, store: Store, registry: mlflow.MlflowClient, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide_on(ledger, 1, model=model)
    request = decide_on(ledger, 2, "needs_approval", model=model)

    def declined() -> None:
        answer_request(ledger, request, "declined", by="ada", words="no")
        mirror(ledger, store, model)

    overtaken(monkeypatch, declined)
    mirror(ledger, store, model)
    assert tags(registry, model, "2")["nightshift.decision"] == "declined"
    assert differences(ledger, store, model) == []


def test_a_writer_that_is_overtaken_before_its_first_write_writes_nothing_of_the_earlier_revision(
    ledger: Ledger, store: Store, registry: mlflow.MlflowClient, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide_on(ledger, 1, model=model)
    begin, written = ledger.begin_mirror, list[str]()

    def overtaken_begin(name: str, revision: int) -> str | None:
        if revision == 1:
            decide_on(ledger, 2, model=name)
        return begin(name, revision)

    monkeypatch.setattr(ledger, "begin_mirror", overtaken_begin)
    set_alias = ModelRegistryClient.set_registered_model_alias
    monkeypatch.setattr(ModelRegistryClient, "set_registered_model_alias", lambda *given: written.append(given[-1]) or set_alias(*given))
    mirror(ledger, store, model)
    assert (aliases(registry, model), written) == (("2", None), ["2"])


def test_a_writer_that_dies_after_a_late_write_leaves_a_note_and_the_next_one_sets_it_right(
    ledger: Ledger, store: Store, registry: mlflow.MlflowClient, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide_on(ledger, 1, model=model)

    def newer_and_dead(*_: object) -> None:
        patch.undo()
        decide_on(ledger, 2, model=model)
        mirror(ledger, store, model)
        # The late write of the first writer, and its death.
        registry.set_registered_model_alias(model, "champion", "1")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mirror_module, "_mended", newer_and_dead)
        with pytest.raises(KeyboardInterrupt):
            mirror(ledger, store, model)
    assert ledger.unmirrored() == {model: 0}, "the note of the dead writer"
    assert aliases(registry, model) == ("1", None)
    mirror(ledger, store, model)
    assert (aliases(registry, model), RecordedFindings(ledger.database_url).open(model)) == (("2", None), [])
    assert ledger.unmirrored() == {model: 0}, "it may be alive, and write once more"
    monkeypatch.setattr(ledger_module, "ABANDONED_AFTER", timedelta(0))
    mirror(ledger, store, model)
    assert ledger.unmirrored() == {}


def test_many_who_decide_and_follow_at_once_leave_mlflow_at_the_ledger(
    ledger: Ledger, store: Store, registry: mlflow.MlflowClient, model: str
) -> None:
    def night(number: int) -> None:
        while True:
            try:
                decide_on(ledger, number, model=model)
                break
            except DeniedError:
                continue
        mirror(ledger, store, model)

    results = at_once([lambda number=number: night(number) for number in range(1, 7)])
    assert results == [None] * 6
    assert aliases(registry, model) == seats(ledger, model)
    assert differences(ledger, store, model) == []
    assert ledger.unmirrored() == {}


def test_another_writer_that_keeps_changing_aliases_is_an_error_and_no_endless_loop(
    ledger: Ledger, store: Store, registry: mlflow.MlflowClient, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide_on(ledger, 1, model=model)
    look = mirror_module._compared

    def contrary(*arguments: Any, **options: Any) -> Any:
        registry.set_registered_model_alias(model, "champion", "9")
        return look(*arguments, **options)

    monkeypatch.setattr(mirror_module, "_compared", contrary)
    with pytest.raises(UnavailableError, match="otherwise than the ledger: alias champion"):
        mirror(ledger, store, model)
    assert ledger.unmirrored() == {model: 1}


def test_an_unchanged_model_costs_a_few_requests_and_writes_nothing_however_many_versions_there_are(
    ledger: Ledger, store: Store, registry: mlflow.MlflowClient, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 8):
        decide_on(ledger, number, model=model)
    decide_on(ledger, 8, model=model, canary=True)
    mirror(ledger, store, model)
    asked: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(mlflow.MlflowClient, name)
        return lambda *given, **options: asked.append(name) or real(*given, **options)

    public = [name for name in vars(mlflow.MlflowClient) if not name.startswith("_") and callable(getattr(mlflow.MlflowClient, name))]
    for name in public:
        monkeypatch.setattr(mlflow.MlflowClient, name, counted(name))
    for name in ("begin_mirror", "end_mirror", "note_registration"):
        monkeypatch.setattr(ledger, name, lambda *_, **__: pytest.fail("the ledger is written to"))
    mirror(ledger, store, model)
    assert asked == ["get_registered_model", "search_model_versions", "get_logged_model", "get_logged_model"]


def test_what_a_dead_writer_left_of_several_decisions_is_set_right_by_the_next_decision(
    ledger: Ledger, store: Store, registry: mlflow.MlflowClient, model: str
) -> None:
    decide_on(ledger, 1, model=model)
    decide_on(ledger, 2, model=model, canary=True)
    mirror(ledger, store, model)
    # Nobody followed these three: the canary ended, two champions came and one went.
    decide_on(ledger, 3, model=model)
    decide_on(ledger, 4, "rejected", model=model)
    decide_on(ledger, 5, model=model)
    assert ledger.unmirrored() == {model: 4}, "with the end of the canary"
    mirror(ledger, store, model)
    assert differences(ledger, store, model) == []
    assert ledger.unmirrored() == {}


def test_a_version_without_an_alias_that_a_person_deleted_stays_deleted_and_delays_nothing(
    ledger: Ledger, store: Store, registry: mlflow.MlflowClient, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        decide_on(ledger, number, model=model)
    mirror(ledger, store, model)
    registry.delete_model_version(model, "1")
    decide_on(ledger, 3, model=model)
    mirror(ledger, store, model)
    assert sorted(int(version.version) for version in registry.search_model_versions(f"name = '{model}'")) == list(range(2, 10))
    assert (differences(ledger, store, model), ledger.unmirrored()) == ([], {})
    monkeypatch.setattr(mirror_module, "_mended", lambda *_: pytest.fail("MLflow is written to"))
    mirror(ledger, store, model)
