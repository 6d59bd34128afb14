"""Whole nights by `make run`'s command, each disturbed by signals: success, with the weights of an undisturbed night, and unattended.

DISTURBED_NIGHTS chooses how many (30), DISTURBED_SEED which (1); the records go to DISTURBED_RECORDS if it names a file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.chaos.disturbances import Role, disturbed_nights
from tests.chaos.night_harness import NIGHT_SECONDS, SAME, Harness, NightRecord, prepare

logger = logging.getLogger(__name__)

NIGHTS = int(os.environ.get("DISTURBED_NIGHTS", "30"))
SEED = int(os.environ.get("DISTURBED_SEED", "1"))
ENDS_COMMAND = (Role.COMMAND, Role.ALL_AND_COMMAND)

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    """Nights on an installation of their own; whatever they leave behind after the stop fails the test."""
    made = prepare(tmp_path / "home")
    try:
        yield Harness(made, SEED, Path(os.environ.get("DISTURBED_RECORDS", str(tmp_path / "nights.jsonl"))))
    finally:
        made.stop()


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
