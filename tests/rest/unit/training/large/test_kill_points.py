"""A rank is killed at 37 points, after a step or inside a save: the next attempt ends in the bits of the undisturbed training."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.training.large.kill_points import KillPoint, drawn, killed_and_resumed, undisturbed
from training.spec.layout import Layout

SEED = 12
LAYOUTS = {
    "ddp": (Layout(data=2), 7),
    "ddp of three": (Layout(data=3), 2),
    "fsdp2": (Layout(shard=2), 13),
    "hsdp": (Layout(data=2, shard=2), 3),
    "tensor": (Layout(tensor=2), 3),
    "fsdp2-tensor": (Layout(shard=2, tensor=2), 2),
    "pipeline": (Layout(pipeline=2), 5),
    "ddp-pipeline": (Layout(data=2, pipeline=2), 2),
}
POINTS = [(name, point) for name, (layout, number) in LAYOUTS.items() for point in drawn(SEED, number, layout)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digest of each layout's undisturbed weights."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return {name: undisturbed(layout, folder / name) for name, (layout, _) in LAYOUTS.items()}


@pytest.mark.parametrize(("name", "point"), POINTS, ids=[f"{name}-{point}" for name, point in POINTS])
def test_training_killed_at_a_point_ends_in_the_bits_of_the_undisturbed_one(
    whole: dict[str, str], tmp_path: Path, name: str, point: KillPoint
) -> None:
    found = killed_and_resumed(LAYOUTS[name][0], tmp_path, point)
    assert found.digest == whole[name]
    assert found.from_step == found.committed_step, "nothing that was committed is lost"


@pytest.mark.parametrize("layout", [Layout(data=2), Layout(shard=2), Layout(data=2, pipeline=2)], ids=Layout.words)
def test_training_whose_steps_change_buffers_ends_in_the_bits_of_the_undisturbed_one(layout: Layout, tmp_path: Path) -> None:
    expected = undisturbed(layout, tmp_path / "undisturbed", has_buffers=True)
    # In the middle of an epoch: its end gives all ranks the buffers of the first one. Two saves may be under way.
    found = killed_and_resumed(layout, tmp_path / "killed", KillPoint(0, 8), has_buffers=True)
    assert 5 <= found.from_step <= 7
    assert found.digest == expected
