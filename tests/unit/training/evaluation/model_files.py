"""The files of a small model of trees, as they are registered, and rows to ask it about."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import xgboost

from training.contracts import canonical_json
from training.data.features.encoders import EncoderSettings
from training.data.features.transforms import FeaturePlan, FittedTransforms

FRAME = pd.DataFrame({"value": np.arange(60.0), "search": np.arange(60) // 4})


def model_folder(folder: Path) -> Path:
    folder.mkdir()
    plans = [FeaturePlan(name="value", settings=EncoderSettings(kind="number"))]
    (folder / "transforms.json").write_bytes(FittedTransforms.fit(FRAME, derived=[], features=plans).to_json())
    matrix = xgboost.DMatrix(FRAME[["value"]].to_numpy(), label=FRAME["value"] > 30)
    xgboost.train({"objective": "binary:logistic"}, matrix, num_boost_round=2).save_model(folder / "weights.ubj")
    facts = {"format_version": 1, "family": "boosted_trees", "architecture": {}}
    (folder / "model.json").write_bytes(canonical_json(facts))
    return folder
