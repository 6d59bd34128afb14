"""A variable that is not a number is an error with its name and a remedy, and without its value."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from training.engine.parallel.gang import COLLECTIVE_LIMIT, Gang, collective_timeout
from training.errors import SpecError
from training.installation import HOME, RANK, Seconds, WholeNumber

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("text", ["two minutes", "2m", "0", "-1", "nan", "inf", "1e9", "1,5"])
def test_seconds_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"WAIT_SECONDS: \[settings\.number\] is not a number of seconds \(write a number") as caught:
        Seconds(name="WAIT_SECONDS", meaning="", seconds=120).read({"WAIT_SECONDS": text})
    assert repr(text) not in str(caught.value)


@pytest.mark.parametrize("text", ["first", "-1", "1.0", "\u0661", "1" * 30])
def test_whole_number_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"RANK: \[settings\.number\] is not a whole number \(write digits"):
        RANK.read({"RANK": text})


def test_empty_variable_is_an_unset_one() -> None:
    limit, number = Seconds(name="X", meaning="", seconds=120), WholeNumber(name="X", meaning="", number=3)
    assert (limit.read({"X": " "}), number.read({})) == (120, 3)
    assert (limit.read({"X": " 0.5 "}), number.read({"X": "07"})) == (0.5, 7)
    assert (HOME.text({}), HOME.text({HOME.name: " /a "}), HOME.value({HOME.name: " /a "})) == ("", "/a", " /a ")


def test_gang_with_a_wrong_time_limit_is_refused_before_it_waits_for_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COLLECTIVE_LIMIT.name, "soon")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SpecError, match=rf"{COLLECTIVE_LIMIT.name}: \[settings\.number\] is not"):
        Gang.join()
    monkeypatch.setenv(COLLECTIVE_LIMIT.name, "7")
    assert collective_timeout().total_seconds() == 7


def test_stage_with_a_rank_that_is_no_number_ends_with_the_code_of_a_wrong_setting() -> None:
    environment = {**os.environ, "RANK": "first", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "training.stages.validate", "x"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 64
    assert "RANK: [settings.number] is not a whole number" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
