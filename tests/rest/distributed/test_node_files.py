"""The ranks of a node read each object of a dataset once between them, and leave nothing on its disk."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training_bench import Bench
from training.runtime.provenance import CHECKOUT

pytestmark = pytest.mark.distributed

TORCHRUN = (sys.executable, "-m", "training.runtime.torchrun", "--max-restarts=0")
PROGRAM = ("-m", "tests.distributed.counted_gets")
WAIT_SECONDS = 300.0


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("node")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{folder}/nightshift.db")
        # Each file of the dataset is an object, as in a larger one.
        patch.setattr("training.store.manifests.PACKED_FILE_BYTES", -1)
        yield Bench(folder, epochs=1, processes=2)


class Node:
    """A temporary folder, and what its ranks have read."""

    def __init__(self, folder: Path) -> None:
        self.temporary, self._gets = folder / "tmp", folder / "gets"
        self.temporary.mkdir(parents=True)
        self._gets.mkdir()

    def start(self, *torchrun: str, request: str, **more: str) -> subprocess.Popen[str]:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("NIGHTSHIFT_")},
            "TMPDIR": str(self.temporary),
            "GETS_FOLDER": str(self._gets),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
            **more,
        }
        command = [*TORCHRUN, *torchrun, *PROGRAM, request]
        return subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def reads(self) -> Counter[str]:
        """Return object to how often it was read."""
        return Counter(line for path in self._gets.iterdir() for line in path.read_text(encoding="utf-8").splitlines())

    def left(self) -> list[str]:
        """Return the files of ours in the temporary folder; torchrun leaves one for its logs, in which each rank notes what it does."""
        found = (path for path in self.temporary.rglob("*") if path.is_file() or path.name.startswith("nightshift-"))
        return sorted(str(path) for path in found if path.suffix != ".phase")


def ends_well(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, output[-4000:]


def objects_of(bench: Bench) -> set[str]:
    """Return what a training reads of the dataset."""
    dataset = bench.store.manifests.get(bench.dataset_uri)
    names = [name for name in dataset.files if name.startswith("shards/") or name == "transforms.json"]
    return {bench.store.objects.key(dataset.files[name].digest) for name in names}


def test_two_ranks_of_a_node_read_each_object_once_also_after_one_was_killed_while_it_read(bench: Bench, tmp_path: Path) -> None:
    node, torchrun = Node(tmp_path / "node"), ("--standalone", "--nproc-per-node=2")
    killed = node.start(*torchrun, request=bench.ask_train("one node", "a1"), KILL_IN_GET="1")
    killed.communicate(timeout=WAIT_SECONDS)
    assert killed.returncode != 0
    assert sum(node.reads().values()) == 1, "one rank alone reads"
    assert node.left(), "what the killed one has begun"
    retried = Node(tmp_path / "retried")
    retried.temporary.rmdir()
    node.temporary.rename(retried.temporary)
    ends_well(retried.start(*torchrun, request=bench.ask_train("one node", "a2")))
    assert retried.reads() == dict.fromkeys(objects_of(bench), 1)
    assert retried.left() == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_of_two_nodes_reads_once_for_all_of_its_ranks_also_where_they_share_a_disk(bench: Bench, tmp_path: Path, ranks: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    name = f"two nodes of {ranks}"
    node, request = Node(tmp_path), bench.ask_train(name, "a1")
    where = ("--nnodes=2", f"--nproc-per-node={ranks}", "--master-addr=127.0.0.1", f"--master-port={port}")
    members = [node.start(*where, f"--node-rank={rank}", request=request) for rank in range(2)]
    for member in members:
        ends_well(member)
    assert node.reads() == dict.fromkeys(objects_of(bench), 2)
    assert node.left() == []
    if ranks == 1:
        assert bench.weights(name) == bench.weights("one node"), "the same files, the same model"
