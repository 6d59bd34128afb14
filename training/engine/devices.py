"""Which device a process trains on, and what all processes together can use for their gradients.

torch is imported where it is used: trees are trained without it.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Self

from training.errors import spec_error
from training.installation import LOCAL_RANK, WholeNumber

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

LOCAL_WORLD_SIZE: Final = WholeNumber(
    name="LOCAL_WORLD_SIZE", number=1, default="1", set_by="others", meaning="torchrun: number of processes of a training on the node"
)
WITHOUT_GPU: Final = "to train on CPUs, set CUDA_VISIBLE_DEVICES to nothing for the installation"


@dataclass(frozen=True, kw_only=True, slots=True)
class DevicePlace:
    """What one process trains on."""

    type: str
    """`cpu` or `cuda`."""
    index: int = 0
    is_shared: bool = False
    """Whether another process of the node may have the same GPU."""

    @classmethod
    def of_this_process(cls) -> Self:
        """Return the place by LOCAL_RANK. Processes of a node take its GPUs in turn: with fewer GPUs than processes, they share them.

        Raises:
            SpecError: `settings.number`, a variable is not a number.
        """
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            return cls(type="cpu")
        local_rank, num_local = LOCAL_RANK.read(), LOCAL_WORLD_SIZE.read()
        return cls(type="cuda", index=local_rank % count, is_shared=max(num_local, local_rank + 1) > count)

    @property
    def device(self) -> torch.device:
        import torch

        return torch.device("cuda", self.index) if self.type == "cuda" else torch.device("cpu")

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        return cls(**json.loads(text))


def backend_of(places: Sequence[DevicePlace]) -> str:
    """Return the backend of the gradients for the places of all ranks, in their order.

    NCCL takes one process for each GPU, so processes that share one use gloo, which copies through the CPU.

    Raises:
        SpecError: `device.mixed`, some ranks have a GPU and others have none: their steps would have other bits and other speeds.
    """
    without = [rank for rank, place in enumerate(places) if place.type != "cuda"]
    if not without:
        if any(place.is_shared for place in places):
            logger.warning("processes share GPUs: gradients go through gloo, which is slower than NCCL with a GPU for each process")
            return "gloo"
        return "nccl"
    if len(without) < len(places):
        message = f"{len(places) - len(without)} of {len(places)} ranks have a GPU; ranks without one: {_listed(without)}"
        hint = f"run all nodes of the training with GPUs and the same image; {WITHOUT_GPU}"
        raise spec_error("train.placement", "device.mixed", message, hint=hint, field="train.placement")
    return "gloo"


def check_expected(device: torch.device | DevicePlace, expected: str | None) -> None:
    """Compare the device with the one that the work is named after (`parameters["device"]`; None: the CPU).

    Raises:
        SpecError: `device.missing`, the work is a training on GPUs, and this process has none.
    """
    if expected is not None and device.type != expected:
        message = f"the training is to run on {expected}, this process has only {device.type} (torch {importlib.metadata.version('torch')})"
        hint = f"check the GPU's driver, CUDA_VISIBLE_DEVICES and the image's build of torch; {WITHOUT_GPU}"
        raise spec_error("train.placement", "device.missing", message, hint=hint, field="train.placement.gpus")
    if expected is None and device.type != "cpu":
        logger.warning("training on %s, which is not part of this work's id", device.type)


def device_words(device: torch.device | DevicePlace) -> str:
    """Return the device for a record: `cpu`, or `cuda (NVIDIA H100 80GB HBM3)`."""
    if device.type != "cuda":
        return device.type
    import torch

    return f"cuda ({torch.cuda.get_device_name(device.index)})"


def _listed(ranks: Sequence[int], most: int = 10) -> str:
    return ", ".join(map(str, ranks[:most])) + (" …" if len(ranks) > most else "")
