"""Two installations with the same code and data, and with stores of their own, in one namespace."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.plugins.execution.kubernetes.conftest import Night, Nights
from tests.unit.plugins.execution.kubernetes.kubernetes_api import RUNNING, SUCCEEDED, KubernetesApi
from training.store import Store

PLACEMENTS = pytest.mark.parametrize(("nodes", "plural"), [(1, "pods"), (2, "jobs")], ids=["pod", "gang"])


@pytest.fixture
def installations(night: Nights, tmp_path: Path) -> Callable[[int], tuple[Night, Night]]:
    def make(nodes: int) -> tuple[Night, Night]:
        mine = night({"nodes": nodes, "processes_per_node": 1} if nodes > 1 else None)
        return mine, Night(Store(str(tmp_path / "other")), mine.spec, mine.cluster, mine.stage)

    return make


@PLACEMENTS
def test_same_work_of_two_installations_runs_in_two_launches(
    api: KubernetesApi, installations: Callable[[int], tuple[Night, Night]], nodes: int, plural: str
) -> None:
    mine, other = installations(nodes)
    assert mine.advance().name != other.advance().name
    assert len(api.names(plural)) == 2


@PLACEMENTS
def test_neither_end_nor_stop_of_one_deletes_the_other_ones_launch(
    api: KubernetesApi, installations: Callable[[int], tuple[Night, Night]], nodes: int, plural: str
) -> None:
    mine, other = installations(nodes)
    task = mine.task()
    mine.advance(task)
    running = other.advance().name
    api.set_status(running, RUNNING, plural)
    task.stop()
    assert api.names(plural) == [running]
    waiting = mine.advance(mine.task(try_number=2))
    mine.begin()
    mine.commit()
    api.set_status(waiting.name, SUCCEEDED, plural)
    mine.advance()
    assert api.names(plural) == [running]
