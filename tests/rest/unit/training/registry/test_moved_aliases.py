"""An alias that another hand has moved: what is set back at once, what stays for a day, and what is said about it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import mlflow
import pytest

from tests.unit.training.registry.registered import registered
from tests.unit.training.registry.scenes import decide_on
from training.errors import DeniedError
from training.registry.ledger.alias_findings import RecordedFinding, RecordedFindings
from training.registry.ledger.decisions import find_version, roll_back, settle_canary
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.retention import LedgerRoots
from training.registry.mlflow.mirror import differences, mirror
from training.registry.mlflow.retention import forget
from training.registry.mlflow.versions import WEIGHTS_TAG
from training.store import Store

pytestmark = pytest.mark.slow

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Scene:
    """A model with champions 1 and 2, the second of which is it now; version 3 was rejected."""

    def __init__(self, folder: Path, store: Store, client: mlflow.MlflowClient, model: str) -> None:
        self.store, self.client, self.model = store, client, model
        self.ledger = Ledger(f"sqlite:///{folder}/ledger.db")
        self.findings = RecordedFindings(self.ledger.database_url)
        self.uris = [store.manifests.put_files("model", {"weights": b"%d" % number}, {})[0] for number in range(4)]
        for number, outcome in ((1, "accepted"), (2, "accepted"), (3, "rejected")):
            decide_on(self.ledger, number, outcome, model=model, evidence={"model_uri": self.uris[number]})
        self.mirror()

    def mirror(self, now: datetime = NOON, **options: bool) -> None:
        mirror(self.ledger, self.store, self.model, now=lambda: now, **options)

    def move(self, number: int, alias: str = "champion") -> None:
        self.client.set_registered_model_alias(self.model, alias, str(number))

    def alias(self, alias: str = "champion") -> str | None:
        found = self.client.get_registered_model(self.model).aliases.get(alias)
        return None if found is None else str(found)

    def open(self) -> list[RecordedFinding]:
        return self.findings.open(self.model)

    def kinds(self) -> list[tuple[str, str, str]]:
        return [(finding.alias, finding.kind, finding.served) for finding in self.findings.to_announce()]


@pytest.fixture
def scene(tmp_path: Path, store: Store, registry: mlflow.MlflowClient, model: str) -> Scene:
    return Scene(tmp_path, store, registry, model)


def test_a_former_champion_keeps_the_alias_for_a_day_with_an_alert_that_names_both_and_what_to_do(scene: Scene) -> None:
    scene.move(1)
    for hours in (0, 1, 23):
        scene.mirror(NOON + timedelta(hours=hours))
        assert scene.alias() == "1"
    (finding,) = scene.open()
    assert (finding.kind, finding.served, finding.first_seen_at) == ("former_champion", "w1", NOON)
    assert f"the alias champion of {scene.model} serves version 1 of MLflow (1.1.0, weights w1), a former champion" in finding.words
    assert "the ledger's champion is version 1.2.0 (weights w2)" in finding.words
    assert f'`nightshift rollback {scene.model} --to 1.1.0 --reason "…"` records it' in finding.words
    assert f"`python -m training.registry check {scene.model} --repair` sets it back" in finding.words
    assert "set back after 2026-03-02 12:00 UTC" in finding.words
    scene.mirror(NOON + timedelta(hours=24))
    assert (scene.alias(), scene.open()) == ("2", [])


def test_within_the_day_neither_a_rejected_run_nor_retention_touches_the_alias_its_version_or_its_weights(scene: Scene) -> None:
    scene.move(1)
    scene.mirror()
    decide_on(scene.ledger, 4, "rejected", model=scene.model)
    scene.mirror()
    roots, (_, served, champion, rejected) = LedgerRoots(scene.ledger.database_url, champions=0), scene.uris
    assert {served, champion} <= set(roots.uris())
    assert roots.release([served, rejected]) == {served}
    forget(scene.store, scene.ledger, scene.model, experiment=None, before=NOON)
    assert scene.alias() == "1"


def test_a_promotion_ends_the_day_of_a_former_champion(scene: Scene) -> None:
    scene.move(1)
    scene.mirror()
    decide_on(scene.ledger, 4, model=scene.model)
    scene.mirror()
    assert (scene.alias(), scene.open()) == ("4", [])


def test_a_canary_neither_made_nor_ended_takes_the_day_of_a_former_champion(scene: Scene) -> None:
    scene.move(1)
    scene.mirror()
    decide_on(scene.ledger, 4, model=scene.model, canary=True)
    scene.mirror(NOON + timedelta(hours=1))
    assert (scene.alias(), scene.alias("canary"), scene.kinds()) == ("1", "4", [("champion", "former_champion", "w1")])
    settle_canary(scene.ledger, scene.ledger.standing(scene.model), "rolled_back", reasons=[], evidence={}, decided_by="canary")
    scene.mirror(NOON + timedelta(hours=2))
    assert (scene.alias(), scene.alias("canary"), scene.kinds()) == ("1", None, [("champion", "former_champion", "w1")])
    # And what is moved while that one is open was moved by a hand, not late.
    scene.move(4, "canary")
    scene.mirror(NOON + timedelta(hours=3))
    assert (scene.alias("canary"), scene.kinds()[1:]) == (None, [("canary", "not_decided", "w4")])


def test_a_process_that_died_after_the_last_move_hides_no_moved_alias(scene: Scene) -> None:
    assert scene.ledger.begin_mirror(scene.model, 2)
    scene.move(1)
    scene.mirror()
    assert (scene.alias(), scene.kinds()) == ("1", [("champion", "former_champion", "w1")])


def test_the_late_write_of_a_process_that_began_before_the_last_move_is_set_right(scene: Scene) -> None:
    decide_on(scene.ledger, 4, model=scene.model)
    late = scene.ledger.begin_mirror(scene.model, 3)
    decide_on(scene.ledger, 5, model=scene.model)
    scene.mirror()
    scene.move(4)
    scene.mirror()
    assert (scene.alias(), scene.kinds()) == ("5", [])
    scene.ledger.end_mirror(scene.model, late, revision=3, decisions=4)
    scene.move(4)
    scene.mirror()
    assert (scene.alias(), scene.kinds()) == ("4", [("champion", "former_champion", "w4")])


def test_a_rollback_records_what_a_person_did(scene: Scene) -> None:
    scene.move(1)
    scene.mirror()
    roll_back(scene.ledger, scene.model, by="ada", reason="complaints", to="1.1.0")
    scene.mirror()
    assert (scene.alias(), scene.open(), differences(scene.ledger, scene.store, scene.model)) == ("1", [], [])


def test_an_order_sets_a_former_champion_back_at_once(scene: Scene) -> None:
    scene.move(1)
    scene.mirror()
    (listed,) = differences(scene.ledger, scene.store, scene.model, now=NOON)
    assert "a former champion" in str(listed)
    scene.mirror(is_ordered=True)
    assert (scene.alias(), scene.open()) == ("2", [])


@pytest.mark.parametrize(("alias", "number"), [("champion", 3), ("champion", 9), ("canary", 1), ("canary", 3)])
def test_what_was_never_decided_is_set_back_at_once_and_announced_once(scene: Scene, alias: str, number: int) -> None:
    scene.move(number, alias)
    scene.mirror()
    assert scene.alias(alias) == {"champion": "2", "canary": None}[alias]
    assert scene.kinds() == [(alias, "not_decided", f"w{number}")]
    scene.findings.note_announced([finding.number for finding in scene.findings.to_announce()], now=NOON)
    assert scene.findings.to_announce() == []


def test_a_version_that_only_says_that_it_is_the_champion_is_not(scene: Scene) -> None:
    tags = {WEIGHTS_TAG: "w2", "lifecycle": "champion", "nightshift.decision": "accepted"}
    made = scene.client.create_model_version(scene.model, "file:///elsewhere", tags=tags)
    scene.move(int(made.version))
    scene.mirror()
    assert scene.alias() == "2"
    assert scene.kinds() == [("champion", "not_decided", "")]


def test_a_copied_tag_makes_no_version_another_one_where_the_true_one_is_gone(scene: Scene) -> None:
    for name, value in scene.client.get_model_version(scene.model, "2").tags.items():
        scene.client.set_model_version_tag(scene.model, "3", name, value)
    scene.client.delete_model_version(scene.model, "2")
    scene.mirror()
    # A logged model without files cannot be registered again.
    assert scene.alias() is None
    assert scene.kinds() == [("champion", "missing", "")]


def test_an_alias_that_mlflow_left_on_a_deleted_version_is_set_again_without_an_alert(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = mlflow.MlflowClient.get_registered_model

    def dangling(client: mlflow.MlflowClient, name: str) -> object:
        found = real(client, name)
        found.aliases["champion"] = "99"
        return found

    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, "get_registered_model", dangling)
        (listed,) = differences(scene.ledger, scene.store, scene.model)
    assert str(listed) == f"{scene.model}: alias champion is version 99 (deleted), the ledger says version 1.2.0 (weights w2)"
    assert listed.finding is None


def test_a_late_mlflow_is_no_moved_alias(scene: Scene) -> None:
    # Promoted while MLflow was away: its alias names the champion before.
    decide_on(scene.ledger, 4, model=scene.model)
    scene.mirror()
    assert (scene.alias(), scene.kinds()) == ("4", [])


def test_a_users_own_aliases_are_left_alone(scene: Scene) -> None:
    scene.move(3, "shadow")
    scene.move(3)
    scene.mirror()
    assert (scene.alias("shadow"), scene.alias()) == ("3", "2")


def test_a_number_that_stands_for_two_versions_is_refused_and_other_names_are_taken(scene: Scene) -> None:
    # The registered model was deleted: MLflow numbers from 1 again, and weights w8 are number 1.
    scene.client.delete_registered_model(scene.model)
    registered(scene.store, scene.model, [8])
    decide_on(scene.ledger, 8, "rejected", model=scene.model)
    scene.mirror()
    ledger, history = scene.ledger, scene.ledger.outline(scene.model)
    assert scene.ledger.registrations(scene.model)["w8"].number == "1"
    with pytest.raises(DeniedError, match=r"'1' stands for several versions of \w+: 1\.1\.0 \(weights w1\), 1\.8\.0 \(weights w8\)"):
        find_version(ledger, history, "1", scene.model)
    for name, weights in (("1.1.0", "w1"), ("w8", "w8"), ("8", "w8"), ("3", "w3")):
        assert find_version(ledger, history, name, scene.model).weights_digest == weights
    with pytest.raises(DeniedError, match="no version 'w' in the ledger"):
        find_version(ledger, history, "w", scene.model)
