"""Whole nights by `make run`'s command, each disturbed by signals: success, with the weights of an undisturbed night, and unattended.

DISTURBED_NIGHTS chooses how many (30), DISTURBED_SEED which (1); the records go to DISTURBED_RECORDS if it names a file.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.chaos.disturbances import Role, disturbed_nights
from tests.chaos.night_harness import NIGHT_SECONDS, SAME, Harness, NightRecord, prepare, roles_in, send
from tests.integration.installation import ROOT, Installation

logger = logging.getLogger(__name__)

NIGHTS = int(os.environ.get("DISTURBED_NIGHTS", "30"))
SEED = int(os.environ.get("DISTURBED_SEED", "1"))
ENDS_COMMAND = (Role.COMMAND, Role.ALL_AND_COMMAND)

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """Nights on an installation of their own; whatever they leave behind after the stop fails the test."""
    folder = tmp_path_factory.mktemp("disturbed")
    made = prepare(folder / "home")
    try:
        yield Harness(made, SEED, Path(os.environ.get("DISTURBED_RECORDS", str(folder / "nights.jsonl"))))
    finally:
        made.stop()


@pytest.mark.timeout(NIGHT_SECONDS)
def test_first_start_that_was_killed_while_it_made_databases_succeeds_the_next_time(harness: Harness) -> None:
    installation = harness.installation
    for database in ("mlflow/mlflow.db", "mlflow/accounts.db", "airflow/airflow.db"):
        draft = installation.home / f"{database}.draft"
        draft.unlink(missing_ok=True)  # Of the kill before.
        kill_start_when(installation, draft.exists)
    installation.services("start")


def kill_start_when(installation: Installation, reached: Callable[[], bool]) -> None:
    """Start the services, and kill the command and all that it started as soon as the condition holds, or once it has ended."""
    command = subprocess.Popen([sys.executable, "-m", "devstack", "start"], env=installation.environment, cwd=ROOT)
    installation.until(lambda: reached() or command.poll() is not None, "the moment", timeout_seconds=NIGHT_SECONDS)
    command.kill()
    command.wait()
    while every := roles_in(installation, None).get(Role.ALL):
        send(signal.SIGKILL, every)


@pytest.mark.timeout(NIGHT_SECONDS * (NIGHTS + 2))
def test_disturbed_nights_succeed_unattended_with_the_weights_of_undisturbed_ones(harness: Harness) -> None:
    records: list[NightRecord] = []
    for number, disturbances in islice(enumerate(disturbed_nights(SEED)), NIGHTS):
        record = harness.night(number, disturbances)
        logger.info("night %d (%s): %s after %.0f s", number, "; ".join(map(str, disturbances)), record.outcome, record.seconds)
        records.append(record)
    assert [record for record in records if record.outcome != SAME] == []
    assert all(any(one["pids"] for one in record.disturbances) for record in records), "a night was not disturbed"
    for record in records:
        # `make run` was started again only where a disturbance ended it.
        ended = [one for one in record.disturbances if one["pids"] and one["role"] in ENDS_COMMAND and not one["stop_seconds"]]
        assert len(record.exit_codes) == 1 + len(ended)
