"""A training that begins at a checkpoint of another layout, by `train.from_checkpoint`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.launched import finish
from tests.training_bench import Bench
from training.store.work_folder import StoreUri

pytestmark = pytest.mark.distributed


def validation_losses(bench: Bench, name: str) -> list[float]:
    manifest = bench.store.manifests.get(bench.checkpoints(name)[-1]["uri"])
    return [float(epoch["validation_loss"]) for epoch in manifest.meta["history"]]


def test_training_goes_on_from_a_checkpoint_of_another_layout_with_the_losses_of_the_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path}/nightshift.db")
    keys = {"epochs": 3, "batch_size": 60, "processes": 2}
    bench = Bench(tmp_path, **keys)
    finish(bench, "whole")
    begun_at = "whole"
    for name, parallel in {"shards": "{shard: 2}", "replicas": "{data: 2}"}.items():
        first = bench.checkpoints(begun_at)[0 if begun_at == "whole" else 1]
        digest = StoreUri(first["uri"]).digest
        bench.spec = bench.spec_of(**keys, parallel=f'{parallel}\n  from_checkpoint: "{digest}"')
        finish(bench, name)
        log = bench.store.bucket.get(f"{bench.store.bucket.key(bench.work_folder('train', name).uri)}/attempts/a1/log.txt").decode()
        assert f"resuming after step {first['step']} " in log
        assert validation_losses(bench, name) == pytest.approx(validation_losses(bench, "whole"), abs=1e-5)
        begun_at = name
