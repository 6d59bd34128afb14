"""A model of which each of two ranks has a part, under torchrun: of every layer, or some of the layers. Killed, resumed, then elastic."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.distributed.launched import finish, kill_after_a_checkpoint, processes_of
from tests.training_bench import Bench
from training.contracts import ExitCode

pytestmark = pytest.mark.distributed

EPOCHS = 6
PARALLEL = {"tensor": "{tensor: 2}", "pipeline": "{pipeline: 2}\n  micro_batch_size: 20"}


@pytest.fixture(scope="module", params=list(PARALLEL))
def divided(request: pytest.FixtureRequest) -> str:
    """Return the dimension of the layout that has two ranks."""
    return str(request.param)


@pytest.fixture(scope="module")
def bench(divided: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp(divided)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{folder}/nightshift.db")
        made = Bench(folder, epochs=EPOCHS, batch_size=50, processes=2, every="1s", parallel=PARALLEL[divided])
        yield made
    assert processes_of(made.store.root_uri) == []


@pytest.fixture(scope="module")
def undisturbed(bench: Bench) -> str:
    return finish(bench, "undisturbed")


def test_killed_training_ends_in_the_undisturbed_weights(bench: Bench, divided: str, undisturbed: str) -> None:
    kill_after_a_checkpoint(bench, "killed", 2)
    saved_step = bench.checkpoints("killed")[-1]["step"]
    assert finish(bench, "killed", "a2") == undisturbed
    work_folder = bench.work_folder("train", "killed")
    log = bench.store.bucket.get(f"{bench.store.bucket.key(work_folder.uri)}/attempts/a2/log.txt").decode()
    assert f"resuming after step {saved_step} " in log
    result = work_folder.result()
    assert result is not None
    assert result.scalars["layout"] == f"data 1 x shard 1 x {divided} 2"


def test_elastic_training_continues_in_one_process(
    bench: Bench, undisturbed: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr("training.engine.tracking.tracker.CLOSE_SECONDS", 0.5)
    kill_after_a_checkpoint(bench, "shrunk", 2)
    saved_step = bench.checkpoints("shrunk")[-1]["step"]
    assert bench.train("shrunk", "a2") is ExitCode.BAD_SPEC, "another layout, and the training is not elastic"
    assert bench.train("shrunk", "a3", elastic=True) is ExitCode.DONE
    found, whole = (bench.work_folder("train", name).result() for name in ("shrunk", "undisturbed"))
    assert found is not None
    assert whole is not None
    assert found.scalars["world_size"] == 1
    assert f"resuming after step {saved_step} " in caplog.text
    losses = [float(str(result.scalars["validation_loss"])) for result in (found, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3), "other bits, the same training"
