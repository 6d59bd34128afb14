"""What one of several processes does to train trees: see tests/unit/training/engine/parallel/ranks.py."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.unit.training.models import family_bench
from training.engine.parallel.gang import Gang
from training.models.boosted_trees import matrices
from training.models.boosted_trees.module import FAMILY

ALL_ROWS = {
    "max_depth": 4,
    "min_child_weight": 1.0,
    "subsample": 1.0,
    "colsample": 1.0,
    "reg_lambda": 1.0,
    "reg_alpha": 0.0,
    "gamma": 0.0,
    "max_bin": 16,
    "objective": None,
    "quantile_alpha": None,
}
SAMPLED = {**ALL_ROWS, "subsample": 0.8, "colsample": 0.7}


def fit(gang: Any, folder: Path, task: str, *, on_disk: bool = False, epochs: int = 12, judge: Any = None, **train: Any) -> dict[str, Any]:
    """Return what a process has trained, and whether something is left of rows on disk."""
    context = family_bench.FamilyBench(folder, task).fit_context(
        "boosted_trees", epochs=epochs, judge=judge, **{"settings": SAMPLED, **train}
    )
    limit = matrices.stage_memory_bytes
    matrices.stage_memory_bytes = lambda: 1 if on_disk else limit()
    try:
        result = FAMILY.fit(replace(context, gang=gang))
    finally:
        matrices.stage_memory_bytes = limit
        context.checkpoints.close()
    return {
        "weights": hashlib.sha256(result.weights).hexdigest(),
        "history": [dict(entry) for entry in result.history],
        "best": (result.best_epoch, result.validation_loss),
        "cache": sorted(path.name for path in context.dataset_path.rglob(f"{matrices.CACHE}*")),
    }


def train(
    gang: Gang, folder: str, cases: list[tuple[str, str, dict[str, Any]]], num_validation_groups: int | None = None
) -> dict[str, Any]:
    """Return what this rank has trained, by the cases' names."""
    # As torchrun says it: all ranks are on this machine.
    os.environ["LOCAL_WORLD_SIZE"] = str(gang.world_size)
    if num_validation_groups is not None:
        family_bench.NUM_GROUPS["validation"] = num_validation_groups
    return {name: fit(gang, Path(folder) / f"{name}-{gang.rank}", task, **options) for name, task, options in cases}


def train_with_a_judge(gang: Gang, folder: str, last_round: int) -> int:
    """Return the rounds of a training whose judge, asked by rank 0 alone, ends it."""
    os.environ["LOCAL_WORLD_SIZE"] = str(gang.world_size)

    def judge(rounds: int, loss: float) -> bool:
        assert gang.is_first
        return rounds == last_round

    return len(fit(gang, Path(folder) / str(gang.rank), "binary", judge=judge)["history"])


def train_larger(gang: Gang, folder: str, num_groups: dict[str, int]) -> dict[str, Any]:
    """Return what this rank has trained on a dataset of so many groups, without sampling."""
    os.environ["LOCAL_WORLD_SIZE"] = str(gang.world_size)
    family_bench.NUM_GROUPS.update(num_groups)
    return fit(gang, Path(folder) / str(gang.rank), "binary", settings=ALL_ROWS)
