"""Training as a stage, in one process: stopped, resumed, damaged, diverged; the weights are the judge."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from training.contracts import ExitCode, RunIdentity, StageRequest, StageResult
from training.data.shop import write_day
from training.models.ranker import Ranker
from training.provenance import CHECKOUT
from training.spec import PipelineSpec, freeze, parse_spec, resolve_uris
from training.stages.context import StageContext, StopFlag
from training.stages.runner import run
from training.store import StageAddress, Store
from training.store.listing import listing_for

AS_OF = datetime(2026, 1, 7, 2, tzinfo=UTC)
FIRST_DAY = date(2026, 1, 1)
NUM_DAYS = 6


class Bench:
    """One small dataset of the shop, and as many trainings of it as a test wants."""

    def __init__(self, folder: Path) -> None:
        for number in range(NUM_DAYS):
            write_day(folder / "shop", FIRST_DAY + timedelta(days=number), searches=60)
        self.store = Store(str(folder / "store"))
        self.shop_uri = (folder / "shop").as_uri()
        self.spec = self.spec_of()
        ingest = self.stage("ingest", {}, {"listing": listing_for(self.spec, AS_OF)})
        self.dataset_uri = self.stage("prepare", {"snapshot": ingest.artifact_uri}, {}).artifact_uri
        self._count = 0

    def spec_of(self, **train: Any) -> PipelineSpec:
        text = (CHECKOUT / "dags/pipelines/search_ranking.yaml").read_text(encoding="utf-8")
        values = {"epochs": 2, "batch_size": 240, **train}
        for old, new in (
            ("window: 30d", "window: 6d"),
            ("test: 2d", "test: 1d"),
            ("epochs: 3", f"epochs: {values['epochs']}"),
            ("batch_size: 4096", f"batch_size: {values['batch_size']}"),
            ("processes_per_node: 2", "processes_per_node: 1"),
        ):
            assert old in text, old
            text = text.replace(old, new)
        return resolve_uris(parse_spec(text.encode()), {"SHOP_URI": self.shop_uri})

    def address(self, stage: str, name: str) -> StageAddress:
        return self.store.address("search_ranking", stage, name.encode().hex().rjust(64, "0"))

    def ask(self, stage: str, name: str, attempt_id: str, inputs: dict[str, str], parameters: dict[str, Any]) -> str:
        address = self.address(stage, name)
        request = StageRequest(
            pipeline="search_ranking",
            stage=stage,
            fingerprint=address.uri.rsplit("/", 1)[-1],
            attempt_id=attempt_id,
            store_uri=self.store.root_uri,
            spec_uri=self.store.put_json(freeze(self.spec)),
            as_of=AS_OF.isoformat(),
            inputs=inputs,
            parameters=parameters,
            run=RunIdentity(dag_id="search_ranking", run_id="r", task_id=stage),
        )
        return address.write_request(request)

    def stage(self, stage: str, inputs: dict[str, str], parameters: dict[str, Any]) -> StageResult:
        work = importlib.import_module(f"training.stages.{stage}").work
        uri = self.ask(stage, "only", "a1", inputs, parameters)
        assert run(work, uri, stop=StopFlag()) is ExitCode.DONE
        result = self.address(stage, "only").result()
        assert result is not None
        return result

    def train(self, name: str, attempt_id: str = "a1", *, stop: StopFlag | None = None) -> ExitCode:
        work = importlib.import_module("training.stages.train").work
        uri = self.ask("train", name, attempt_id, {"dataset": self.dataset_uri}, {"world_size": 1})
        return run(work, uri, stop=stop or StopFlag())

    def weights(self, name: str) -> str:
        result = self.address("train", name).result()
        assert result is not None
        return str(result.scalars["weights_digest"])

    def checkpoints(self, name: str) -> list[Any]:
        return [e.value["payload"] for e in self.address("train", name).journal().history() if e.value["kind"] == "checkpoint"]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("train")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{folder}/nightshift.db")
        return Bench(folder)


@pytest.fixture(autouse=True)
def _no_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens there: every training of these tests is one with its tracking server away."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr("training.engine.tracking.CLOSE_SECONDS", 0.5)


@pytest.fixture(scope="module")
def undisturbed(bench: Bench) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        assert bench.train("undisturbed") is ExitCode.DONE
    return bench.weights("undisturbed")


def stopping_at(step: int, stop: StopFlag) -> Callable[..., None]:
    original = StageContext.progress

    def progress(self: StageContext, done: int, total: int, unit: str, **more: Any) -> None:
        original(self, done, total, unit, **more)
        if done >= step:
            stop.request()

    return progress


def test_same_work_has_the_same_weights(bench: Bench, undisturbed: str) -> None:
    assert bench.train("again") is ExitCode.DONE
    assert bench.weights("again") == undisturbed


def test_training_goes_on_without_its_tracking_server_and_keeps_the_metrics(bench: Bench, undisturbed: str) -> None:
    result = bench.address("train", "undisturbed").result()
    assert result is not None
    assert undisturbed
    assert result.scalars["tracking"] == "delayed"
    prefix = bench.store.bucket.key(bench.address("train", "undisturbed").uri)
    assert b'"validation_loss"' in bench.store.bucket.get(f"{prefix}/tracking-pending.jsonl")


@pytest.mark.parametrize("step", [1, 7, 12])
def test_stopped_training_loses_no_step_and_ends_in_the_same_weights(
    bench: Bench, undisturbed: str, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    stop, name = StopFlag(), f"stopped-{step}"
    with monkeypatch.context() as patch:
        patch.setattr(StageContext, "progress", stopping_at(step, stop))
        assert bench.train(name, stop=stop) is ExitCode.PREEMPTED
    assert bench.checkpoints(name)[-1]["step"] == step
    assert bench.train(name, "a2") is ExitCode.DONE
    assert bench.weights(name) == undisturbed
    result = bench.address("train", name).result()
    assert result is not None
    assert result.attempts == 2


def damage(bench: Bench, uri: str) -> None:
    manifest = bench.store.manifests.get(uri)
    entry = next(iter(manifest.files.values()))
    path = Path(bench.store.root_uri.removeprefix("file://")) / bench.store.objects.key(entry.digest)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_damaged_newest_checkpoint_is_told_and_the_one_before_is_used(
    bench: Bench, undisturbed: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("training.engine.checkpoint.BLOCK_BYTES", 1 << 30)
    for attempt_id, step in (("a1", 3), ("a2", 6)):
        stop = StopFlag()
        with monkeypatch.context() as patch:
            patch.setattr(StageContext, "progress", stopping_at(step, stop))
            assert bench.train("damaged", attempt_id, stop=stop) is ExitCode.PREEMPTED
    first, newest = bench.checkpoints("damaged")
    damage(bench, newest["uri"])
    with caplog.at_level(logging.WARNING):
        assert bench.train("damaged", "a3") is ExitCode.DONE
    assert "checkpoint of step 6 is unusable" in caplog.text
    assert first["step"] == 3
    assert bench.weights("damaged") == undisturbed


def test_training_never_begins_anew_in_silence_when_all_checkpoints_are_damaged(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.engine.checkpoint.BLOCK_BYTES", (1 << 30) + 1)
    stop = StopFlag()
    with monkeypatch.context() as patch:
        patch.setattr(StageContext, "progress", stopping_at(4, stop))
        assert bench.train("lost", stop=stop) is ExitCode.PREEMPTED
    (only,) = bench.checkpoints("lost")
    damage(bench, only["uri"])
    assert bench.train("lost", "a2") is ExitCode.NO_USABLE_CHECKPOINT
    error = bench.address("train", "lost").error("a2")
    assert error is not None
    assert error["code"] == "checkpoint.unusable"
    assert "step 4" in error["message"]


def test_diverged_training_stops_before_the_optimizer_and_says_at_which_step(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    original = Ranker.loss

    def loss(self: Ranker, module: torch.nn.Module, batch: Any) -> torch.Tensor:
        calls.append(1)
        return original(self, module, batch) * (float("nan") if len(calls) == 4 else 1.0)

    monkeypatch.setattr(Ranker, "loss", loss)
    assert bench.train("diverged") is ExitCode.DIVERGED
    error = bench.address("train", "diverged").error("a1")
    assert error is not None
    assert error["code"] == "loss.not_finite"
    assert "step 3" in error["message"]
    assert len(calls) == 4
