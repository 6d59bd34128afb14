"""Sharded data parallel training (FSDP2): each process has a share of each batch and a part of each parameter.

The parts of a block of layers are gathered for its forward and backward pass, and gradients are reduced to the process that has the
part (Rajbhandari et al., ZeRO, 2020; Zhao et al., PyTorch FSDP, 2023). With several replicas, gradients are averaged over them too, once
in a step: what a process keeps of its micro-batches until then is no larger than its part. With `tensor`, layers are divided first
(`training.large.tensor`), and each process has a shard of its part of them; FSDP2 is then used with one shard too, since torch's
DDP takes no layers that are divided.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from training.data.dataset.loader import Batch
from training.engine.optimizers import MakeMuon
from training.engine.parallel.gang import Gang
from training.engine.parallel.strategy import SumLoss
from training.engine.precision import DTYPES
from training.errors import shown, spec_error
from training.large.clipping import clip_divided_gradients
from training.large.divided_model import DividedModel
from training.large.divided_muon import DividedMuon
from training.large.mesh import DATA, SHARD, TENSOR, mesh_of
from training.large.module_buffers import saved_buffers, take_from_first
from training.large.placements import gathered
from training.large.tensor import check_alike, divide_layers, mixed
from training.large.tensor_plan import TensorPlan
from training.process import liveness
from training.spec.layout import Layout

MIN_BLOCK_BYTES: Final = 1 << 20
"""Smaller blocks are gathered with what surrounds them: a collective has a cost of its own."""


MIN_ALONE_BYTES: Final = 16 << 20
"""Of a layer outside of all blocks: a smaller one stays gathered for a whole step, which spares a collective."""
ALONE: Final = (nn.Embedding, nn.EmbeddingBag, nn.Linear)
"""Layers whose weight only their own `forward` reads; not classes derived from them, such as the output layer of an attention."""

MIXED: Final = "mixed torch.Tensor and DTensor"
"""Part of what torch says where an operator gets a divided and a whole tensor."""


def blocks_of(module: nn.Module, min_bytes: int = MIN_BLOCK_BYTES, min_alone_bytes: int = MIN_ALONE_BYTES) -> Iterator[nn.Module]:
    """Yield what is gathered one at a time.

    These are the members of the outermost ModuleLists and Sequentials, from `min_bytes` on, and outside of them embeddings and linear
    layers from `min_alone_bytes` on. What shares a weight with a layer outside of it is left out: both would need it at other times.
    """
    uses = _uses_of(module)
    found = _blocks_of(module, min_bytes, min_alone_bytes)
    # A block may stand at several places; FSDP2 takes it once.
    yield from (block for block in dict.fromkeys(found) if all(uses[one] == count for one, count in _uses_of(block).items()))


def _uses_of(module: nn.Module) -> Counter[int]:
    """Return how many layers have each parameter, by its id; a layer that stands at several places is one."""
    return Counter(id(parameter) for layer in module.modules() for _, parameter in layer.named_parameters(recurse=False))


def _blocks_of(module: nn.Module, min_bytes: int, min_alone_bytes: int) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            yield from (block for block in child if _size_bytes(block) >= min_bytes)
        elif type(child) in ALONE:
            if _size_bytes(child) >= min_alone_bytes:
                yield child
        else:
            yield from _blocks_of(child, min_bytes, min_alone_bytes)


def _size_bytes(module: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


@contextmanager
def _explained(*, has_plan: bool) -> Iterator[None]:
    """Explain what torch says of a weight that is read while only a part of it is there."""
    try:
        yield
    except RuntimeError as err:
        if MIXED not in str(err):
            raise
        if has_plan:
            raise mixed(err) from err
        message = f"the model reads the weight of a block or a large layer outside of its forward, where it is divided: {str(err)[:300]}"
        hint = "call the layer itself; for an output layer that uses the embedding's weight: self.head.weight = self.embedding.weight"
        raise spec_error("train.model", "parallel.used_outside", message, hint=hint) from err


def _check_shapes(module: nn.Module) -> None:
    """Raise where a parameter has no dimension to be divided by.

    Raises:
        SpecError: `parallel.scalar`.
    """
    names = [shown(name) for name, parameter in module.named_parameters() if parameter.ndim == 0]
    if names:
        message = f"parameters of a sharded model have a dimension; these have none: {', '.join(names[:5])}"
        hint = "write nn.Parameter(torch.ones(1)) instead of nn.Parameter(torch.tensor(1.0))"
        raise spec_error("train.model", "parallel.scalar", message, hint=hint)


def _check_averaged(module: nn.Module) -> None:
    """Raise where replicas have not averaged the gradients of earlier micro-batches, as the last one had none for a block.

    Raises:
        SpecError: `parallel.unused_block`.
    """
    for name, block in module.named_modules():
        if any(group._partial_reduce_output is not None for group in _groups_of(block)):
            message = f"the block {shown(name)} has gradients of some micro-batches of a step, and none of the last one"
            hint = "let each forward pass use all blocks, or remove train.micro_batch_size"
            raise spec_error("train.model", "parallel.unused_block", message, hint=hint)


def _groups_of(block: nn.Module) -> Iterator[Any]:
    """Yield the parameters that are gathered with a block: FSDP2's one group of it, unless it has none of its own."""
    # By the name that torch 2.11 has as well; 2.13 raises there where a block has several, which `fully_shard` makes for several meshes.
    group = block._get_fsdp_state()._fsdp_param_group if isinstance(block, FSDPModule) else None
    if group is not None:
        yield group


class _Reductions:
    """Which gradients this process has reduced in a step, in order: torch pairs those of all processes by their order alone."""

    def __init__(self, module: nn.Module) -> None:
        self._digest = hashlib.sha256()
        for number, group in enumerate(group for block in module.modules() for group in _groups_of(block)):
            group.post_backward = self._noting(number, group, group.post_backward)

    def _noting(self, number: int, group: Any, reduce: Callable[..., None]) -> Callable[..., None]:
        def noted(*unused: Any) -> None:
            with_gradient = [
                place
                for place, one in enumerate(group.fsdp_params)
                if hasattr(one, "_unsharded_param") and one.unsharded_param.grad is not None
            ]
            if with_gradient:
                self._digest.update(repr((number, with_gradient)).encode())
            reduce(*unused)

        return noted

    def check_same(self, device: torch.device) -> None:
        """Raise where a process has reduced others than the rest: their gradients are then mixed up. All processes must call it.

        Raises:
            SpecError: `parallel.unused_block`, on all processes.
        """
        number = int.from_bytes(self._digest.digest()[:7], "big")
        self._digest = hashlib.sha256()
        cells = torch.tensor([number, -number], dtype=torch.int64, device=device)
        dist.all_reduce(cells, op=dist.ReduceOp.MAX)
        most, least = cells.tolist()
        if most != -least:
            message = "processes have gradients of different parameters in the same step: the model uses some layers for some rows only"
            hint = "let each forward pass use all layers, also where no row needs them, such as by adding 0 times their output"
            raise spec_error("train.model", "parallel.unused_block", message, hint=hint)


class ShardedModel(DividedModel):
    """The strategy of `shard` and `tensor`: each process saves its part of the state; those of one tensor group are one data rank."""

    def __init__(
        self,
        gang: Gang,
        layout: Layout,
        *,
        precision: str = "fp32",
        min_block_bytes: int = MIN_BLOCK_BYTES,
        min_alone_bytes: int = MIN_ALONE_BYTES,
        tensor_plan: Callable[[nn.Module], TensorPlan] | None = None,
    ) -> None:
        if layout.tensor > 1 and tensor_plan is None:
            raise ValueError(f"the layout {layout.words()} needs a tensor plan")
        super().__init__(gang, layout, precision=precision)
        self._min_block_bytes = min_block_bytes
        self._min_alone_bytes = min_alone_bytes
        self._tensor_plan = tensor_plan
        self._num_steps = 0

    def stage_number(self, rank: int) -> int:
        return 0

    def place(self, module: nn.Module) -> Mapping[str, nn.Parameter]:
        _check_shapes(module)
        mesh = mesh_of(self.gang, self._layout)
        self._module = module.to(self.gang.device)
        self.gang.copy_from_first([*module.parameters(), *module.buffers()])
        dtype = DTYPES[self.precision]
        # What a block gives stays in half precision: the layer after it has its parameters in that.
        inner, outer = (
            MixedPrecisionPolicy() if dtype is torch.float32 else MixedPrecisionPolicy(dtype, torch.float32, output_dtype)
            for output_dtype in (None, torch.float32)
        )
        used = mesh[DATA, SHARD] if self._layout.data > 1 else mesh[SHARD]
        with self.gang.collectives():
            if self._tensor_plan is not None and self._layout.tensor > 1:
                divide_layers(module, mesh[TENSOR], self._tensor_plan(module))
            self._mesh = mesh
            for block in list(blocks_of(module, self._min_block_bytes, self._min_alone_bytes)):
                fully_shard(block, mesh=used, mp_policy=inner)
            fully_shard(module, mesh=used, mp_policy=outer)
        self._reductions = _Reductions(module)
        self._buffers = saved_buffers(module) if self.num_data_ranks > 1 else []
        self._parameters = dict(module.named_parameters())
        return self._parameters

    def backward(self, batches: Sequence[Batch], loss: SumLoss, weight: float) -> torch.Tensor:
        totals = []
        with self.gang.collectives():
            take_from_first(self._buffers)
            for number, batch in enumerate(batches, start=1):
                if self._layout.data > 1 and isinstance(self._module, FSDPModule):
                    self._module.set_requires_all_reduce(number == len(batches))
                with _explained(has_plan=self._layout.tensor > 1):
                    total = loss(self._module, self._on_device(batch))
                # FSDP averages over ranks, as DDP does.
                (total * (self.num_data_ranks / weight)).backward()  # type: ignore[no-untyped-call]
                totals.append(total.detach())
            if len(batches) > 1 and self._layout.data > 1:
                _check_averaged(self._module)
            self._reductions.check_same(self.gang.device)
            found = torch.stack(totals).sum()
            self._num_steps += 1
            # Again after 2, 4, 8, … steps: a layer that begins with zeros hides the gradients of what is before it.
            if self._layout.tensor > 1 and self._num_steps.bit_count() == 1:
                check_alike(self._parameters, found, self._mesh[TENSOR])
        return found

    @property
    def muon(self) -> MakeMuon:
        return DividedMuon

    def clip(self, max_norm: float) -> float:
        with self.gang.collectives():
            return clip_divided_gradients(self._parameters.values(), max_norm, device=self.gang.device)

    def summed_loss(self, batches: Iterable[Batch], loss: SumLoss) -> float:
        """All ranks go through the same batches together, since each forward pass gathers parameters; an empty share counts nothing."""
        self.gang.copy_from_first(self._module.buffers())
        self._module.eval()
        total = 0.0
        with torch.no_grad(), self.gang.collectives():
            for batch in batches:
                liveness.moved()
                found = loss(self._module, self._on_device(batch))
                total += float(found) if len(batch["label"]) else 0.0
        self._module.train()
        # Processes of one tensor group have the same rows.
        return self.gang.sum(total if self.gang.rank % self._layout.tensor == 0 else 0.0)[0]

    def whole(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = {}
        with self.gang.collectives():
            for name, tensor in weights.items():
                whole = gathered(tensor) if isinstance(tensor, DTensor) else tensor
                if self.gang.is_first:
                    found[name] = whole.cpu()
        return found

    def _on_device(self, batch: Batch) -> Batch:
        return {name: cells.to(self.gang.device, non_blocking=True) for name, cells in batch.items()}
