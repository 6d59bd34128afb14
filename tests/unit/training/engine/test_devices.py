"""Devices, without any: which GPU a process takes, what a gang's gradients go through, and what is refused."""

from __future__ import annotations

import logging

import pytest
import torch

from training.engine.devices import DevicePlace, backend_of, check_expected, device_words
from training.engine.parallel.gang import Gang
from training.errors import SpecError

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Two GPUs, as torch would report them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    return monkeypatch


@pytest.mark.parametrize(
    ("local_rank", "num_local", "index", "is_shared"),
    [(0, 1, 0, False), (1, 2, 1, False), (1, 3, 1, True), (2, 3, 0, True), (5, 6, 1, True)],
)
def test_processes_of_a_node_take_its_gpus_in_turn(
    gpus: pytest.MonkeyPatch, local_rank: int, num_local: int, index: int, is_shared: bool
) -> None:
    gpus.setenv("LOCAL_RANK", str(local_rank))
    gpus.setenv("LOCAL_WORLD_SIZE", str(num_local))
    place = DevicePlace.of_this_process()
    assert place == DevicePlace(type="cuda", index=index, is_shared=is_shared)
    assert place.device == torch.device("cuda", index)
    assert DevicePlace.from_text(place.to_text()) == place


def test_process_without_a_gpu_is_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert DevicePlace.of_this_process() == DevicePlace(type="cpu")
    assert DevicePlace.of_this_process().device == CPU


def test_family_that_uses_no_gpu_takes_none(gpus: pytest.MonkeyPatch) -> None:
    gpus.setattr(torch.cuda, "set_device", lambda device: pytest.fail(f"{device} was taken"))
    assert Gang.join(use_gpus=False).device == CPU


def test_gang_of_one_sets_its_device_and_a_deterministic_workspace(gpus: pytest.MonkeyPatch) -> None:
    taken: list[torch.device] = []
    gpus.setattr(torch.cuda, "set_device", taken.append)
    gpus.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert Gang.join().device == CUDA
    assert taken == [CUDA]


def test_gradients_go_through_nccl_where_each_process_has_a_gpu_of_its_own_and_through_gloo_elsewhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own, shared, cpu = DevicePlace(type="cuda"), DevicePlace(type="cuda", is_shared=True), DevicePlace(type="cpu")
    assert backend_of([own, own]) == "nccl"
    assert backend_of([cpu, cpu]) == "gloo"
    assert not caplog.messages
    with caplog.at_level(logging.WARNING):
        assert backend_of([own, shared]) == "gloo"
    assert "processes share GPUs" in caplog.text
    with pytest.raises(SpecError, match=r"2 of 3 ranks have a GPU; ranks without one: 1") as caught:
        backend_of([own, cpu, own])
    assert caught.value.code == "device.mixed"


def test_training_that_is_named_after_a_gpu_does_not_run_on_the_cpu(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SpecError, match="CUDA_VISIBLE_DEVICES") as caught:
        check_expected(CPU, "cuda")
    assert caught.value.code == "device.missing"
    check_expected(CUDA, "cuda")
    check_expected(CPU, None)
    assert not caplog.messages
    check_expected(CUDA, None)
    assert "not part of this work's id" in caplog.text


def test_record_names_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    assert device_words(CUDA) == "cuda (NVIDIA H100 80GB HBM3)"
    assert device_words(CPU) == "cpu"
