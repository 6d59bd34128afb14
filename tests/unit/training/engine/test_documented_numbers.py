"""Numbers that the guides state are those of the code."""

from __future__ import annotations

import re

import pytest

from training.engine.checkpoint.checkpoints import DEFAULT_KEEP
from training.engine.checkpoint.chunks import OWN_BLOCK_BYTES
from training.large import stragglers
from training.large.checkpoint.savers import SILENCE_SECONDS
from training.large.checkpoint.sharded_writer import MAX_IN_FLIGHT
from training.large.compression import POWERSGD_RANK, UNCOMPRESSED_STEPS
from training.large.planning.costs import MFU
from training.large.planning.devices import DEVICES_PER_NODE, GIB, KINDS, USABLE_SHARE
from training.large.sharded import MIN_ALONE_BYTES, MIN_BLOCK_BYTES
from training.runtime.provenance import CHECKOUT
from training.spec.sections.train import DEFAULT_BATCH_SIZE, Checkpoint, Train

MIB = 1 << 20


def guide(name: str) -> str:
    return (CHECKOUT / "docs" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "words", "found", "expected"),
    [
        ("training", "first ten steps uncompressed", UNCOMPRESSED_STEPS, 10),
        ("reference/spec", "PowerSGD's matrices; absent: 4", POWERSGD_RANK, 4),
        ("reference/spec", "for a class of your own: 1,024", DEFAULT_BATCH_SIZE, 1024),
        ("checkpoints", "the save fails after 10 min without a block", SILENCE_SECONDS, 600),
        ("checkpoints", "Two saves may be under way", MAX_IN_FLIGHT, 2),
        ("checkpoints", "a tensor from 128 KiB on begins", OWN_BLOCK_BYTES, 128 * 1024),
        ("checkpoints", "`train.replica_check_steps` (default 1,000", Train.model_fields["replica_check_steps"].default, 1000),
        ("large-models", "`train.straggler_ratio` (default 1.5", Train.model_fields["straggler_ratio"].default, 1.5),
        ("large-models", "a window of at least ten steps", stragglers.WINDOW_STEPS, 10),
        ("large-models", "and about 0.25 s", stragglers.WINDOW_SECONDS, 0.25),
        ("large-models", "slow in three windows in a row", stragglers.WINDOWS_IN_A_ROW, 3),
        ("large-models", "the difference is a tenth of a step", stragglers.LEAST_COST, 0.1),
        ("large-models", "in three windows of 10 s", stragglers.LONG_WINDOW_SECONDS, 10),
        ("large-models", "at most 40 of them in a window", 2 * stragglers.MAX_MEASURED_STEPS, 40),
        ("reference/spec", "| `keep` | integer, >= 1 and <= 1,000 | `3`", Checkpoint.model_fields["keep"].default, DEFAULT_KEEP),
        ("large-models", "members of ModuleLists and Sequentials from 1 MiB on", MIN_BLOCK_BYTES, MIB),
        ("large-models", "layers from 16 MiB on", MIN_ALONE_BYTES, 16 * MIB),
        ("large-models", "Computing at 40 % of the device's rate", MFU, 0.4),
        ("large-models", "90% of the memory can be filled", USABLE_SHARE, 0.9),
        ("reference/commands", "devices of a node (8)", DEVICES_PER_NODE, 8),
    ],
)
def test_number_of_a_guide_is_that_of_the_code(name: str, words: str, found: float, expected: float) -> None:
    assert words in guide(name)
    assert found == expected


def test_table_of_devices_is_that_of_the_planner() -> None:
    rows = re.findall(
        r"^\| `([^`]+)` \| ([\d.]+) GiB \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", guide("large-models"), re.MULTILINE
    )
    found = {name: [float(cell) for cell in cells] for name, *cells in rows}
    assert found.keys() == KINDS.keys()
    for name, kind in KINDS.items():
        rates = [kind.flops / 1e12, kind.memory_rate / 1e9, kind.node_rate / 1e9, kind.network_rate / 1e9]
        assert found[name] == pytest.approx([kind.memory_bytes / GIB, *rates], rel=1e-6), name
