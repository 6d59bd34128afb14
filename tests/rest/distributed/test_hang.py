"""Two ranks, of which one hangs in C code: its stacks are in the log, the one that is not the first is ended, and no step is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training_bench import Bench
from training.contracts import ExitCode
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, parse_spec, resolve_uris

pytestmark = pytest.mark.distributed

TORCHRUN = ("-m", "training.runtime.torchrun", "--standalone", "--nnodes=1", "--nproc-per-node=2", "--max-restarts=0")
WAIT_SECONDS = 300.0
LIMIT = "4s"
MODEL = "tests.distributed.hanging_model:HangingRanker"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench(tmp_path_factory.mktemp("hang"), epochs=2, batch_size=240, processes=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_MODEL_PACKAGES", "tests")
        made.spec = hanging(made.spec)
    return made


def hanging(spec: PipelineSpec) -> PipelineSpec:
    """Return a training of the same dataset by a model that may hang, with a short limit for steps and validation alone."""
    text = (CHECKOUT / "dags/pipelines/search_ranking.yaml").read_text(
        encoding="utf-8"
    ) + f"\ntimeout: {{step: {LIMIT}, validation: {LIMIT}}}\n"
    parsed = resolve_uris(parse_spec(text.encode()), {"SHOP_URI": spec.data.source.uri.rpartition("/")[0]})
    return spec.model_copy(update={"timeout": parsed.timeout, "train": spec.train.model_copy(update={"model": MODEL})})


def train(bench: Bench, name: str, attempt_id: str, folder: Path, hang: str) -> tuple[int, str]:
    """Return (torchrun's exit code, its output)."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "NIGHTSHIFT_MODEL_PACKAGES": "tests",
        # Not in time: the timers find the hang.
        "NIGHTSHIFT_COLLECTIVE_TIMEOUT_SECONDS": "240",
        "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "HANG": hang,
        "HANG_NOTE": str(folder / "hung"),
    }
    command = [sys.executable, *TORCHRUN, "-m", "training.stages.train", bench.ask_train(name, attempt_id)]
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def undisturbed(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> str:
    code, output = train(bench, "undisturbed", "a1", tmp_path_factory.mktemp("undisturbed"), "")
    assert code == 0, output[-4000:]
    return bench.weights("undisturbed")


@pytest.mark.parametrize(("hang", "kind"), [("1 validating 1", "validation"), ("0 training 3", "step")])
def test_rank_that_hangs_is_ended_with_its_stacks_in_the_log_and_the_next_attempt_continues(
    bench: Bench, undisturbed: str, tmp_path: Path, hang: str, kind: str
) -> None:
    rank = hang[0]
    code, output = train(bench, hang, "a1", tmp_path, hang)
    assert code == 1, output[-4000:]
    error = bench.work_folder("train", hang).error("a1")
    assert error is not None, output[-4000:]
    assert (error["code"], error["exit_code"]) == ("stage.hung", int(ExitCode.PREEMPTED))
    assert "in hang_in_c" in output, "also where the timer ended the rank that waited for the one that hangs"
    assert error["rank"] == 1, "the first rank is ended last"
    assert error["message"].startswith(f"rank 1: no progress in {kind}")
    assert error["message"].endswith("within the limit of 4 s")
    if rank == "1":
        steps = [entry["step"] for entry in bench.checkpoints(hang)]
        assert steps[-1] > 0, "rank 0 saved the last whole step"
    code, output = train(bench, hang, "a2", tmp_path, hang)
    assert code == 0, output[-4000:]
    assert bench.weights(hang) == undisturbed
