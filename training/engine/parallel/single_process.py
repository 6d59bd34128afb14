"""The gang of a family that trains in one process and without torch, whose import takes 1.8 s of CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from training.engine.devices import DevicePlace

CPU: Final = DevicePlace(type="cpu")


@dataclass(frozen=True, slots=True)
class Alone:
    """One process on the CPU: the same answers as a `training.engine.parallel.gang.Gang` of one."""

    rank: ClassVar[int] = 0
    world_size: ClassVar[int] = 1
    is_first: ClassVar[bool] = True
    device: ClassVar[DevicePlace] = CPU

    def from_first(self, number: int) -> int:
        return number

    def sum(self, *numbers: float) -> list[float]:
        return [float(number) for number in numbers]

    def text_from_first(self, text: str) -> str:
        return text

    def wait_for_all(self) -> None:
        """Return at once: there is no other rank."""
