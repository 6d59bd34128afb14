"""Two ranks under torchrun leave nothing in TMPDIR: after a training, and after a killed one and its retry."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from devstack.processes import MARK, kill_all, marked_by_home
from nightshift.execution.local import LocalLauncher
from nightshift.settings import Settings
from tests.distributed.launched import await_condition, processes_of
from tests.training_bench import Bench
from training.runtime.provenance import CHECKOUT

pytestmark = pytest.mark.distributed

LAUNCH = """
import sys
from nightshift.execution.local import LocalLauncher
from nightshift.settings import Settings
from training.spec import PipelineSpec
from training.store import Store

store = Store(sys.argv[1])
request = store.read_request(sys.argv[2])
spec = PipelineSpec.thaw(store.get_json(request.spec_uri))
LocalLauncher(Settings.from_environment()).launch(sys.argv[2], request, spec, print)
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_HOME", str(folder / "home"))
        # By which the template of its stages is found.
        patch.setenv(MARK, f"test:0:{folder / 'home'}")
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{folder}/nightshift.db")
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        yield Bench(folder, epochs=8, batch_size=50, processes=2, every="1s")
        kill_all(lambda: marked_by_home(folder / "home"))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """TMPDIR of this process and of those that it starts, empty."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def launch(bench: Bench, name: str, attempt_id: str) -> int:
    uri = bench.ask_train(name, attempt_id)
    return LocalLauncher(Settings.from_environment()).launch(uri, bench.store.read_request(uri), bench.spec, lambda line: None).exit_code


def test_nothing_is_left_after_a_training(bench: Bench, temporary: Path) -> None:
    assert launch(bench, "whole", "a1") == 0
    assert list(temporary.iterdir()) == []


def test_nothing_is_left_after_a_retry_of_a_training_whose_launcher_was_killed(bench: Bench, temporary: Path) -> None:
    uri = bench.ask_train("killed", "a1")
    command = [sys.executable, "-c", LAUNCH, bench.store.root_uri, uri]
    launcher = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await_condition(lambda: bool(bench.checkpoints("killed")), "a checkpoint")
    finally:
        os.kill(launcher.pid, signal.SIGKILL)
        launcher.wait()
    await_condition(lambda: processes_of(uri) == [], "the ranks' end")
    assert list(temporary.rglob("torchelastic_*")), "torchrun had a folder, and could not remove it"

    assert launch(bench, "killed", "a2") == 0
    assert list(temporary.iterdir()) == []
