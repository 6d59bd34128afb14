"""One version per model and weights, whoever registers at once and wherever one dies."""

from __future__ import annotations

import uuid
from functools import partial
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest

from tests.unit.training.registry.scenes import at_once
from training.registry.ledger.version_weights import Noted, note
from training.registry.mlflow import versions as mlflow_versions
from training.registry.mlflow.versions import WEIGHTS_TAG, register_candidate
from training.store import Store

CALLERS = 6


class DiedError(BaseException):
    """The process is gone."""


@pytest.fixture
def name(registry: mlflow.MlflowClient, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a model that nobody has registered; its artifacts stay where they are."""
    monkeypatch.setattr(mlflow_versions, "save_model", lambda *_rest, **_named: "f" * 64)
    monkeypatch.setattr(mlflow_versions, "get_artifact_repository", lambda _: SimpleNamespace(log_artifacts=lambda _: None))
    return f"m{uuid.uuid4().hex[:8]}"


def register(store: Store, model: str, weights: str = "w1") -> str:
    manifest: Any = SimpleNamespace(meta={"weights_digest": weights}, digest="d")
    return register_candidate(store, model, manifest, inputs={}, run=None, tags={"nightshift.pipeline": "p"}).number


def found(registry: mlflow.MlflowClient, model: str) -> list[tuple[str, str]]:
    kept = registry.search_model_versions(f"name = '{model}'")
    return sorted((str(version.version), version.tags[WEIGHTS_TAG]) for version in kept)


def test_the_same_weights_are_one_version_and_others_another(store: Store, registry: mlflow.MlflowClient, name: str) -> None:
    assert [register(store, name), register(store, name), register(store, name, "w2"), register(store, name)] == ["1", "1", "2", "1"]
    assert found(registry, name) == [("1", "w1"), ("2", "w2")]
    assert registry.get_model_version(name, "2").tags["lifecycle"] == "candidate"


def test_six_who_register_the_same_weights_at_once_get_one_version(store: Store, registry: mlflow.MlflowClient, name: str) -> None:
    results = at_once([partial(register, store, name)] * CALLERS)
    (version,) = set(results)
    assert found(registry, name) == [(version, "w1")]


def test_six_who_register_weights_of_their_own_at_once_get_versions_of_their_own(
    store: Store, registry: mlflow.MlflowClient, name: str
) -> None:
    results = at_once([partial(register, store, name, f"w{number}") for number in range(CALLERS)])
    assert found(registry, name) == sorted((version, f"w{number}") for number, version in enumerate(results))
    assert len(set(results)) == CALLERS


@pytest.mark.parametrize("call", ["create_registered_model", "create_model_version"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_death_around_a_registration_leaves_one_version_to_the_retry(
    store: Store, registry: mlflow.MlflowClient, name: str, monkeypatch: pytest.MonkeyPatch, call: str, when: str
) -> None:
    real = getattr(mlflow.MlflowClient, call)

    def dying(client: Any, *arguments: Any, **named: Any) -> Any:
        if when == "after":
            real(client, *arguments, **named)
        raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, call, dying)
        with pytest.raises(DiedError):
            register(store, name)
    assert register(store, name) == "1"
    assert found(registry, name) == [("1", "w1")]


def made_beside(registry: mlflow.MlflowClient, store: Store, model: str, *, is_ours: bool) -> str:
    """Make a further version with the tag of weights w1; return its number."""
    source = "file:///elsewhere"
    if is_ours:
        logged = mlflow.initialize_logged_model(name=model)
        note(store, logged.model_id, Noted(weights_digest="w1", artifact_digest="f" * 64))
        source = f"models:/{logged.model_id}"
    return str(registry.create_model_version(model, source, tags={WEIGHTS_TAG: "w1"}).version)


def test_a_younger_version_of_an_attempt_that_died_goes_with_the_next_call(store: Store, registry: mlflow.MlflowClient, name: str) -> None:
    assert register(store, name) == "1"
    made_beside(registry, store, name, is_ours=True)
    assert register(store, name) == "1"
    assert found(registry, name) == [("1", "w1")]


def test_a_version_that_has_our_tag_alone_is_neither_ours_nor_deleted(store: Store, registry: mlflow.MlflowClient, name: str) -> None:
    registry.create_registered_model(name)
    assert made_beside(registry, store, name, is_ours=False) == "1"
    assert register(store, name) == "2"
    assert made_beside(registry, store, name, is_ours=False) == "3"
    assert register(store, name) == "2"
    assert found(registry, name) == [("1", "w1"), ("2", "w1"), ("3", "w1")]


def test_a_younger_version_stays_where_an_alias_names_it(store: Store, registry: mlflow.MlflowClient, name: str) -> None:
    assert register(store, name) == "1"
    registry.set_registered_model_alias(name, "shadow", made_beside(registry, store, name, is_ours=True))
    assert register(store, name) == "1"
    assert found(registry, name) == [("1", "w1"), ("2", "w1")]
