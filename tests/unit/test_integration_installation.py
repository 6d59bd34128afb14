"""What tests on a real installation rely on, checked without one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.integration.installation import Installation, distant_schedule
from training.spec import load_spec
from training.spec.schedule.instants import next_slot

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    made = Installation(tmp_path, {"NIGHTSHIFT_HOME": str(tmp_path)})
    monkeypatch.setattr(Installation, "prepare", lambda _home: made)
    return made


@pytest.mark.parametrize("error", [AssertionError("not ready"), KeyboardInterrupt()])
def test_start_that_fails_stops_what_it_has_started(prepared: Installation, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    commands: list[str] = []

    def services(command: str) -> str:
        commands.append(command)
        if command == "start":
            raise error
        return ""

    monkeypatch.setattr(prepared, "services", services)

    with pytest.raises(type(error)):
        Installation.start(prepared.home)
    assert commands == ["start", "stop"]


@pytest.mark.parametrize("hour", range(24))
def test_slot_of_an_added_pipeline_is_half_a_day_away(hour: int) -> None:
    now = datetime(2026, 3, 31, hour, 59, 59, tzinfo=UTC)
    away = next_slot(distant_schedule(now), ZoneInfo("UTC"), now) - now
    assert timedelta(hours=11) < away <= timedelta(hours=12)


def test_added_pipeline_is_valid(tmp_path: Path) -> None:
    made = Installation(tmp_path, {"NIGHTSHIFT_HOME": str(tmp_path)})
    (made.dags / "pipelines").mkdir(parents=True)
    for name in ("search_ranking.py", "pipelines/search_ranking.yaml"):
        (made.dags / name).write_text((ROOT / "dags" / name).read_text())
    made.add_pipeline("small")
    assert load_spec(made.dags / "pipelines" / "small.yaml").name == "small"
    made.add_pipeline("nightly", schedule="0 2 * * 1-5")
    assert load_spec(made.dags / "pipelines" / "nightly.yaml").schedule == "0 2 * * 1-5"
