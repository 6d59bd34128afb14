"""What MLflow's pages show of a model's columns; and that MLflow refuses no frame that the model scores."""

from __future__ import annotations

from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
import xgboost

from tests.unit.training.registry.registered import Registry
from training.contracts import canonical_json
from training.data.features.encoders import EncoderSettings
from training.data.features.transforms import FeaturePlan, FittedTransforms
from training.models.predictor import load_predictor
from training.registry.mlflow.schema import ModelSchema, is_schema_alone, output_columns, schema_part, schema_text

NUM_ROWS = 60
ROWS = np.arange(NUM_ROWS)
FRAME = pd.DataFrame(
    {
        "value": ROWS.astype("float64"),
        "num_items": ROWS % 7,
        "at": pd.date_range("2026-01-01", periods=NUM_ROWS, freq="7h", tz="UTC"),
        "kind": ["a", "b", "c"] * (NUM_ROWS // 3),
    }
)


def test_a_schema_names_each_column_with_its_type_and_what_is_returned() -> None:
    text = schema_text(ModelSchema({"price|eur": "double", "item_id": "int32, nullable"}, ("score of clicked",)))
    assert text.splitlines() == [
        "**Schema**",
        "",
        "| | column | type |",
        "| --- | --- | --- |",
        "| input | price\\|eur | double |",
        "| input | item_id | int32, nullable |",
        "| output | score of clicked | double |",
    ]
    assert is_schema_alone(text)
    assert schema_part(f"promoted\n\nDecided by night.\n\n{text}") == text
    assert schema_text(ModelSchema({}, ())) == schema_part("Kept for the audit.") == ""


def test_a_wide_schema_is_cut_at_a_whole_row_that_says_how_many_are_left() -> None:
    text = schema_text(ModelSchema({f"column_{number}": "int64" for number in range(500)}, ("prediction of delay",)))
    assert len(text) <= 2500
    *rows, last = text.splitlines()
    assert last == f"| | … and {501 - (len(rows) - 4)} more | |"


@pytest.mark.parametrize(
    ("task", "classes", "expected"),
    [
        ("binary", (), ("probability of y",)),
        ("binary", ("no", "yes"), ("probability of no", "probability of yes")),
        ("multiclass", (), ("probability of each class of y",)),
        ("ranking", (), ("score of y",)),
        ("regression", (), ("prediction of y",)),
    ],
)
def test_the_answer_is_named_by_the_task(task: str, classes: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert output_columns(task, "y", classes) == expected


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model's files, and the same as MLflow's artifacts hold it."""
    folder = tmp_path_factory.mktemp("model")
    kinds = {"value": "number", "num_items": "number", "at": "datetime", "kind": "category"}
    plans = [FeaturePlan(name=name, settings=EncoderSettings(kind=kind)) for name, kind in kinds.items()]
    transforms = FittedTransforms.fit(FRAME, derived=[], features=plans)
    rows = xgboost.DMatrix(transforms.apply(FRAME, serving=True).as_floats(), label=FRAME["value"] > 30)
    booster = xgboost.train({"objective": "binary:logistic"}, rows, num_boost_round=2)
    booster.save_model(folder / "weights.ubj")
    (folder / "transforms.json").write_bytes(transforms.to_json())
    (folder / "model.json").write_bytes(canonical_json({"format_version": 1, "family": "boosted_trees", "architecture": {}}))
    with pytest.MonkeyPatch.context() as patch:
        registry = Registry(tmp_path_factory.mktemp("registry") / "made", patch)
        _, fetched = registry.register({path.name: path.read_bytes() for path in folder.iterdir()})
    return folder, fetched


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"value": ROWS},
        {"value": ROWS.astype("float32")},
        {"num_items": np.where(ROWS % 5 == 0, np.nan, ROWS)},
        {"num_items": pd.array([None, *range(1, NUM_ROWS)], dtype="Int64")},
        {"num_items": ROWS.astype("int32")},
        {"at": FRAME["at"].dt.tz_convert("America/New_York")},
        {"kind": [None, "a"] * (NUM_ROWS // 2)},
        {"unknown": 1},
    ],
    ids=[
        *("as declared", "whole numbers for a double", "float32 for a double", "whole numbers with missing values"),
        *("nullable Int64", "int32 for int64", "another zone", "missing texts", "another column"),
    ],
)
def test_mlflow_serves_each_frame_that_the_model_scores(served: tuple[Path, Path], change: dict[str, object]) -> None:
    """A signature of MLflow's refuses most of these."""
    local, registered = served
    frame = FRAME.assign(**change)
    found = mlflow.pyfunc.load_model(str(registered)).predict(frame)
    assert np.array_equal(found, load_predictor(local).predict(frame))
    assert np.std(found) > 0
