"""One process repairs all models: a model that fails is named, and the others are done."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mlflow
import pytest

from tests.unit.training.registry.registered import registered
from tests.unit.training.registry.scenes import decide_on
from training.engine.tracking.mlflow_journal import ID_TAG
from training.errors import NightshiftError, UnavailableError
from training.registry.ledger.alias_findings import RecordedFindings
from training.registry.ledger.ledger import Ledger
from training.registry.mlflow import repair
from training.registry.mlflow.repair import repair_models
from training.registry.mlflow.retention import OpenWork
from training.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(f"sqlite:///{tmp_path}/ledger.db")


@pytest.fixture
def models(registry: mlflow.MlflowClient, store: Store, ledger: Ledger, tmp_path: Path) -> list[str]:
    """Three models whose first version is champion in the ledger; MLflow has the versions and no alias."""
    names = [f"{letter}-{tmp_path.name}" for letter in "abc"]
    for name in names:
        registered(store, name, [1])
        decide_on(ledger, 1, model=name)
    return names


def aliases(registry: mlflow.MlflowClient, models: list[str]) -> list[dict[str, str]]:
    found = [registry.get_registered_model(name).aliases for name in models]
    return [{alias: str(version) for alias, version in by_alias.items()} for by_alias in found]


def test_all_models_are_repaired_in_one_call(store: Store, ledger: Ledger, models: list[str], registry: mlflow.MlflowClient) -> None:
    found = repair_models(store, ledger, forget_before=datetime(2020, 1, 1, tzinfo=UTC))
    found.check()
    assert found.models == models
    assert aliases(registry, models) == [{"champion": "1"}] * 3
    assert ledger.unmirrored() == {}


def test_a_version_that_nothing_has_any_more_leaves_its_model_without_a_champion_and_the_others_with_theirs(
    store: Store, ledger: Ledger, models: list[str], registry: mlflow.MlflowClient
) -> None:
    decide_on(ledger, 5, model=models[1])
    repair_models(store, ledger, forget_before=None).check()
    assert aliases(registry, models) == [{"champion": "1"}, {}, {"champion": "1"}]
    assert [(found.model, found.kind) for found in RecordedFindings(ledger.database_url).to_announce()] == [(models[1], "missing")]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (lambda: KeyError("tags"), "stage.unexpected"),
        (lambda: UnavailableError("mlflow.unavailable", "this model answers 500"), "mlflow.unavailable"),
    ],
    ids=["unexpected", "of MLflow"],
)
def test_model_that_fails_otherwise_fails_alone_and_is_retried(
    store: Store,
    ledger: Ledger,
    models: list[str],
    registry: mlflow.MlflowClient,
    monkeypatch: pytest.MonkeyPatch,
    error: Callable[[], Exception],
    expected: str,
) -> None:
    real = repair.mirror

    def mirror(ledger: Ledger, store: Store, model: str, **options: Any) -> Any:
        if model == models[0]:
            raise error()
        return real(ledger, store, model, **options)

    monkeypatch.setattr(repair, "mirror", mirror)
    found = repair_models(store, ledger, forget_before=None)
    assert aliases(registry, models) == [{}, {"champion": "1"}, {"champion": "1"}]
    with pytest.raises(UnavailableError, match=rf"1 of 3 models failed: {models[0]}: \[{expected}\]"):
        found.check()


def test_mlflow_that_is_away_is_asked_once_and_not_for_each_model(
    store: Store, ledger: Ledger, models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    found = repair_models(store, ledger, forget_before=None)
    assert (list(found.failures), found.skipped) == (models[:1], models[1:])
    with pytest.raises(UnavailableError, match=f"MLflow does not answer, so 2 more were not checked: {models[1]}, {models[2]}"):
        found.check()


def test_ledger_that_is_away_ends_the_repair(store: Store, ledger: Ledger, models: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def mirror(*_: object, **_options: object) -> None:
        raise UnavailableError("database.unavailable", "away")

    monkeypatch.setattr(repair, "mirror", mirror)
    with pytest.raises(UnavailableError, match="away"):
        repair_models(store, ledger, forget_before=None)


def test_damaged_record_of_open_work_fails_the_model_whose_runs_would_be_deleted(
    store: Store, ledger: Ledger, models: list[str], registry: mlflow.MlflowClient
) -> None:
    experiment = registry.create_experiment(f"p-{models[0]}")
    run_id = registry.create_run(experiment, start_time=0, tags={ID_TAG: "t"}).info.run_id
    registry.set_terminated(run_id)
    decide_on(ledger, 1, "rejected", model=models[0], evidence={"pipeline": f"p-{models[0]}", "evaluation_digest": "e"})
    store.bucket.put(f"stages/p/train/{'f' * 64}/attempts/a/_REQUEST.json", b"{")
    found = repair_models(store, ledger, forget_before=datetime(2100, 1, 1, tzinfo=UTC))
    assert {model: err.code for model, err in found.failures.items()} == {models[0]: "record.damaged"}
    assert registry.get_run(run_id).info.lifecycle_stage == "active"
    assert isinstance(found.failures[models[0]], NightshiftError)


def test_damaged_record_of_open_work_is_looked_for_once_for_all_models(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.bucket.put(f"stages/p/train/{'f' * 64}/attempts/a/_REQUEST.json", b"{")
    reads: list[str] = []
    monkeypatch.setattr(store, "read_request", lambda uri: reads.append(uri) or Store.read_request(store, uri))
    work = OpenWork(store)
    for run_id in ("1", "2"):
        with pytest.raises(NightshiftError, match=r"_REQUEST\.json"):
            work.uses(run_id)
    assert len(reads) == 1
