from __future__ import annotations

import os
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from devstack.__main__ import main, say
from devstack.next_night import BadDayError, Night, PastRun, next_night, parse_conf, parse_day, slot_of
from devstack.run_command import _trigger
from training.contracts import ExitCode, instant_of
from training.spec import PipelineSpec, load_spec

PIPELINES = Path(__file__).resolve().parents[3] / "dags" / "pipelines"
NOW = datetime(2026, 11, 20, 15, 4, 5, tzinfo=UTC)


@pytest.fixture
def ranking() -> PipelineSpec:
    return load_spec(PIPELINES / "search_ranking.yaml")


def test_first_night_lies_where_the_data_lies(ranking: PipelineSpec) -> None:
    assert next_night(ranking, [], wanted=None, now=NOW) == Night("night-2026-02-01", instant_of("2026-02-01T02:00:00+00:00"))


def test_night_is_counted_in_the_pipelines_time_zone() -> None:
    flights = load_spec(PIPELINES / "flight_delay.yaml")

    assert next_night(flights, [], wanted=None, now=NOW).as_of == instant_of("2013-03-15T02:00:00-04:00")
    assert slot_of(flights, date(2013, 1, 15)).isoformat() == "2013-01-15T02:00:00-05:00"


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        (PastRun("night-2026-02-03", "success"), Night("night-2026-02-04", instant_of("2026-02-04T02:00:00+00:00"))),
        (PastRun("night-2026-02-03", "failed"), Night("night-2026-02-03.2", instant_of("2026-02-03T02:00:00+00:00"))),
        (PastRun("night-2026-02-03.2", "failed"), Night("night-2026-02-03.3", instant_of("2026-02-03T02:00:00+00:00"))),
        (PastRun("night-2026-02-03.2", "success"), Night("night-2026-02-04", instant_of("2026-02-04T02:00:00+00:00"))),
        (PastRun("night-2026-02-03", "running"), Night("night-2026-02-03", instant_of("2026-02-03T02:00:00+00:00"), running_already=True)),
        (
            PastRun("night-2026-02-03.2", "queued"),
            Night("night-2026-02-03.2", instant_of("2026-02-03T02:00:00+00:00"), running_already=True),
        ),
    ],
)
def test_next_night_follows_from_how_the_newest_ended(ranking: PipelineSpec, newest: PastRun, expected: Night) -> None:
    older = [PastRun("night-2026-02-03", "failed"), PastRun("night-2026-02-02", "success")]

    assert next_night(ranking, [newest, *older], wanted=None, now=NOW) == expected


def test_night_that_has_not_come_is_a_run_as_of_the_present(ranking: PipelineSpec) -> None:
    by_hand = Night("by-hand-2026-11-20T150405", None)
    assert next_night(ranking, [PastRun("night-2026-11-20", "success")], wanted=None, now=NOW) == by_hand
    assert next_night(ranking, [PastRun("night-2026-11-19", "success")], wanted=None, now=NOW).run_id == "night-2026-11-20"
    # A table without a time: its pipeline has no schedule.
    by_itself = ranking.model_copy(update={"schedule": None, "name": "orders"})
    assert next_night(by_itself, [PastRun("night-2026-11-20", "success")], wanted=None, now=NOW) == by_hand


def test_wanted_night_is_run_again_under_a_new_name(ranking: PipelineSpec) -> None:
    runs = [PastRun("night-2026-02-02", "success"), PastRun("night-2026-02-01", "success")]

    assert next_night(ranking, runs, wanted=date(2026, 2, 1), now=NOW) == Night(
        "night-2026-02-01.2", instant_of("2026-02-01T02:00:00+00:00")
    )


def test_older_night_run_again_by_name_does_not_turn_time_back(ranking: PipelineSpec) -> None:
    runs = [PastRun("night-2026-02-01.2", "failed"), PastRun("night-2026-02-05", "success"), PastRun("night-2026-02-01", "success")]

    assert next_night(ranking, runs, wanted=None, now=NOW).run_id == "night-2026-02-06"


def test_runs_that_were_started_otherwise_do_not_count(ranking: PipelineSpec) -> None:
    runs = [PastRun("manual__2026-11-20T00:00:00+00:00", "success"), PastRun("night-x", "success")]

    assert next_night(ranking, runs, wanted=None, now=NOW).run_id == "night-2026-02-01"


def test_pipeline_without_simulated_nights_runs_for_the_present(ranking: PipelineSpec) -> None:
    own = ranking.model_copy(update={"name": "churn"})

    assert next_night(own, [], wanted=None, now=NOW) == Night("by-hand-2026-11-20T150405", None)
    assert next_night(own, [], wanted=date(2026, 1, 5), now=NOW).run_id == "night-2026-01-05"


def test_run_on_a_snapshot_is_no_night_unless_one_is_wanted(ranking: PipelineSpec) -> None:
    runs = [PastRun("night-2026-02-01", "success")]

    assert next_night(ranking, runs, wanted=None, now=NOW, has_own_instant=True) == Night("by-hand-2026-11-20T150405", None)
    assert next_night(ranking, runs, wanted=date(2026, 2, 1), now=NOW, has_own_instant=True).run_id == "night-2026-02-01.2"


def test_pipeline_without_a_schedule_has_its_nights_at_midnight(ranking: PipelineSpec) -> None:
    by_hand = ranking.model_copy(update={"schedule": None})

    assert slot_of(by_hand, date(2026, 2, 1)).isoformat() == "2026-02-01T00:00:00+00:00"


def test_wanted_day_without_a_slot_is_refused_and_the_next_slot_named(ranking: PipelineSpec) -> None:
    weekly = ranking.model_copy(update={"schedule": "0 2 * * 1"})

    with pytest.raises(BadDayError, match=r"night\.no_slot.*has no slot on 2026-02-10.*2026-02-16") as caught:
        next_night(weekly, [], wanted=date(2026, 2, 10), now=NOW)
    assert caught.value.exit_code == 64


def test_next_night_of_a_weekly_schedule_is_its_next_slot(ranking: PipelineSpec) -> None:
    weekly = ranking.model_copy(update={"schedule": "0 2 * * 1"})

    night = next_night(weekly, [PastRun("night-2026-02-09", "success")], wanted=None, now=NOW)

    assert night == Night("night-2026-02-16", instant_of("2026-02-16T02:00:00+00:00"))


@pytest.mark.parametrize("text", ["2014-13-40", "tomorrow", "", "20140101", "2014-W01-1", "0001-01-01", "9999-12-31", "2014-01-01T00:00"])
def test_night_that_is_no_date_is_an_error_with_code_and_remedy(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "flight_delay", f"--night={text}"]) == 64

    said = capsys.readouterr().err
    assert said.startswith(f"error: [night.date] {text!r} is not a date between 1971 and 2099")
    assert "YYYY-MM-DD" in said


def test_night_is_read_as_a_day() -> None:
    assert parse_day("2014-01-31") == date(2014, 1, 31)


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ('{"as_off": "2026-02-01"}', "as_off: [conf.unknown_key] unknown key 'as_off' (did you mean as_of?)"),
        ('{"train": {"settings": {"hiden": [8]}}}', "train.settings.hiden: [conf.unknown_key] unknown key 'hiden' (did you mean hidden?)"),
        ('{"evaluate": {"confidence": 2}}', "evaluate.confidence: [field.range] must be at most 0.9999, got 2.0"),
        ('{"as_of": "2026-02-01"}', "as_of: [night.conf] as_of is chosen by make run (NIGHT=YYYY-MM-DD chooses the night)"),
        ("{train: 3}", "[night.conf] '{train: 3}' is not a JSON object"),
        ("[]", "[night.conf] '[]' is not a JSON object"),
    ],
)
def test_make_run_refuses_wrong_overrides_before_anything_starts(
    installation: Path, capsys: pytest.CaptureFixture[str], conf: str, said: str
) -> None:
    assert main(["run", "search_ranking", "--conf", conf]) == ExitCode.BAD_SPEC
    assert said in capsys.readouterr().err
    assert list(installation.iterdir()) == []


def test_overrides_are_in_the_conf_of_the_night_that_is_triggered() -> None:
    sent: list[Any] = []
    client: Any = SimpleNamespace(create=lambda _path, body: sent.append(body))
    overrides = parse_conf('{"train": {"epochs": 5}, "force": false}')
    _trigger(
        client,
        "search_ranking",
        Night("night-2026-02-01", instant_of("2026-02-01T02:00:00+00:00")),
        overrides,
        force=True,
        say=lambda _text: None,
    )
    assert sent[0]["conf"] == {"train": {"epochs": 5}, "force": True, "as_of": "2026-02-01T02:00:00+00:00"}


def test_a_reader_that_has_seen_enough_ends_a_command_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as ended:
            say("a line")
        assert ended.value.code == 141
        say("goes nowhere, and pauses what was paused before")
