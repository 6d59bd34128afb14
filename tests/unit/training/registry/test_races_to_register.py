"""One version per model and weights, whoever registers at once and wherever one dies."""

from __future__ import annotations

import uuid
from functools import partial
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest

from tests.unit.training.registry.scenes import at_once
from training.registry import mlflow_versions
from training.registry.mlflow_versions import WEIGHTS_TAG, register_candidate

CALLERS = 6


class DiedError(BaseException):
    """The process is gone."""


@pytest.fixture
def name(registry: mlflow.MlflowClient, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a model that nobody has registered; its artifacts stay where they are."""

    def log_nothing(store: Any, client: Any, model: str, *rest: Any, **further: Any) -> str:
        logged = mlflow.initialize_logged_model(name=model)
        mlflow.finalize_logged_model(logged.model_id, "READY")
        return str(logged.model_id)

    monkeypatch.setattr(mlflow_versions, "_log_model", log_nothing)
    monkeypatch.setattr(mlflow_versions, "_artifact_digest", lambda *_: "")
    return f"m{uuid.uuid4().hex[:8]}"


def register(model: str, weights: str = "w1") -> str:
    store: Any = None
    manifest: Any = SimpleNamespace(meta={"weights_digest": weights}, digest="d")
    return register_candidate(store, model, manifest, inputs={}, run_id=None, tags={"nightshift.pipeline": "p"}).version


def found(registry: mlflow.MlflowClient, model: str) -> list[tuple[str, str]]:
    kept = registry.search_model_versions(f"name = '{model}'")
    return sorted((str(version.version), version.tags[WEIGHTS_TAG]) for version in kept)


def test_the_same_weights_are_one_version_and_others_another(registry: mlflow.MlflowClient, name: str) -> None:
    assert [register(name), register(name), register(name, "w2"), register(name)] == ["1", "1", "2", "1"]
    assert found(registry, name) == [("1", "w1"), ("2", "w2")]
    assert registry.get_model_version(name, "2").tags["lifecycle"] == "candidate"


def test_six_who_register_the_same_weights_at_once_get_one_version(registry: mlflow.MlflowClient, name: str) -> None:
    results = at_once([partial(register, name)] * CALLERS)
    (version,) = set(results)
    assert found(registry, name) == [(version, "w1")]


def test_six_who_register_weights_of_their_own_at_once_get_versions_of_their_own(registry: mlflow.MlflowClient, name: str) -> None:
    results = at_once([partial(register, name, f"w{number}") for number in range(CALLERS)])
    assert found(registry, name) == sorted((version, f"w{number}") for number, version in enumerate(results))
    assert len(set(results)) == CALLERS


@pytest.mark.parametrize("call", ["create_registered_model", "create_model_version"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_death_around_a_registration_leaves_one_version_to_the_retry(
    registry: mlflow.MlflowClient, name: str, monkeypatch: pytest.MonkeyPatch, call: str, when: str
) -> None:
    real = getattr(mlflow.MlflowClient, call)

    def dying(client: Any, *arguments: Any, **named: Any) -> Any:
        if when == "after":
            real(client, *arguments, **named)
        raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, call, dying)
        with pytest.raises(DiedError):
            register(name)
    assert register(name) == "1"
    assert found(registry, name) == [("1", "w1")]


def test_a_younger_version_of_an_attempt_that_died_before_it_took_it_away_goes_with_the_next_call(
    registry: mlflow.MlflowClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = mlflow.MlflowClient.create_model_version

    def overtaken(client: Any, *arguments: Any, **named: Any) -> Any:
        real(client, *arguments, **named)
        real(client, *arguments, **named)
        raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, "create_model_version", overtaken)
        with pytest.raises(DiedError):
            register(name)
    assert len(found(registry, name)) == 2
    assert register(name) == "1"
    assert found(registry, name) == [("1", "w1")]
