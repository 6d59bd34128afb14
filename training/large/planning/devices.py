"""Kinds of devices that layouts are planned for, and `32xA100-80GB` as a number of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from training.errors import SpecError, shown, spec_error

GIB: Final = 1 << 30
DEVICES_PER_NODE: Final = 8
MAX_DEVICES: Final = 65_536
USABLE_SHARE: Final = 0.9
"""Of a device's memory: the rest is for the allocator's gaps and the buffers of libraries."""
_DEVICES = re.compile(r"(?P<count>[1-9]\d{0,5})x(?P<kind>[A-Za-z0-9-]{1,40})", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One kind of device. Rates are those of its maker's data sheet, and nobody reaches them."""

    name: str
    memory_bytes: int
    """As torch reports it, which is less than the name says."""
    flops: float
    """Of dense matrices, per second: bf16, or fp16 where it has no bf16; fp32 on a CPU."""
    memory_rate: float
    """Bytes per second between the device and its memory."""
    node_rate: float
    """Bytes per second that it sends to devices of its node."""
    network_rate: float
    """Bytes per second that it sends to other nodes, while all devices of its node do."""
    has_bf16: bool
    is_cpu: bool = False


def _gpu(name: str, gib: float, tflops: float, gb: float, node_gb: float, network_gb: float, *, has_bf16: bool = True) -> Device:
    return Device(
        name=name,
        memory_bytes=int(gib * GIB),
        flops=tflops * 1e12,
        memory_rate=gb * 1e9,
        node_rate=node_gb * 1e9,
        network_rate=network_gb * 1e9,
        has_bf16=has_bf16,
    )


KINDS: Final[Mapping[str, Device]] = {
    device.name: device
    for device in (
        _gpu("A100-40GB", 39.4, 312, 1555, 300, 25),
        _gpu("A100-80GB", 79.1, 312, 2039, 300, 25),
        _gpu("H100-80GB", 79.1, 989, 3350, 450, 50),
        _gpu("H200-141GB", 139.8, 989, 4800, 450, 50),
        _gpu("L4", 22.0, 121, 300, 32, 1.5),
        _gpu("T4", 14.6, 65, 320, 16, 1.5, has_bf16=False),
        _gpu("V100-16GB", 15.7, 125, 900, 150, 3, has_bf16=False),
        _gpu("V100-32GB", 31.7, 125, 900, 150, 3, has_bf16=False),
        Device(
            name="cpu", memory_bytes=16 * GIB, flops=5e10, memory_rate=2e10, node_rate=5e9, network_rate=1e9, has_bf16=False, is_cpu=True
        ),
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Devices:
    """The devices of a training: one process on each."""

    kind: Device
    count: int
    per_node: int
    """Neighbouring ranks on one node; at most `count`."""

    @property
    def usable_bytes(self) -> int:
        """Memory of one that a plan may fill."""
        return int(self.kind.memory_bytes * USABLE_SHARE)

    def words(self) -> str:
        nodes = -(-self.count // self.per_node)
        each = f"{self.kind.memory_bytes / GIB:.1f} GiB each"
        return f"{self.count} x {self.kind.name}, {each}, {nodes} node{'' if nodes == 1 else 's'} of {self.per_node}"


def parse_devices(text: str, *, per_node: int = DEVICES_PER_NODE, memory_bytes: int | None = None) -> Devices:
    """Read `32xA100-80GB`.

    Args:
        per_node: devices of one node, where there are so many.
        memory_bytes: of one device, in place of the table's.

    Raises:
        SpecError: `layout.devices`: it is not a number and a kind, there is no such kind, or whole nodes do not hold so many.
    """
    match = _DEVICES.fullmatch(text)
    known = {name.lower(): device for name, device in KINDS.items()}
    if match is None:
        raise _wrong(f"--devices {shown(text)} is not COUNTxKIND", "write a number, x and a kind: 32xA100-80GB")
    count, kind = int(match["count"]), known.get(match["kind"].lower())
    if kind is None:
        raise _wrong(f"--devices {shown(text)}: there is no kind {shown(match['kind'])}", f"known: {', '.join(KINDS)}")
    if count > MAX_DEVICES:
        raise _wrong(f"--devices {shown(text)}: at most {MAX_DEVICES:,} devices", "set a smaller number")
    if per_node < 1:
        raise _wrong(f"--per-node must be at least 1, got {per_node}", "set the number of devices of one node")
    if count > per_node and count % per_node:
        hint = f"set --per-node to a divisor of {count}, or --devices to a multiple of {per_node}"
        raise _wrong(f"--devices {shown(text)} are no whole nodes of {per_node}", hint)
    if memory_bytes is not None:
        kind = replace(kind, memory_bytes=memory_bytes)
    return Devices(kind=kind, count=count, per_node=min(per_node, count))


def _wrong(message: str, hint: str) -> SpecError:
    return spec_error("nightshift layout", "layout.devices", message, hint=hint)
