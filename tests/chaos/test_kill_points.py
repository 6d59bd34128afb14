"""260 kill points of trainings in several processes, fifty of them with a state of 200 MB; see the 37 of tests/rest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.training.large.kill_points import KillPoint, drawn, killed_and_resumed, undisturbed
from training.spec.layout import Layout

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(900)]

SEED = 20261122
SMALL, LARGE = 16, 2600
"""Widths; the larger model has 13.5 million parameters: with AdamW and the best epoch's weights a state of 216 MB."""
CASES = {
    "ddp": (Layout(data=2), SMALL, 60),
    "fsdp2": (Layout(shard=2), SMALL, 60),
    "hsdp": (Layout(data=2, shard=2), SMALL, 30),
    "tensor": (Layout(tensor=2), SMALL, 20),
    "fsdp2-tensor": (Layout(shard=2, tensor=2), SMALL, 10),
    "pipeline": (Layout(pipeline=2), SMALL, 20),
    "ddp-pipeline": (Layout(data=2, pipeline=2), SMALL, 10),
    "ddp-large": (Layout(data=2), LARGE, 20),
    "fsdp2-large": (Layout(shard=2), LARGE, 30),
}
POINTS = [(name, point) for name, (layout, _, number) in CASES.items() for point in drawn(SEED, number, layout)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digest of each case's undisturbed weights."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return {name: undisturbed(layout, folder / name, width=width) for name, (layout, width, _) in CASES.items()}


@pytest.mark.parametrize(("name", "point"), POINTS, ids=[f"{name}-{number}-{point}" for number, (name, point) in enumerate(POINTS)])
def test_training_killed_at_a_point_ends_in_the_bits_of_the_undisturbed_one(
    whole: dict[str, str], tmp_path: Path, name: str, point: KillPoint
) -> None:
    layout, width, _ = CASES[name]
    found = killed_and_resumed(layout, tmp_path, point, width=width)
    assert found.digest == whole[name]
    assert found.from_step == found.committed_step, "nothing that was committed is lost"
    shutil.rmtree(tmp_path)
