"""What a trigger may say of a model from outside, and the spec of the run that judges it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from training.errors import SpecError
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, load_spec, parse_spec
from training.spec.covered_keys import import_part
from training.spec.registration import Registration, registered_spec

FLIGHTS = (CHECKOUT / "dags" / "pipelines" / "flight_delay.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def ranking() -> PipelineSpec:
    return load_spec(CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml")


def registration(format_name: str, **more: Any) -> Registration:
    return Registration.model_validate({"artifact_uri": "s3://models/17/model", "format": format_name, **more})


@pytest.mark.parametrize("name", ["model.PKL", "model.Joblib", "model.pt%68"])
def test_a_pickle_is_known_by_its_name_in_any_form(name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Registration.model_validate({"artifact_uri": f"s3://models/{name}", "format": "onnx"})
    assert [error["type"] for error in caught.value.errors()] == ["artifact.pickle"]


def test_settings_are_those_of_the_pipelines_own_family_and_none_of_another(ranking: PipelineSpec) -> None:
    assert ranking.train.settings["hidden"] != [3]
    train = ranking.train.model_copy(update={"settings": {**ranking.train.settings, "hidden": [3]}})
    spec = ranking.model_copy(update={"train": train})
    own, other = (registered_spec(spec, registration(name)).train for name in ("safetensors", "onnx"))
    assert (own.model, own.settings) == (train.model, train.settings)
    assert import_part(spec) != import_part(ranking)
    assert (other.model, other.settings) == ("onnx", {})
    assert own.seed == other.seed == ranking.train.seed


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (registration("safetensors"), "artifact.family"),
        (registration("xgboost_json", trained_until="2026-02-30"), "as_of.invalid"),
        (registration("xgboost_json", name="other"), "artifact.name"),
    ],
)
def test_a_model_that_the_pipeline_cannot_judge_is_refused(given: Registration, code: str) -> None:
    with pytest.raises(SpecError) as caught:
        registered_spec(parse_spec(FLIGHTS.encode()), given)
    assert caught.value.code == code


def test_a_task_that_the_format_cannot_score_is_refused(ranking: PipelineSpec) -> None:
    spec = ranking.model_copy(update={"evaluate": ranking.evaluate.model_copy(update={"task": "language"})})
    with pytest.raises(SpecError) as caught:
        registered_spec(spec, registration("onnx"))
    assert caught.value.code == "model.task"


def test_what_is_late_and_the_clock_of_trained_until_are_part_of_an_imports_work_id() -> None:
    def part(old: str = "", new: str = "") -> object:
        assert old in FLIGHTS
        return import_part(registered_spec(parse_spec(FLIGHTS.replace(old, new).encode()), registration("xgboost_json")))

    # The dataset has the same bytes, and the model's own transforms may read the column.
    assert part("flight: {type: int64}", "flight: {type: int64, known: after}") != part()
    assert part("owner: ", "owner: other-") == part()
