"""What a model needs, found without a device and without its memory: it is built and run with fake tensors.

A loss that depends on the values of its batch cannot run with fake tensors: then a small model takes a forward pass on the CPU.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop

from training.data.dataset.loader import Batch
from training.data.dataset.shard_format import FeatureEntry
from training.engine.activations import EVERY
from training.engine.optimizers import SGD, AdamW, Muon, OptimizerSettings, Update
from training.engine.parallel.strategy import SumLoss
from training.errors import SpecError, first_line, spec_error
from training.large.pipeline_cut import names_of_stages
from training.large.planning.costs import Line, Mode, ModelSize
from training.large.sharded import blocks_of
from training.large.tensor_plan import TensorPlan, extents_of

logger = logging.getLogger(__name__)

UNITS: Final = (16, 32)
"""Rows, or groups, of two micro-batches; what grows with them is taken to grow in a line."""
ROWS_OF_A_GROUP: Final = 16
MAX_REAL_BYTES: Final = 1 << 30
"""Parameters of a model that is built on the CPU to be measured."""
MAX_STAGES: Final = 64
INSIDE_SHARE: Final = 24 / 34
"""Of a transformer's activations, those inside of attention and perceptron; the others are between them (Korthikanti et al., 2022)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutCandidate:
    """A model that is to be planned for."""

    build: Callable[[], nn.Module]
    loss: SumLoss
    features: Sequence[FeatureEntry]
    has_group: bool
    optimizer: Callable[[nn.Module], OptimizerSettings]
    blocks: Callable[[nn.Module], Sequence[nn.Module]]
    rows_of_a_group: int = ROWS_OF_A_GROUP
    tensor_plan: Callable[[nn.Module], TensorPlan | None]
    cut: Callable[[nn.Module, int], Sequence[nn.Module] | None]


@dataclass
class _Run:
    """What one forward pass kept, and computed."""

    outside: float = 0.0
    by_block: dict[int, float] = field(default_factory=dict)
    inputs: dict[int, float] = field(default_factory=dict)
    flops: float = 0.0

    def kept(self, mode: Mode) -> float:
        """Return the bytes kept until the backward pass, with those of the largest block that is computed again."""
        if mode == "none":
            return self.outside + sum(self.by_block.values())
        again = set(sorted(self.by_block)[:: EVERY[mode]])
        kept = sum(size for block, size in self.by_block.items() if block not in again)
        return (
            self.outside + kept + sum(self.inputs[block] for block in again) + max((self.by_block[block] for block in again), default=0.0)
        )


def facts_of(candidate: LayoutCandidate) -> ModelSize:
    """Return what a plan has to know of a model.

    Raises:
        SpecError: `layout.model`: it can be built or run neither with fake tensors, nor, being small, on the CPU.
    """
    try:
        return _measured(candidate, is_fake=True)
    except SpecError:
        raise
    except Exception as err:
        # A user's class may raise anything.
        reason = f"{type(err).__name__}: {first_line(err)}"
    logger.info("the model does not run with fake tensors (%s): it is measured on the CPU", reason)
    try:
        return _measured(candidate, is_fake=False)
    except SpecError:
        raise
    except Exception as err:
        message = f"the model cannot be built and run with a batch of zeros: {type(err).__name__}: {str(err)[:300]}"
        hint = "set train.parallel to data and shard; or let the class run with the features of the spec"
        raise spec_error("train.model", "layout.model", message, hint=hint, field="train.model") from err


def _measured(candidate: LayoutCandidate, *, is_fake: bool) -> ModelSize:
    with torch.random.fork_rng(devices=[]), _fake() if is_fake else nullcontext():
        module = candidate.build()
        num_bytes = sum(map(_bytes, module.parameters()))
        if not is_fake and num_bytes > MAX_REAL_BYTES:
            message = f"the model has {num_bytes:,} bytes of parameters, and its loss does not run with fake tensors"
            hint = "set train.parallel to data and shard; or let the loss not depend on values of the batch"
            raise spec_error("train.model", "layout.model", message, hint=hint, field="train.model")
        repeated = list(candidate.blocks(module))
        sizes = [units * (candidate.rows_of_a_group if candidate.has_group else 1) for units in UNITS]
        small, large = (_run(candidate, module, repeated, _batch(candidate, rows)) for rows in sizes)
        line = functools.partial(_line, sizes)
        optimizer = candidate.optimizer(module)
        plan = candidate.tensor_plan(module)
        extents = None if plan is None else extents_of(module, plan)
        return ModelSize(
            num_parameters=sum(parameter.numel() for parameter in module.parameters()),
            parameter_bytes=num_bytes,
            buffer_bytes=sum(map(_bytes, module.buffers())),
            gradient_bytes=sum(_bytes(parameter) for parameter in module.parameters() if parameter.requires_grad),
            optimizer_bytes=_state_bytes(module, optimizer),
            update_bytes=_update_bytes(module, optimizer),
            block_bytes=tuple(sum(map(_bytes, block.parameters())) for block in blocks_of(module)),
            activations={
                mode: line(small.kept(mode), large.kept(mode)) for mode in (("none", "selective", "full") if repeated else ("none",))
            },
            passed=line(max(small.inputs.values(), default=0.0), max(large.inputs.values(), default=0.0)),
            flops=line(small.flops, large.flops),
            num_repeated=len(repeated),
            tensor_parts=1 if extents is None else extents.most,
            tensor_bytes=0 if extents is None else extents.divided_bytes,
            tensor_activations=1.0 if extents is None or extents.has_sequence else INSIDE_SHARE,
            stage_shares=_stage_shares(candidate, module, num_bytes),
        )


def _stage_shares(candidate: LayoutCandidate, module: nn.Module, num_bytes: int) -> dict[int, float]:
    """Return the share of the parameters that the largest stage has, by the numbers of stages into which the model is cut rightly."""
    found = {}
    for number in range(2, MAX_STAGES + 1):
        try:
            stages = candidate.cut(module, number)
            if stages is None:
                continue
            names_of_stages(module, stages, number)
        except Exception as err:
            # A user's class may raise anything for a number that it does not know; a training with this number is refused with the reason.
            logger.debug("the model is not cut into %d stages: %s", number, err)
            continue
        found[number] = max(sum(map(_bytes, stage.parameters())) for stage in stages) / max(1, num_bytes)
    return found


@contextmanager
def _fake() -> Iterator[None]:
    # Its import costs seconds.
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        yield


def _line(rows: Sequence[int], small: float, large: float) -> Line:
    per_row = (large - small) / (rows[1] - rows[0])
    return Line(fixed=small - per_row * rows[0], per_row=per_row)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _batch(candidate: LayoutCandidate, num_rows: int) -> Batch:
    """Return a batch of zeros, groups of equal sizes."""
    num_floats = sum(entry["dtype"] == "float32" for entry in candidate.features)
    batch = {
        "features_float": torch.zeros(num_rows, num_floats),
        "features_int": torch.zeros(num_rows, len(candidate.features) - num_floats, dtype=torch.int32),
        "label": torch.zeros(num_rows),
    }
    if candidate.has_group:
        batch["group"] = torch.arange(num_rows, dtype=torch.int32) // candidate.rows_of_a_group
    return batch


def _run(candidate: LayoutCandidate, module: nn.Module, repeated: Sequence[nn.Module], batch: Batch) -> _Run:
    """Run the loss forward; count the storages that autograd keeps, each once, by the repeated block in which it is first kept."""
    run = _Run()
    known = {tensor.untyped_storage()._cdata for tensor in itertools.chain(module.parameters(), module.buffers(), batch.values())}
    alive: list[Any] = []
    inside: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            known.add(storage._cdata)
            # Kept, or its address would be that of another one.
            alive.append(storage)
            if inside:
                run.by_block[inside[-1]] = run.by_block.get(inside[-1], 0.0) + storage.nbytes()
            else:
                run.outside += storage.nbytes()
        return tensor

    handles = []
    for number, block in enumerate(repeated):
        handles.append(block.register_forward_pre_hook(functools.partial(_enter, run, inside, number), with_kwargs=True))
        handles.append(block.register_forward_hook(functools.partial(_leave, inside)))
    formulas = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}
    try:
        with saved_tensors_hooks(keep, lambda tensor: tensor), FlopCounterMode(display=False, custom_mapping=formulas) as counter:
            total = candidate.loss(module, batch)
        run.flops = float(counter.get_total_flops())
        del total
    finally:
        for handle in handles:
            handle.remove()
    return run


def _enter(run: _Run, inside: list[int], number: int, _block: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    inside.append(number)
    run.by_block.setdefault(number, 0.0)
    run.inputs[number] = float(sum(_bytes(value) for value in [*given, *named.values()] if isinstance(value, torch.Tensor)))


def _leave(inside: list[int], *_: Any) -> None:
    inside.pop()


def _attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop(query, key, value))


def _state_bytes(module: nn.Module, optimizer: OptimizerSettings) -> int:
    """Return the size of the optimizer's state, by what its class keeps of a parameter."""
    kinds: dict[str, type[Update]] = {"adamw": AdamW, "sgd": SGD, "muon": Muon}
    first = kinds[optimizer.name]
    total = 0
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        used = first if optimizer.name != "muon" or name in optimizer.muon else AdamW
        total += sum(_bytes(parameter) if kind == "parameter" else 4 for kind in used.STATE.values())
    return total


def _update_bytes(module: nn.Module, optimizer: OptimizerSettings) -> int:
    """Return what a step needs at once: SGD a sum of gradients and decay; muon some bf16 copies of one whole matrix."""
    parameters = dict(module.named_parameters())
    if optimizer.name == "sgd" and optimizer.weight_decay:
        return sum(_bytes(parameter) for parameter in parameters.values() if parameter.requires_grad)
    return 3 * max((_bytes(parameters[name]) for name in optimizer.muon), default=0)
