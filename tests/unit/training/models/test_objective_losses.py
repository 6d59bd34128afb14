"""The loss by which trees stop early is that of their objective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import gammaln

pytest.importorskip("lightgbm", exc_type=(ImportError, OSError))  # type: ignore[arg-type]

from tests.unit.training.models import family_bench
from tests.unit.training.models.family_bench import FamilyBench
from training.data.dataset.mapped_shards import MappedShards
from training.data.features.transforms import LayoutEntry, Matrix
from training.models.base import load_family
from training.spec.descriptors.families import FAMILIES

ALPHA = 0.2


def loss_of(model: str, objective: str, label: np.ndarray, scores: np.ndarray) -> float:
    if objective == "quantile":
        return float(np.maximum(ALPHA * (label - scores), (ALPHA - 1) * (label - scores)).mean())
    if objective == "poisson":
        # LightGBM leaves out what does not depend on the model.
        constant = gammaln(label + 1) if model == "boosted_trees" else 0.0
        return float((scores - label * np.log(scores) + constant).mean())
    return float(np.sqrt(((np.log1p(label) - np.log1p(scores)) ** 2).mean()))


@pytest.mark.parametrize("model", ["boosted_trees", "lightgbm"])
@pytest.mark.parametrize("objective", ["quantile", "poisson", "log"])
def test_validation_loss_is_that_of_the_objective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, objective: str) -> None:
    monkeypatch.setattr(family_bench, "labels", lambda _task, signal: np.round(np.exp(signal / 2) * 2).astype(np.float32))
    bench = FamilyBench(tmp_path, "regression")
    facts = FAMILIES.get(model)
    assert facts is not None
    named: dict[str, Any] = {"objective": objective} | ({"quantile_alpha": ALPHA} if objective == "quantile" else {})
    settings = facts.settings(**named).model_dump()
    context = bench.fit_context(model, epochs=15, learning_rate=0.2, early_stopping=None, settings=settings)
    try:
        result = load_family(model).fit(context)
    finally:
        context.checkpoints.close()
    (tmp_path / result.weights_name).write_bytes(result.weights)
    rows = MappedShards(bench.dataset_path, bench.meta, "validation")  # type: ignore[arg-type]
    layout = tuple(LayoutEntry(**entry) for entry in bench.meta["layout"]["features"])
    matrix = Matrix(cells=np.concatenate(rows.cells)[:, : len(layout)], layout=layout)
    scores = load_family(model).load(tmp_path, result.architecture)(matrix)
    assert result.validation_loss == pytest.approx(loss_of(model, objective, rows.columns()[1].astype(float), scores), rel=1e-4)
