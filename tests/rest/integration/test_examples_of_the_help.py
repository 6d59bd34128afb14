"""Each example of a `--help`, run on an installation that has one night and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_examples import examples
from tests.integration.installation import ROOT, Installation

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

PIPELINE, NIGHT = "search_ranking", "night-2026-02-01"
ORDERS = ROOT / "docs" / "examples" / "cancelled_orders" / "data" / "orders.csv"
REFUSED = {
    "approve": (77, "[version.unknown]"),
    "decline": (77, "[version.unknown]"),
    "rollback": (77, "[rollback.nothing]"),
    "compare": (77, "[version.unknown]"),
    "datasets show": (77, "[snapshot.unknown]"),
    "datasets deprecate": (77, "[snapshot.unknown]"),
    "backfill": (77, "[pipeline.paused]"),
}
"""Beginning of an example to its exit code and error here: the installation has one night, and nobody who types."""


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation of its own: in a shared one the night that the examples name would reuse what earlier tests trained."""
    made = Installation.start(tmp_path_factory.mktemp("examples"))
    try:
        yield made
    finally:
        made.stop()


def test_each_example_of_the_help_runs(fresh: Installation, tmp_path: Path) -> None:
    """The night that they name is run first. Those that need what is not here are refused for that reason, and for no other."""
    run = fresh.trigger(PIPELINE, {"as_of": "2026-02-01T02:00:00+00:00"}, run_id=NIGHT)
    assert fresh.wait(PIPELINE, run) == "success", fresh.why(PIPELINE, run)
    fresh.api.patch(f"/dags/{PIPELINE}", {"is_paused": True})
    (tmp_path / "dags").symlink_to(fresh.dags)
    shutil.copy(ORDERS, tmp_path / "orders.csv")
    failed = []
    for words in examples():
        command = [sys.executable, "-m", "nightshift.console", *words]
        # `open` finds no browser.
        environment = {**fresh.environment, "BROWSER": "false"}
        done = subprocess.run(command, env=environment, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        beginning = next((each for each in REFUSED if " ".join(words).startswith(each)), None)
        code, error = (0, "") if beginning is None else REFUSED[beginning]
        if (done.returncode, error in done.stderr) != (code, True):
            failed.append(f"{words} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    assert not failed, "\n\n".join(failed)
