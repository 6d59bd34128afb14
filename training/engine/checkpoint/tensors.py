"""The tensors of a checkpoint: which can be saved, the one copy out of the training, and back from the bytes that were stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, ParamSpec, Protocol, TypeVar

import torch

from training.engine.checkpoint.format import ITEM_BYTES, Index, TensorEntry, padded
from training.errors import Problem, SpecError

DTYPES: Final = {name: getattr(torch, name) for name in ITEM_BYTES}

State = Mapping[str, torch.Tensor]

P = ParamSpec("P")
T = TypeVar("T")


class Background(Protocol):
    """Runs calls beside the training, one after another."""

    def submit(self, call: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> Future[T]:
        """Run a call after those before it."""


def check_savable(state: State) -> None:
    """Refuse tensors that no checkpoint can be restored with; their values are not looked at.

    Raises:
        SpecError: `checkpoint.dtype` or `checkpoint.layout`, one problem for each tensor.
    """
    problems = []
    for name, tensor in sorted(state.items()):
        if any(placement.is_partial() for placement in getattr(tensor, "placements", ())):
            message = f"tensor {name} has placements {tensor.placements}: its values are not summed over the processes"  # type: ignore[attr-defined]
            hint = "reduce it in the module before the state is saved"
            problems.append(Problem(code="checkpoint.layout", field="train.model", message=message, hint=hint))
        elif tensor.layout is not torch.strided or tensor.device.type == "meta":
            message = f"tensor {name} has layout {tensor.layout} on device {tensor.device}; a checkpoint holds dense tensors with values"
            hint = "use a dense tensor in the module's state, or compute it from parameters"
            problems.append(Problem(code="checkpoint.layout", field="train.model", message=message, hint=hint))
        elif DTYPES.get(dtype_name(tensor.dtype)) is not tensor.dtype:
            message = f"tensor {name} has dtype {dtype_name(tensor.dtype)}, which a checkpoint cannot hold"
            hint = f"use one of {', '.join(DTYPES)}, or register the buffer with persistent=False"
            problems.append(Problem(code="checkpoint.dtype", field="train.model", message=message, hint=hint))
    if problems:
        raise SpecError("checkpoint", problems)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory that this process has of a tensor, whole or a DTensor."""
    if hasattr(tensor, "to_local"):
        with torch.no_grad():
            local: torch.Tensor = tensor.to_local()
        return local
    return tensor.detach()


Signature = tuple[tuple[object, ...], ...]
"""What the layout of a state depends on: the same for the states of two saves as a rule."""


def signature_of(state: State) -> Signature:
    """Return the names, dtypes, shapes, devices and placements of a state, without looking at a value."""
    return tuple(
        (
            *(name, tensor.dtype, tensor.shape, tensor.layout, tensor.device),
            # Of a DTensor.
            *((tensor.placements, id(tensor.device_mesh)) if hasattr(tensor, "placements") and hasattr(tensor, "device_mesh") else ()),
        )
        for name, tensor in state.items()
    )


class Cells:
    """Memory for copies of tensors: as large as asked for so far, all of it touched, and pinned where there is a GPU."""

    def __init__(self) -> None:
        self._cells: torch.Tensor | None = None
        self._reserving: Future[torch.Tensor] | None = None

    def reserve(self, num_bytes: int, pool: Background) -> None:
        """Begin to allocate so many bytes in the background."""
        if num_bytes:
            self._reserving = pool.submit(_allocated, num_bytes)

    def of(self, num_bytes: int) -> torch.Tensor:
        """Return at least so many bytes; those of the last call are no longer valid where it is another tensor."""
        if self._reserving is not None:
            reserving, self._reserving = self._reserving, None
            self._cells = reserving.result()
        if self._cells is None or self._cells.numel() < num_bytes:
            # Without the old ones: both are not needed at once.
            self._cells = None
            self._cells = _allocated(num_bytes)
        return self._cells


@dataclass(frozen=True, slots=True)
class _TensorTargets:
    """Where the tensors of states with one signature are copied to."""

    signature: Signature
    cells: torch.Tensor
    index: Index
    num_bytes: int
    names: Sequence[str]
    views: Sequence[torch.Tensor]


class TensorBuffer:
    """What a state is copied to before it is written."""

    def __init__(self) -> None:
        self._cells = Cells()
        self._targets: _TensorTargets | None = None

    def reserve(self, state: State, pool: Background) -> None:
        """Begin to allocate in the background what a copy of such tensors needs."""
        self._cells.reserve(_layout(state)[1], pool)

    def check(self, state: State) -> Signature:
        """Refuse a state that could not be restored (`check_savable`), unless the last one was like it."""
        signature = signature_of(state)
        if self._targets is None or self._targets.signature != signature:
            check_savable(state)
        return signature

    def copy(self, state: State, signature: Signature) -> tuple[Index, memoryview]:
        """Return where each tensor lies among the bytes, and the bytes: valid until the next copy.

        Args:
            signature: of this state.
        """
        targets = self._targets_of(state, signature)
        copy_all(targets.views, [state[name] for name in targets.names])
        return targets.index, memoryview(targets.cells.numpy().data)[: targets.num_bytes]

    def _targets_of(self, state: State, signature: Signature) -> _TensorTargets:
        if self._targets is not None and self._targets.signature == signature:
            return self._targets
        index, num_bytes = _layout(state)
        self._targets = None
        cells = self._cells.of(num_bytes)
        views = {name: view_of(cells, entry["offset"], state[name]) for name, entry in index.items() if state[name].numel()}
        end = 0
        for name in views:
            # What an earlier layout left between two tensors is no part of this one.
            cells[end : index[name]["offset"]].zero_()
            end = index[name]["offset"] + state[name].numel() * state[name].element_size()
        cells[end:num_bytes].zero_()
        self._targets = _TensorTargets(signature, cells, index, num_bytes, list(views), list(views.values()))
        return self._targets


def view_of(cells: torch.Tensor, offset: int, tensor: torch.Tensor) -> torch.Tensor:
    """Return bytes at an offset, a multiple of the item's size, as a tensor like `tensor`."""
    size = tensor.numel() * tensor.element_size()
    return cells[offset : offset + size].view(tensor.dtype).view(tensor.shape)


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy tensors in one call, and return once the sources may change."""
    if not targets:
        return
    is_on_gpu = any(source.device.type == "cuda" for source in sources)
    with torch.no_grad():
        torch._foreach_copy_(list(targets), list(sources), non_blocking=is_on_gpu)
    if is_on_gpu:
        torch.cuda.current_stream().synchronize()


def tensors_of(data: bytearray, index: Index) -> dict[str, torch.Tensor]:
    """Return copies of the tensors of a checkpoint's bytes, whose index was checked (`training.engine.checkpoint.reader`)."""
    return {name: _tensor(data, **entry) for name, entry in index.items()}


def _tensor(data: bytearray, *, dtype: str, shape: list[int], offset: int) -> torch.Tensor:
    num_items = torch.Size(shape).numel()
    if not num_items:
        return torch.empty(shape, dtype=DTYPES[dtype])
    return torch.frombuffer(data, dtype=DTYPES[dtype], count=num_items, offset=offset).reshape(shape).clone()


def _layout(state: State) -> tuple[Index, int]:
    """Return where each tensor of a state lies among its bytes, and how many these are."""
    index: dict[str, TensorEntry] = {}
    offset = 0
    for name in sorted(state):
        tensor = state[name]
        index[name] = {"dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape), "offset": offset}
        offset += padded(tensor.numel() * tensor.element_size())
    return index, offset


def _allocated(num_bytes: int) -> torch.Tensor:
    """Return a buffer whose pages are all in memory: the kernel gives them out at the first write."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available()).fill_(0)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
