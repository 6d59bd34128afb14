"""The gang: joining it, what one rank alone does, and which errors are a broken collective."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from training.engine.devices import DevicePlace, check_expected, device_words
from training.engine.parallel import gang as gang_module
from training.engine.parallel.gang import Gang, collective_timeout, slow_work_timeout
from training.engine.parallel.single_process import Alone
from training.errors import PeerLostError, SpecError
from training.process.identity import Process
from training.runtime.provenance import CHECKOUT

CPU = torch.device("cpu")


def test_process_that_torchrun_did_not_start_is_a_gang_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    torch.use_deterministic_algorithms(False)
    gang = Gang.join(threads_per_process=2)
    assert (gang.rank, gang.world_size, gang.device, gang.is_first) == (0, 1, CPU, True)
    assert torch.get_num_threads() == 2
    assert torch.are_deterministic_algorithms_enabled()
    assert not dist.is_initialized()


JOINS = """
import sys
import torch
from training.engine.parallel.gang import Gang
Gang.join()
print(torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(), "torch._dynamo" in sys.modules)
import torch._inductor.config
print(torch._inductor.config.deterministic)
"""


@pytest.mark.slow
def test_a_gang_is_deterministic_without_torchs_compiler_which_is_so_when_it_is_imported_later() -> None:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(CHECKOUT), "HOME": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", JOINS], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "False", "False", "True"], done.stderr[-3000:]


def test_a_gang_makes_a_compiler_deterministic_that_is_imported_already(monkeypatch: pytest.MonkeyPatch) -> None:
    options = importlib.import_module("torch._inductor.config")
    monkeypatch.setattr(options, "deterministic", False)
    Gang.join()
    assert options.deterministic
    assert torch.are_deterministic_algorithms_enabled()


def test_rank_and_world_size_are_those_that_torchrun_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[tuple[str, timedelta]] = []
    met: list[tuple[str, int, int, timedelta]] = []
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("NIGHTSHIFT_NODE", "mine")
    store = store_with(DevicePlace(type="cpu"), num_ranks=3)
    monkeypatch.setattr(gang_module, "rendezvous", lambda *where, timeout: met.append((*where, timeout)) or iter([(store, 3, 4)]))
    monkeypatch.setattr(dist, "init_process_group", lambda backend, store, rank, world_size, timeout: joined.append((backend, timeout)))
    monkeypatch.setattr(dist, "new_group", lambda backend, timeout: joined.append((backend, timeout)))
    gang = Gang.join()
    assert (gang.rank, gang.world_size, gang.is_first) == (3, 4, False)
    assert (gang.node_of(2), gang.place_of(3)) == ("node-2", "rank 3 (node mine)")
    assert torch.get_num_threads() == 1
    assert met == [("env://", 3, 4, timedelta(hours=1))], "ranks may come as late as slow work takes"
    assert joined == [("gloo", timedelta(seconds=120)), ("gloo", timedelta(hours=1))]


def store_with(place: DevicePlace, *, num_ranks: int) -> dist.HashStore:
    """Return a store that the first ranks have come to."""
    store = dist.HashStore()
    for rank in range(num_ranks):
        store.set(f"nightshift/place/{rank}", place.to_text())
        store.set(f"nightshift/node/{rank}", f"node-{rank}")
        store.set(f"nightshift/process/{rank}", Process.this().to_text())
    return store


def test_rank_that_another_one_does_not_come_to_meet_says_that_a_peer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("NIGHTSHIFT_COLLECTIVE_TIMEOUT_SECONDS", "0.1")
    monkeypatch.setenv("NIGHTSHIFT_SLOW_WORK_TIMEOUT_SECONDS", "0.1")
    monkeypatch.setattr(gang_module, "rendezvous", lambda *_, timeout: iter([(dist.HashStore(), 0, 2)]))
    with pytest.raises(PeerLostError):
        Gang.join()


def test_gang_of_ranks_with_and_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    store = store_with(DevicePlace(type="cuda"), num_ranks=1)
    monkeypatch.setattr(gang_module, "rendezvous", lambda *_, timeout: iter([(store, 1, 2)]))
    with pytest.raises(SpecError, match="1 of 2 ranks have a GPU; ranks without one: 1") as caught:
        Gang.join()
    assert caught.value.code == "device.mixed"


def test_limits_are_those_that_the_environment_sets_and_slow_work_never_has_less_time_than_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_COLLECTIVE_TIMEOUT_SECONDS", "30")
    monkeypatch.setenv("NIGHTSHIFT_SLOW_WORK_TIMEOUT_SECONDS", "600")
    assert (collective_timeout(), slow_work_timeout()) == (timedelta(seconds=30), timedelta(minutes=10))
    monkeypatch.setenv("NIGHTSHIFT_COLLECTIVE_TIMEOUT_SECONDS", "900")
    assert (collective_timeout(), slow_work_timeout()) == (timedelta(minutes=15), timedelta(minutes=15))
    monkeypatch.setenv("NIGHTSHIFT_SLOW_WORK_TIMEOUT_SECONDS", "soon")
    with pytest.raises(SpecError, match="NIGHTSHIFT_SLOW_WORK_TIMEOUT_SECONDS"):
        slow_work_timeout()


@pytest.mark.usefixtures("process_group")
def test_numbers_are_summed_in_the_order_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = [1e16, 1.0, -1e16, 1.0]

    def all_gather(by_rank: list[torch.Tensor], cells: torch.Tensor, group: object) -> None:
        for rank, share in enumerate(shares):
            by_rank[rank].fill_(share)

    monkeypatch.setattr(dist, "all_gather", all_gather)
    monkeypatch.setattr(dist, "get_world_size", lambda group: 4)
    assert Gang(2, 4, CPU).sum(-1e16) == [((1e16 + 1.0) + -1e16) + 1.0] == [1.0]


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.int16, torch.bfloat16], ids=str)
def test_tensors_of_the_first_rank_are_copied_regardless_of_their_dtype_and_strides(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = torch.tensor([[1, 0, 1], [0, 0, 1]]).to(dtype)
    tensors = [torch.zeros(3, 2, dtype=dtype).t(), torch.tensor(0).to(dtype)]
    sent = iter([first.reshape(-1).view(torch.uint8), torch.tensor([1]).to(dtype).view(torch.uint8)])

    def broadcast(cells: torch.Tensor, src: int) -> None:
        assert src == 0
        cells.copy_(next(sent))

    monkeypatch.setattr(dist, "broadcast", broadcast)
    Gang(1, 2, CPU).copy_from_first(tensors)
    assert torch.equal(tensors[0], first)
    assert tensors[1].item() == 1


def test_rank_whose_peers_never_come_gets_the_error_that_a_peer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, timeout: timedelta) -> None:
        raise RuntimeError("The client socket has timed out after 120s while trying to connect")

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(gang_module, "rendezvous", refuse)
    with pytest.raises(PeerLostError):
        Gang.join()


def test_rank_alone_keeps_its_own_numbers_and_text() -> None:
    gang = Gang(0, 1, CPU)
    assert gang.from_first(7) == 7
    assert gang.text_from_first("läuft") == "läuft"
    assert gang.sum(1.5, 2.25) == [1.5, 2.25]


@pytest.mark.usefixtures("process_group")
def test_first_rank_gives_its_numbers_and_text_by_collectives() -> None:
    gang = Gang(0, 2, CPU)
    assert gang.from_first(2**40) == 2**40
    assert gang.text_from_first("läuft") == "läuft"
    assert gang.sum(1.5, 1e-12) == [1.5, 1e-12], "in float64"


@pytest.mark.usefixtures("process_group")
def test_other_ranks_get_the_number_and_the_text_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "läuft".encode()
    sent = iter([torch.tensor([2**40]), torch.tensor([len(text)]), torch.frombuffer(bytearray(text), dtype=torch.uint8)])

    def broadcast(cells: torch.Tensor, src: int, group: object) -> None:
        assert src == 0
        cells.copy_(next(sent))

    monkeypatch.setattr(dist, "broadcast", broadcast)
    gang = Gang(1, 2, CPU)
    assert gang.from_first(7) == 2**40
    assert gang.text_from_first("mine") == "läuft"


def test_numbers_between_steps_are_on_the_device_unless_a_group_of_the_cpu_carries_them() -> None:
    patient: Any = object()
    assert Gang(0, 2, torch.device("meta"))._numbers_device == torch.device("meta")
    assert Gang(0, 2, torch.device("meta"), patient)._numbers_device == CPU


def test_rank_with_a_gpu_has_cublas_use_a_workspace_that_is_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[torch.device] = []
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(DevicePlace, "of_this_process", classmethod(lambda cls: cls(type="cuda")))
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    gang = Gang.join()
    assert used == [gang.device]
    assert gang.device.type == "cuda"
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.parametrize(
    "message",
    [
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:3000",
        "NCCL error: remote process exited or there was a network error",
        "read: Connection reset",
        "Connection refused",
        "Timed out waiting 120000ms for recv operation to complete",
        "send: Broken pipe",
    ],
)
def test_broken_collective_is_a_lost_peer_among_several_ranks_and_a_bug_in_one(message: str) -> None:
    with pytest.raises(PeerLostError, match="rank 1: another rank is lost") as caught, Gang(1, 2, CPU).collectives():
        raise RuntimeError(message + "\nsecond line")
    assert caught.value.code == "peer.lost"
    assert message in caught.value.message
    assert "second line" not in caught.value.message
    with pytest.raises(RuntimeError, match="second line"), Gang(0, 1, CPU).collectives():
        raise RuntimeError(message + "\nsecond line")


@pytest.mark.parametrize("error", [RuntimeError("shapes cannot be multiplied"), ValueError("gloo")])
def test_other_errors_in_a_collective_are_the_errors_that_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, Gang(1, 2, CPU).collectives():
        raise error
    assert caught.value is error


def test_the_gang_of_trees_answers_as_a_gang_of_one() -> None:
    alone, gang = Alone(), Gang(0, 1, CPU)
    assert (alone.rank, alone.world_size, alone.is_first, device_words(alone.device)) == (
        gang.rank,
        gang.world_size,
        gang.is_first,
        device_words(gang.device),
    )
    assert alone.text_from_first("settings") == gang.text_from_first("settings")
    alone.wait_for_all()


def test_training_of_trees_that_is_named_after_a_gpu_is_refused() -> None:
    with pytest.raises(SpecError, match=r"to run on cuda, this process has only cpu \(torch ") as caught:
        check_expected(Alone().device, "cuda")
    # As installed: torch is not imported, and its own version may have a suffix for the build.
    assert f"(torch {importlib.metadata.version('torch')})" in str(caught.value)
