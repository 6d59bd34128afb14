"""The process dies at any point of a decision: aliases equal the ledger after the next look, and the retry ends as if nothing was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mlflow
import pytest

from tests.unit.training.registry.crashes import STORIES, DiedError, dying, new_model, prepare, tell
from tests.unit.training.registry.scenes import rows, seats
from training.registry.ledger.ledger import Ledger
from training.registry.mlflow.mirror import differences, mirror
from training.store import Store

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[5]
LEAST_POINTS = {"promotion": 22}


def aliases(registry: mlflow.MlflowClient, model: str) -> tuple[str | None, str | None]:
    found = registry.get_registered_model(model).aliases
    champion, canary = found.get("champion"), found.get("canary")
    return None if champion is None else str(champion), None if canary is None else str(canary)


def points_of(url: str, store: Store, registry: mlflow.MlflowClient, story: str) -> tuple[list[str], list[tuple[str, str, str]]]:
    """Return the points of an undisturbed run, and its decisions; of the many tags the first two, which are there whatever the clock says.

    A promotion's are all others; else what lies between two that change nothing is the same death twice, and is left out.
    """
    ledger, model = Ledger(url), new_model(store)
    prepare(ledger, store, model, story)
    with dying(url, None) as passed:
        tell(ledger, store, model, story)
    assert seats(ledger, model) == aliases(registry, model) == STORIES[story]
    tags = [name for name in passed if "version_tag" in name]
    points = [name for name in passed if name not in tags[4:]]
    if story != "promotion":
        points = [name for name in points if "commit" in name or name.startswith("after set") or name.startswith("after delete")]
    return points, rows(ledger, model)


def check_repaired(ledger: Ledger, store: Store, registry: mlflow.MlflowClient, model: str) -> None:
    mirror(ledger, store, model)
    assert aliases(registry, model) == seats(ledger, model)
    assert differences(ledger, store, model) == []
    assert ledger.unmirrored().get(model, 0) == 0


def dies_everywhere(url: str, store: Store, registry: mlflow.MlflowClient, story: str) -> int:
    """Let the story die once at each of its points; return how many there were."""
    points, undisturbed = points_of(url, store, registry, story)
    for point in points:
        ledger, model = Ledger(url), new_model(store)
        prepare(ledger, store, model, story)
        before = rows(ledger, model)
        with dying(url, point), pytest.raises(DiedError):
            tell(ledger, store, model, story)
        assert rows(ledger, model) in (before, undisturbed), point
        check_repaired(ledger, store, registry, model)
        tell(ledger, store, model, story)
        assert rows(ledger, model) == undisturbed, point
        assert seats(ledger, model) == aliases(registry, model) == STORIES[story], point
    sys.stdout.write(f"{story}: {len(points)} points\n")
    return len(points)


@pytest.mark.parametrize("story", STORIES)
def test_a_death_at_any_point_leaves_the_aliases_to_the_next_look_and_the_retry(
    story: str, tmp_path: Path, store: Store, registry: mlflow.MlflowClient
) -> None:
    assert dies_everywhere(f"sqlite:///{tmp_path}/ledger.db", store, registry, story) >= LEAST_POINTS.get(story, 8)


def test_a_death_at_any_point_of_an_approval_on_postgresql_is_repaired(
    empty_database: str, store: Store, registry: mlflow.MlflowClient
) -> None:
    if empty_database.startswith("sqlite"):
        pytest.skip("among the stories above")
    assert dies_everywhere(empty_database, store, registry, "approval approved") >= 8


def test_a_process_that_is_really_gone_leaves_its_work_to_the_next_one(
    tmp_path: Path, store: Store, registry: mlflow.MlflowClient, registry_uri: str
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger, module = Ledger(url), "tests.unit.training.registry.crashes"
    started = []
    for point in ("after commit 1", "after set_registered_model_alias 1"):
        model = new_model(store)
        prepare(ledger, store, model, "promotion")
        command = [sys.executable, "-m", module, url, registry_uri, str(tmp_path / "store"), model, "promotion", point]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}
        started.append((model, subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)))
    for model, process in started:
        assert process.wait(240) == 9
        check_repaired(ledger, store, registry, model)
        tell(ledger, store, model, "promotion")
        assert seats(ledger, model) == aliases(registry, model) == ("2", None)
        assert [version for version, _, _ in rows(ledger, model)] == ["1", "2"]
