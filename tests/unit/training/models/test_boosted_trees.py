"""XGBoost's parameters."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xgboost

from training.engine.devices import DevicePlace
from training.engine.parallel.single_process import Alone
from training.errors import SpecError
from training.models.boosted_trees.family import BoostedTreesSettings
from training.models.boosted_trees.module import _parameters
from training.runtime.provenance import CHECKOUT
from training.spec import parse_spec

TEXT = (CHECKOUT / "dags/pipelines/flight_delay.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(("placement", "threads"), [("", 2), ("  placement: {cpus: 5}\n", 5), ("  placement: {cpus: 0.5}\n", 1)])
def test_threads_are_those_of_the_placement_and_two_without_one(placement: str, threads: int) -> None:
    context: Any = SimpleNamespace(
        gang=Alone(), spec=parse_spec(TEXT.replace("  early_stopping: 20\n", f"  early_stopping: 20\n{placement}").encode())
    )
    assert _parameters(context)["nthread"] == threads


def test_every_setting_is_a_parameter_that_xgboost_knows() -> None:
    settings = {"max_depth": 3, "min_child_weight": 2.0, "subsample": 0.5, "colsample": 0.25, "reg_lambda": 3.0}
    settings |= {"reg_alpha": 4.0, "gamma": 5.0, "max_bin": 64}
    assert settings.keys() | {"objective", "quantile_alpha"} == BoostedTreesSettings.model_fields.keys()
    spec = parse_spec(TEXT.encode())
    train = spec.train.model_copy(update={"settings": BoostedTreesSettings(**settings).model_dump(exclude_none=True), "learning_rate": 0.5})
    context: Any = SimpleNamespace(gang=Alone(), spec=spec.model_copy(update={"train": train}))
    rows = xgboost.DMatrix(np.array([[0.0], [1.0]]), label=[0, 1])
    booster = xgboost.Booster(_parameters(context), [rows])
    booster.update(rows, 0)
    known = json.loads(booster.save_config())["learner"]["gradient_booster"]["tree_train_param"]
    names = {"reg_lambda": "lambda", "reg_alpha": "alpha", "colsample": "colsample_bytree"}
    found = {name: float(known[names.get(name, name)]) for name in settings}
    assert (found, float(known["learning_rate"])) == (settings, 0.5)


def test_gpu_of_the_process_is_xgboosts_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xgboost, "build_info", lambda: {"USE_CUDA": True})
    gang = SimpleNamespace(device=DevicePlace(type="cuda", index=3))
    context: Any = SimpleNamespace(gang=gang, spec=parse_spec(TEXT.encode()))
    assert _parameters(context)["device"] == "cuda:3"
    context.gang = Alone()
    assert "device" not in _parameters(context)


def test_training_on_a_gpu_by_an_xgboost_without_cuda_is_refused() -> None:
    context: Any = SimpleNamespace(gang=SimpleNamespace(device=DevicePlace(type="cuda")), spec=parse_spec(TEXT.encode()))
    with pytest.raises(SpecError, match="built for CPUs only") as caught:
        _parameters(context)
    (problem,) = caught.value.problems
    assert problem.code == "device.missing"
    assert "xgboost in place of xgboost-cpu" in problem.hint
