"""What a training could not learn is found by `prepare`, before anything is trained, and before a GPU is taken."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.unit.training.stages.evaluate_bench import AS_OF, EvaluateBench, orders
from training.contracts import ExitCode
from training.stages.check_data import check_data

pytestmark = pytest.mark.slow

TREES = "settings: {max_depth: 3}"
LINEAR = "train: {model: boosted_trees, seed: 3, epochs: 20, learning_rate: 0.3, settings: {max_depth: 3}}"
FRAME = orders()
IS_TRAINING = FRAME["ordered_at"] < "2026-01-18"
CASES = {
    "negative counts": ("regression", {TREES: "settings: {objective: poisson}"}, FRAME, "label.negative", "poisson needs labels >= 0"),
    "negative under a logarithm": ("regression", {TREES: "settings: {objective: log}"}, FRAME, "label.negative", "log needs labels >= 0"),
    "no count at all": (
        "regression",
        {TREES: "settings: {objective: poisson}"},
        FRAME.assign(days=FRAME["days"].abs().where(~IS_TRAINING, 0)),
        "label.single_class",
        "rows have the label 0: poisson needs one above 0",
    ),
    "logarithms that 32 bits cannot tell apart": (
        "regression",
        {TREES: "settings: {objective: log}"},
        FRAME.assign(days=FRAME["days"] + 4e9),
        "label.rounding",
        "log learns logarithms, and 32 bits round those of the labels by",
    ),
    "a missing number": (
        "binary",
        {LINEAR: "train: {model: linear, epochs: 3}"},
        FRAME.assign(noise=FRAME["noise"].where(FRAME.index % 9 > 0)),
        "feature.missing",
        "feature 'noise'",
    ),
    "one of three classes": (
        "multiclass",
        {},
        FRAME.assign(size=FRAME["size"].where(~IS_TRAINING, 1)),
        "label.missing_in_split",
        "split 'train': all",
    ),
    "one of three classes with names": (
        "multiclass",
        {"size: {type: int64, known: after}": "size: {type: string, known: after}"},
        FRAME.assign(size=("s" + FRAME["size"].astype(str)).where(~IS_TRAINING, "s1")),
        "label.missing_in_split",
        "rows have the label 's1'",
    ),
    "weight of a class that no training row has": (
        "multiclass",
        {"train: {": "train: {class_weight: {'7': 2}, "},
        FRAME,
        "class_weight.unknown",
        "no training row has the class '7'",
    ),
}


class Bench(EvaluateBench):
    """Without the dataset of the plain spec."""

    def prepare(self, replaced: dict[str, str] | None = None, *, work: str = "only") -> str:  # type: ignore[override]
        return ""

    def ingest(self, replaced: dict[str, str] | None = None, *, work: str = "only") -> str:  # type: ignore[override]
        return ""


@pytest.mark.parametrize("case", list(CASES))
def test_labels_that_a_training_could_not_learn_are_found_by_check_and_by_prepare(case: str, tmp_path: Path) -> None:
    task, changes, frame, code, words = CASES[case]
    bench = Bench(tmp_path, task, frame=pd.DataFrame(frame))
    bench.spec = bench.spec_of(changes)
    bench.snapshot_uri = EvaluateBench.ingest(bench, changes)

    ended, work_folder = bench.attempt("prepare", {"snapshot": bench.snapshot_uri}, {}, "refused")

    assert ended is ExitCode.BAD_DATA
    error = work_folder.error("a1")
    assert error is not None
    assert error["code"] == code
    assert words in error["message"]
    lines: list[str] = []
    assert check_data(bench.spec, AS_OF, size_bytes=2**28, say=lines.append) != 0
    assert any(f"[{code}]" in line for line in lines)
