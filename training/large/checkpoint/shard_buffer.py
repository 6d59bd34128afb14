"""The one copy out of a sharded training: this process's chunks, each at its place in memory that was touched before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from training.engine.checkpoint.chunks import num_items
from training.engine.checkpoint.tensors import (
    Background,
    Cells,
    Signature,
    State,
    check_savable,
    copy_all,
    local_part,
    signature_of,
    view_of,
)
from training.large.checkpoint.plan import ShardListing, local_parts

ALIGNMENT_BYTES: Final = 64
NUM_LAYOUTS: Final = 4
"""Without and with the optimizer's state, without and with the best weights."""


@dataclass(eq=False, slots=True)
class BufferLayout:
    """What this process has of the states with one signature."""

    signature: Signature
    listing: ShardListing
    assigned: Sequence[int] | None = None
    """Numbers of the chunks that it writes; None: the ranks have not agreed yet, so it copies all that it has."""

    @property
    def copied(self) -> Sequence[int]:
        if self.assigned is not None:
            return self.assigned
        return [number for number, chunk in enumerate(self.listing.chunks) if num_items(chunk.sizes)]


class Layouts:
    """The layouts of the last saves: to list the chunks of a thousand tensors takes longer than to copy them."""

    def __init__(self) -> None:
        self._known: list[BufferLayout] = []

    def of(self, state: State) -> BufferLayout:
        """Return the layout of a state.

        Raises:
            SpecError: see `check_savable`.
        """
        signature = signature_of(state)
        for known in self._known:
            if known.signature == signature:
                return known
        check_savable(state)
        layout = BufferLayout(signature, ShardListing.of(state))
        self._known = [layout, *self._known[: NUM_LAYOUTS - 1]]
        return layout


@dataclass(frozen=True, slots=True)
class Copied:
    """The bytes of one save, valid until the next one from the same buffer."""

    layout: BufferLayout
    chunks: Mapping[int, memoryview]
    """By number of the chunk in the layout's listing."""


@dataclass(frozen=True, slots=True)
class _ShardTargets:
    layout: BufferLayout
    numbers: Sequence[int]
    names: Sequence[str]
    views: Sequence[torch.Tensor]
    copied: Copied


class ShardBuffer:
    """What a process's part of a state is copied to before it is written."""

    def __init__(self) -> None:
        self._cells = Cells()
        self._targets: _ShardTargets | None = None

    def reserve(self, layout: BufferLayout, pool: Background) -> None:
        """Begin to allocate in the background what a copy needs."""
        self._cells.reserve(_places(layout, layout.copied)[1], pool)

    def copy(self, layout: BufferLayout, state: State) -> Copied:
        """Return copies of this process's chunks."""
        targets = self._targets_of(layout, state)
        copy_all(targets.views, local_parts(state, targets.names))
        return targets.copied

    def _targets_of(self, layout: BufferLayout, state: State) -> _ShardTargets:
        numbers = layout.copied
        if self._targets is not None and self._targets.layout is layout and self._targets.numbers == numbers:
            return self._targets
        self._targets = None
        places, num_bytes = _places(layout, numbers)
        cells = self._cells.of(num_bytes)
        data = memoryview(cells.numpy().data)
        chunks = layout.listing.chunks
        views = [view_of(cells, places[number], local_part(state[chunks[number].name])) for number in numbers]
        copied = Copied(layout, {number: data[places[number] : places[number] + chunks[number].num_bytes] for number in numbers})
        self._targets = _ShardTargets(layout, numbers, [chunks[number].name for number in numbers], views, copied)
        return self._targets


def _places(layout: BufferLayout, numbers: Sequence[int]) -> tuple[dict[int, int], int]:
    """Return where each chunk is copied to, and how many bytes they need."""
    places, end = {}, 0
    for number in numbers:
        places[number] = end
        end += -(-layout.listing.chunks[number].num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return places, end
