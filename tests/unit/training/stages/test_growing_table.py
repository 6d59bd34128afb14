"""Three nights of a table that grows: which rows keep their split, and on which rows a candidate is compared with the champion."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.training.stages.evaluate_bench import AS_OF, SPEC, orders, run_stage, spec_for, without_services
from training.contracts import ExitCode, StageResult
from training.data.dataset.reader import DatasetReader
from training.sources.listing import listing_for
from training.store import Store

pytestmark = pytest.mark.slow

NIGHTS = 3
TIME = "by: time, validation: 5d, test: 10d"
SHARES = "validation: 0.2, test: 0.3"
KINDS = {
    "random": f"by: random, {SHARES}",
    "group": f"by: group, {SHARES}, column: customer",
    "column": "by: column, column: country, values: {train: [NL], validation: [BE], test: [DE]}",
    "stratified": f"by: stratified, {SHARES}",
}


@dataclass(frozen=True)
class Night:
    """What a night ended with."""

    splits: dict[int, str]
    """Order to its split."""
    record: dict[str, Any]
    page: str


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the stages from services."""
    without_services(monkeypatch, tmp_path)


def nights(folder: Path, split: str) -> list[Night]:
    """Return three nights, each with a day's orders more than the one before and without the oldest; each champion is the last model."""
    store, champion, found = Store(str(folder / "store")), None, []
    replaced = {TIME: split, "window: 30d": "window: 20d", "epochs: 20": "epochs: 2"}
    for night in range(NIGHTS):
        as_of = AS_OF - timedelta(days=NIGHTS - 1 - night)
        source = folder / f"night{night}"
        source.mkdir()
        frame = orders()
        frame[frame["ordered_at"] < as_of.replace(hour=0).isoformat()].to_csv(source / "orders.csv", index=False)
        spec = spec_for(SPEC, "binary", source.as_uri(), replaced)

        def stage(name: str, inputs: dict[str, str], parameters: dict[str, Any], at: Any = (night, as_of, spec)) -> StageResult:
            number, moment, read = at
            work_id = f"{name}{number}".encode().hex().rjust(64, "0")
            ended, work_folder = run_stage(store, read, name, inputs, parameters, work_id=work_id, run_id=f"n{number}", as_of=moment)
            assert ended is ExitCode.DONE, work_folder.error("a1")
            result = work_folder.result()
            assert result is not None
            return result

        snapshot = stage("ingest", {}, {"listing": listing_for(spec, as_of)}).artifact_uri
        dataset = stage("prepare", {"snapshot": snapshot}, {}).artifact_uri
        model = stage("train", {"dataset": dataset}, {"world_size": 1})
        result = stage("evaluate", {"model": model.artifact_uri, "dataset": dataset}, {} if champion is None else {"champion": champion})
        reader = DatasetReader(store, store.manifests.get(dataset), folder / f"dataset{night}")
        splits = {order: name for name in ("train", "validation", "test") for order in reader.rows(name, ["order_id"])["order_id"]}
        metrics = store.manifests.read(store.manifests.get(result.artifact_uri), "metrics.json")
        page = store.reports.get(result.reports["evaluation"]).decode()
        found.append(Night(splits, json.loads(metrics), page))
        manifest = store.manifests.get(model.artifact_uri, kind="model")
        champion = {
            "version": str(night + 1),
            "model_uri": model.artifact_uri,
            "weights_digest": manifest.meta["weights_digest"],
            "as_of": as_of.isoformat(),
            "bounds": manifest.meta["bounds"],
            "revision": night,
        }
    return found


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_later_candidate_is_compared_on_rows_that_the_champion_was_not_trained_on(kind: str, tmp_path: Path) -> None:
    found = nights(tmp_path, KINDS[kind])

    assert found[0].record["baseline"] == "no champion"
    moved, left_out = 0, 0
    for before, after in itertools.pairwise(found):
        test = [order for order, split in after.splits.items() if split == "test"]
        seen = [order for order in test if before.splits.get(order) in ("train", "validation")]
        assert len(set(after.splits) - set(before.splits)) > 50
        assert after.record["baseline"] == "champion"
        assert after.record["comparison"] is not None
        assert after.record["num_rows"] == len(test) - len(seen)
        assert after.record.get("rows_seen", {}) == ({"champion": len(seen)} if seen else {})
        assert ("test rows left out" in after.page) == bool(seen)
        moved += sum(after.splits.get(order, split) != split for order, split in before.splits.items())
        left_out += len(seen)
    assert bool(moved) == bool(left_out) == (kind == "stratified")
