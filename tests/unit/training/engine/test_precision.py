"""Precision: what `auto` chooses by device, what is refused, and what the forward pass runs in."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.unit.training.engine.loop_bench import LoopBench, outcome, squares
from training.data.dataset.loader import Batch
from training.engine.precision import autocast, choose_precision
from training.errors import SpecError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(("device", "has_bf16", "chosen"), [(GPU, True, "bf16"), (GPU, False, "fp32"), (CPU, True, "fp32")])
def test_auto_is_bf16_on_a_gpu_that_has_it_and_fp32_elsewhere(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, has_bf16: bool, chosen: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: has_bf16)
    assert choose_precision("auto", device) == chosen


@pytest.mark.parametrize("asked", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("device", [CPU, GPU])
def test_named_precision_is_used_on_every_device(asked: str, device: torch.device) -> None:
    assert choose_precision(asked, device) == asked


def test_unknown_precision_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(SpecError) as caught:
        choose_precision("fp8", CPU)
    (problem,) = caught.value.problems
    assert problem.code == "precision.unsupported"
    assert "'fp8'" in problem.message
    assert problem.hint == "use auto, fp32, bf16 or fp16"


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_forward_pass_runs_in_the_precision(precision: str, dtype: torch.dtype) -> None:
    with autocast(precision, CPU):
        assert nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2)).dtype == dtype


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_training_computes_in_the_precision_and_keeps_weights_and_state_in_fp32(
    bench: LoopBench, precision: str, dtype: torch.dtype
) -> None:
    seen: set[tuple[bool, torch.dtype]] = set()

    def loss(module: nn.Module, batch: Batch) -> torch.Tensor:
        seen.add((module.training, module(batch).dtype))
        return squares(module, batch)

    loop = bench.train(loss=loss, precision=precision)
    assert seen == {(True, dtype), (False, dtype)}
    assert {tensor.dtype for tensor in loop._state().values()} == {torch.float32}
    assert outcome(loop) != outcome(LoopBench(bench.folder / "fp32").train())
