"""A training of trees that needs more memory than its limit says so before it begins, and `check --data` before any stage does."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.unit.training.stages.evaluate_bench import AS_OF, SPEC, EvaluateBench, spec_for
from training.models.memory_check import planned_limit_bytes, shortage
from training.runtime.stage_memory import STAGE_MEMORY, stage_memory_bytes
from training.stages.check_data import check_data

GIB = 2**30
TREES = "{model: boosted_trees, seed: 3, epochs: 20, learning_rate: 0.3, settings: {max_depth: 3}}"
LINEAR = {TREES: "{model: linear, epochs: 2}"}


def test_trees_need_48_bytes_a_row_and_linear_models_none_that_is_known() -> None:
    spec = spec_for(SPEC, "binary", "file:///x")
    assert shortage(spec, 19_000_000, GIB) is None
    words = shortage(spec, 64_000_000, GIB)
    assert words is not None
    assert "boosted_trees needs about 3,042 MiB for 64,000,000 training and validation rows" in words
    assert "plans with 1,024 MiB: take part of the rows (data.source.sample)" in words
    assert "train.model: linear" in words
    assert shortage(spec_for(SPEC, "binary", "file:///x", LINEAR), 64_000_000, GIB) is None


def test_limit_is_the_setting_or_half_of_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_for(SPEC, "binary", "file:///x", {"train: {": "train: {placement: {memory: 4GiB}, "})
    monkeypatch.delenv(STAGE_MEMORY.name, raising=False)
    assert planned_limit_bytes(spec) == 2 * GIB
    assert planned_limit_bytes(spec_for(SPEC, "binary", "file:///x")) == stage_memory_bytes()
    monkeypatch.setenv(STAGE_MEMORY.name, "3GiB")
    assert planned_limit_bytes(spec) == 3 * GIB


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["100MiB", "1GiB"])
def test_training_and_check_warn_where_the_limit_is_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, limit: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr("training.engine.tracking.tracker.CLOSE_SECONDS", 0.5)
    monkeypatch.setenv(STAGE_MEMORY.name, limit)
    bench = EvaluateBench(tmp_path, "binary")
    caplog.set_level(logging.WARNING)

    bench.train({"epochs: 20": "epochs: 1"})

    lines: list[str] = []
    assert check_data(bench.spec, AS_OF, size_bytes=2**28, say=lines.append) == 0
    warned = [record.getMessage() for record in caplog.records if "boosted_trees needs about" in record.getMessage()]
    said = [line for line in lines if line.startswith("  WARN  train: boosted_trees needs about")]
    assert len(warned) == len(said) == (limit == "100MiB")
    assert [line.removeprefix("  WARN  train: ") for line in said] == warned
