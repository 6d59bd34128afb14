"""What Hyperband saves, and what it costs, over twenty seeded studies of a real small training.

python benchmarks/tuning.py [STUDIES [FIRST_SEED]]

The training is the family `boosted_trees` itself, at most 81 rounds, over six days of the simulated shop's clicks (four to train on, one
to judge on), by NDCG@10 over the validation rows. Sampler, pruner, trials and judge are those of the stage `trial`; only the storage is
in memory. Each study is searched twice with one seed, of the sampler and of the training: without a pruner, and with Hyperband.
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from optuna.storages import InMemoryStorage

from tests.training_bench import Bench
from training.data.dataset.manifest import sample_order_digest
from training.engine.parallel.gang import Gang
from training.models.base import FitContext
from training.models.boosted_trees.module import BoostedTrees
from training.runtime.context import StopFlag
from training.spec.rules.tuning import with_settings
from training.spec.sections.train import Train
from training.spec.sections.tuning import Tune
from training.store import Manifest
from training.tuning.records import State, TrialRecord
from training.tuning.study import PruningCallback, Search

ROUNDS, TRIALS, STUDIES = 81, 50, 20
MOST_STEPS, MOST_WORSE = 0.40, 0.01
SPACE = {
    "learning_rate": {"float": [0.01, 0.5], "log": True},
    "settings.max_depth": {"int": [2, 8]},
    "settings.min_child_weight": {"float": [0.1, 20.0], "log": True},
    "settings.subsample": {"float": [0.4, 1.0]},
    "settings.colsample": {"float": [0.3, 1.0]},
    "settings.reg_lambda": {"float": [0.01, 30.0], "log": True},
}


@dataclass(frozen=True)
class StageOutput:
    best: float
    """NDCG@10."""
    steps: int
    """Boosting rounds of all trials."""
    pruned: int


class Shop:
    """The dataset, and as many trainings of it as a study wants."""

    def __init__(self, folder: Path) -> None:
        self._bench = Bench(folder)
        self._dataset: Manifest = self._bench.store.manifests.get(self._bench.dataset_uri, kind="dataset")
        self._folder = self._bench.store.manifests.fetch(self._dataset, folder / "dataset")

    def fit(self, train: Train, judge: PruningCallback) -> Any:
        silent: Any = SimpleNamespace(log=lambda *_, **__: None, progress=lambda *_, **__: None, newest_entry=lambda: 0, due=False)
        context = FitContext(
            spec=self._bench.spec.model_copy(update={"train": train}),
            dataset_path=self._folder,
            dataset_meta=self._dataset.meta,
            dataset_digest=sample_order_digest(self._dataset),
            gang=Gang.join(),
            checkpoints=silent,
            tracker=silent,
            stop=StopFlag(),
            progress=silent.progress,
            note_straggler=silent.log,
            judge=judge,
        )
        return BoostedTrees().fit(context)


def search(shop: Shop, seed: int, pruner: str) -> StageOutput:
    """Search one study's space to the end."""
    tune = Tune.model_validate({"trials": TRIALS, "space": SPACE, "pruner": pruner, "seed": seed})
    # The spec's settings are trial 0, as where there is no champion.
    train = Train(model="boosted_trees", epochs=ROUNDS, learning_rate=0.3, seed=seed)
    storage = InMemoryStorage()
    records = []
    for slot in range(TRIALS):
        study = Search(tune, train, name=f"study-{seed}", slot=slot, storage=storage)
        trial, settings = study.begin(study.given(train, None))
        judge = PruningCallback(trial, ROUNDS)
        fitted = shop.fit(with_settings(train, settings), judge)
        state: State = "pruned" if judge.is_pruned else "complete"
        value = None if judge.is_pruned else fitted.validation_loss
        rounds = fitted.num_steps
        record = TrialRecord(slot=slot, state=state, value=value, settings=settings, epochs=rounds, steps=rounds, losses=judge.losses)
        study.finish(trial, record)
        records.append(record)
    best = min(record.value for record in records if record.value is not None)
    return StageOutput(-best, sum(record.steps for record in records), sum(record.state == "pruned" for record in records))


def main() -> None:
    logging.disable(logging.WARNING)
    studies = int(sys.argv[1]) if len(sys.argv) > 1 else STUDIES
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    print(f"{studies} studies of {TRIALS} trials of {ROUNDS} rounds, each without a pruner and with Hyperband; best: NDCG@10")
    print(f"{'seed':>4} {'steps':>7} {'Hyperband':>9} {'share':>7} {'pruned':>7} {'best':>8} {'Hyperband':>9} {'worse':>8}")
    shares, losses = [], []
    started_at = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as folder:
        os.environ["NIGHTSHIFT_DATABASE"] = f"sqlite:///{folder}/nightshift.db"
        shop = Shop(Path(folder))
        for seed in range(first, first + studies):
            full, cut = search(shop, seed, "none"), search(shop, seed, "hyperband")
            share, worse = cut.steps / full.steps, 1 - cut.best / full.best
            shares.append(share)
            losses.append(worse)
            counted = f"{seed:>4} {full.steps:>7,} {cut.steps:>9,} {share:>7.1%} {cut.pruned:>7}"
            print(f"{counted} {full.best:>8.5f} {cut.best:>9.5f} {worse:>+8.2%}", flush=True)
    steps, worse = statistics.median(shares), statistics.median(losses)
    print(f"median: {steps:.1%} of the steps (at most {MOST_STEPS:.0%}), {worse:+.2%} worse (at most {MOST_WORSE:.0%})")
    print(f"        worst study {max(losses):+.2%}, most steps {max(shares):.1%}; {time.monotonic() - started_at:.0f} s")
    if steps > MOST_STEPS or worse > MOST_WORSE:
        sys.exit("the goals are missed")


if __name__ == "__main__":
    main()
