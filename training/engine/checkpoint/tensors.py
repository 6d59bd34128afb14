"""The tensors of a checkpoint: which can be saved, the one copy out of the training, and back from the bytes that were stored."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor, Future
from typing import Final

import torch

from training.engine.checkpoint.format import ITEM_BYTES, Entry, Index, padded
from training.errors import Problem, SpecError

DTYPES: Final = {name: getattr(torch, name) for name in ITEM_BYTES}

State = Mapping[str, torch.Tensor]


def check_savable(state: State) -> None:
    """Refuse tensors that no checkpoint can be restored with; their values are not looked at.

    Raises:
        SpecError: `checkpoint.dtype` or `checkpoint.layout`, one problem for each tensor.
    """
    problems = []
    for name, tensor in sorted(state.items()):
        if tensor.layout is not torch.strided or tensor.device.type == "meta":
            message = f"tensor {name} has layout {tensor.layout} on device {tensor.device}; a checkpoint holds dense tensors with values"
            hint = "use a dense tensor in the module's state, or compute it from parameters"
            problems.append(Problem(code="checkpoint.layout", field="train.model", message=message, hint=hint))
        elif DTYPES.get(_dtype_name(tensor)) is not tensor.dtype:
            message = f"tensor {name} has dtype {_dtype_name(tensor)}, which a checkpoint cannot hold"
            hint = f"use one of {', '.join(DTYPES)}, or register the buffer with persistent=False"
            problems.append(Problem(code="checkpoint.dtype", field="train.model", message=message, hint=hint))
    if problems:
        raise SpecError("checkpoint", problems)


class TensorBuffer:
    """What a state is copied to before it is written: as large as the largest one so far, and pinned where there is a GPU."""

    def __init__(self) -> None:
        self._cells: torch.Tensor | None = None
        self._reserving: Future[torch.Tensor] | None = None

    def reserve(self, state: State, pool: Executor) -> None:
        """Begin to allocate in the background what a copy of such tensors needs."""
        _, num_bytes = _layout(state)
        if num_bytes:
            self._reserving = pool.submit(_allocated, num_bytes)

    def copy(self, state: State) -> tuple[Index, memoryview]:
        """Return where each tensor lies among the bytes, and the bytes: valid until the next copy."""
        index, num_bytes = _layout(state)
        buffer = self._of(num_bytes)
        for name, entry in index.items():
            tensor = state[name].detach().resolve_conj().resolve_neg().contiguous()
            size = tensor.numel() * tensor.element_size()
            if size:
                buffer[entry["offset"] : entry["offset"] + size].copy_(tensor.reshape(-1).view(torch.uint8))
        return index, memoryview(buffer.numpy().data)[:num_bytes]

    def _of(self, num_bytes: int) -> torch.Tensor:
        if self._reserving is not None:
            reserving, self._reserving = self._reserving, None
            self._cells = reserving.result()
        if self._cells is None or self._cells.numel() < num_bytes:
            self._cells = _allocated(num_bytes)
        return self._cells


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
    index: dict[str, Entry] = {}
    offset = 0
    for name in sorted(state):
        tensor = state[name]
        index[name] = {"dtype": _dtype_name(tensor), "shape": list(tensor.shape), "offset": offset}
        offset += padded(tensor.numel() * tensor.element_size())
    return index, offset


def _allocated(num_bytes: int) -> torch.Tensor:
    """Return a buffer whose pages are all in memory: the kernel gives them out at the first write."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available()).fill_(0)


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
