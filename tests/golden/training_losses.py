"""The losses of the first 20 steps of each model family on a CPU, and how the committed ones are made.

    python -m tests.golden.training_losses      writes tests/golden/training_losses.json

The values hold for the versions of torch and XGBoost that the file names. They do not depend on the CPU: those of
`ATEN_CPU_CAPABILITY=default`, `avx2` and `avx512` agree to 2e-7.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Final

import torch
import xgboost

from tests.unit.training.engine.loop_bench import reported_by
from tests.unit.training.models.family_bench import FamilyBench
from training.models.base import load_family
from training.runtime.provenance import CHECKOUT

FILE: Final = CHECKOUT / "tests/golden/training_losses.json"
NUM_STEPS: Final = 20
DIGITS: Final = 6
RANKER: Final = {"embedding_dim": 4, "hidden": (8,), "dropout": 0.0, "loss": "listwise"}
CASES: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "ranker, listwise": ("ranker", "ranking", {"epochs": 2, "batch_size": 24, "settings": RANKER}),
    "ranker, pairwise": ("ranker", "ranking", {"epochs": 2, "batch_size": 24, "settings": {**RANKER, "loss": "pairwise"}}),
    "ranker, dropout": ("ranker", "ranking", {"epochs": 2, "batch_size": 24, "settings": {**RANKER, "dropout": 0.2}}),
    "boosted_trees, binary": ("boosted_trees", "binary", {"epochs": NUM_STEPS}),
    "boosted_trees, multiclass": ("boosted_trees", "multiclass", {"epochs": NUM_STEPS}),
    "boosted_trees, ranking": ("boosted_trees", "ranking", {"epochs": NUM_STEPS}),
    "boosted_trees, regression": ("boosted_trees", "regression", {"epochs": NUM_STEPS}),
}
"""Name to family, task and keys of the spec's `train`."""


def losses_of(case: str, folder: Path) -> dict[str, list[float]]:
    """Return a case's losses: of each step where the family reports them, and of each epoch (of trees: each round).

    Args:
        folder: empty, for the dataset and the store.
    """
    model, task, train = CASES[case]
    context = FamilyBench(folder, task).fit_context(model, **train)
    try:
        result = load_family(model).fit(context)
    finally:
        context.checkpoints.close()
    assert result.num_steps == NUM_STEPS
    reported = [entry["loss"] for entry in reported_by(context.progress) if "loss" in entry]
    return {
        **({"steps": reported} if reported else {}),
        "train": [entry["train_loss"] for entry in result.history],
        "validation": [entry["validation_loss"] for entry in result.history],
    }


def versions() -> dict[str, str]:
    """Return the versions that the values belong to, without the build's suffix."""
    return {library.__name__: library.__version__.partition("+")[0] for library in (torch, xgboost)}


def main() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    found = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            losses = losses_of(case, Path(folder))
        found[case] = {name: [float(f"{value:.{DIGITS}g}") for value in values] for name, values in losses.items()}
    FILE.write_text(json.dumps({"versions": versions(), "losses": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
