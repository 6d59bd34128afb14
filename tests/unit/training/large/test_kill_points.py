"""A rank is killed at six points, after a step or inside a save; tests/rest has 37."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.training.large.kill_points import KillPoint, drawn, killed_and_resumed, undisturbed
from training.spec.layout import Layout

SEED = 12
LAYOUTS = {"ddp": (Layout(data=2), 3), "fsdp2": (Layout(shard=2), 2), "pipeline": (Layout(pipeline=2), 1)}
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
