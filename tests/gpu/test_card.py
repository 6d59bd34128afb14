"""What must hold on a machine with a card; docs/gpu.md says how to run it there without an installation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import nccl, rankers, twice
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.language_model import TINY, LanguageModel, next_token_loss, random_batch
from benchmarks.gpu.trainings import Training
from training.engine.devices import check_expected
from training.engine.parallel.gang import Gang

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no card")]


def trained(folder: Path) -> dict[str, Any]:
    """Return the weights of a small ranker after two epochs, on the CPU."""
    folder.mkdir()
    meta = rankers.write(folder, train=2048, validation=256)
    training = Training(folder=folder, meta=meta, gang=Gang.join(), batch_size=128, epochs=2)
    module = rankers.ranker(is_large=False)
    with training.attempt(module, rankers.loss) as loop:
        loop.train()
    return {name: tensor.cpu() for name, tensor in module.state_dict().items()}


def test_two_trainings_on_a_card_end_in_equal_weights(tmp_path: Path) -> None:
    first, second = trained(tmp_path / "first"), trained(tmp_path / "second")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_a_training_that_is_killed_and_resumed_ends_as_the_undisturbed_one(tmp_path: Path) -> None:
    # Processes: what is killed is one, and CUDA's state goes with it.
    undisturbed = twice.outcomes("cuda", "eager", tmp_path / "first")[0]
    assert twice.is_equal_after_kill("cuda", tmp_path / twice.KILLED, undisturbed)


def test_nothing_of_a_training_on_a_card_is_on_the_cpu() -> None:
    bench = Bench("cuda")
    check_expected(bench.device, "cuda")
    module = LanguageModel(TINY)
    training = bench.training(module)
    training.step(random_batch(TINY, 4))
    gradients = [parameter.grad for parameter in module.parameters()]
    tensors = [*module.state_dict().values(), *gradients, *training.optimizer.state().values()]
    assert {tensor.device.type for tensor in tensors if tensor is not None} == {"cuda"}
    assert None not in gradients


def test_a_step_on_a_card_runs_in_bf16_and_keeps_weights_in_fp32() -> None:
    bench, seen = Bench("cuda"), []
    module = LanguageModel(TINY)
    module.head.register_forward_hook(lambda *found: seen.append(found[2].dtype))
    bench.training(module, precision="bf16", loss=next_token_loss).step(random_batch(TINY, 4))
    assert seen == [torch.bfloat16]
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


def test_one_rank_reduces_by_nccl_and_its_numbers_by_gloo() -> None:
    found = nccl.one_rank(Bench("cuda"))
    assert (found["backend"], found["patient"], found["is_right"]) == ("nccl", "gloo", True)


@pytest.mark.slow
def test_two_processes_that_share_a_card_sum_rightly_and_each_limit_ends_a_wait() -> None:
    # Processes: a gang is made of them, under torchrun.
    found = nccl.shared("cuda")
    assert (found["backend"], found["is_right"], found["same_gradients"], found["gradients_on"]) == ("gloo", True, True, ["cuda"])
    assert found["step_limit_seconds"] >= nccl.LIMIT_SECONDS
    assert found["slow_limit_seconds"] >= nccl.SLOW_LIMIT_SECONDS


@pytest.mark.slow
def test_the_limit_of_nccl_ends_a_process_whose_collective_hangs() -> None:
    # A process: NCCL ends it.
    found = nccl.hang_ended()
    assert found["is_ended"]
    assert found["code"] != 0
