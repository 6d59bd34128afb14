"""Twenty kill points of trainings that the launcher starts as a stage does; the others are in test_kill_points.py, of forked ranks."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.distributed.launched import Kill, finish, kill_after_a_checkpoint, processes_of, signal_rank, signal_torchrun
from tests.training_bench import Bench

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(900)]

SEED = 20261123
POINTS_PER_LAYOUT = 5
EPOCHS = 6
PARALLEL = {"ddp": "", "fsdp2": "{shard: 2}", "tensor": "{tensor: 2}", "pipeline": "{pipeline: 2}\n  micro_batch_size: 20"}


@dataclass(frozen=True)
class KillPoint:
    """Which process is killed, and after how many checkpoints."""

    process: str
    num_checkpoints: int

    def __str__(self) -> str:
        return f"{self.process} after {self.num_checkpoints}"

    @property
    def kill(self) -> Kill:
        if self.process == "launcher":
            return signal_torchrun(signal.SIGKILL)
        return signal_rank(int(self.process.removeprefix("rank ")))


def drawn(name: str) -> list[KillPoint]:
    generator = random.Random(f"{SEED} {name}")  # noqa: S311 - where to kill, not a secret
    processes = ("rank 0", "rank 1", "launcher")
    return [KillPoint(generator.choice(processes), generator.randint(1, EPOCHS - 2)) for _ in range(POINTS_PER_LAYOUT)]


@pytest.fixture(scope="module", params=list(PARALLEL))
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def bench(layout: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp(layout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{folder}/nightshift.db")
        made = Bench(folder, epochs=EPOCHS, batch_size=50, processes=2, every="1s", parallel=PARALLEL[layout])
        yield made
    assert processes_of(made.store.root_uri) == []


@pytest.fixture(scope="module")
def undisturbed(bench: Bench) -> str:
    return finish(bench, "undisturbed")


@pytest.mark.parametrize("number", range(POINTS_PER_LAYOUT))
def test_launched_training_killed_at_a_point_ends_in_the_bits_of_the_undisturbed_one(
    bench: Bench, layout: str, undisturbed: str, number: int
) -> None:
    point = drawn(layout)[number]
    name = f"killed-{number}"
    kill_after_a_checkpoint(bench, name, point.num_checkpoints, point.kill)
    committed_step = bench.checkpoints(name)[-1]["step"]
    assert finish(bench, name, "a2") == undisturbed, str(point)
    work_folder = bench.work_folder("train", name)
    log = bench.store.bucket.get(f"{bench.store.bucket.key(work_folder.uri)}/attempts/a2/log.txt").decode()
    assert f"resuming after step {committed_step} " in log, "nothing that was committed is lost"
