"""Which nights a backfill has, and how it ends; tests/rest/integration runs some."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from devstack import backfill
from devstack.__main__ import main
from devstack.backfill import BackfillRange, Row, _ending, nights_of, table
from devstack.next_night import BadDayError
from training.spec import PipelineSpec, load_spec

PIPELINES = Path(__file__).resolve().parents[3] / "dags" / "pipelines"
NOW = datetime(2026, 11, 20, 15, 4, 5, tzinfo=UTC)


@pytest.fixture
def ranking() -> PipelineSpec:
    return load_spec(PIPELINES / "search_ranking.yaml")


def order(first: str, last: str) -> BackfillRange:
    return BackfillRange(first=date.fromisoformat(first), last=date.fromisoformat(last))


def test_every_day_with_a_slot_is_a_night_and_others_are_left_out(ranking: PipelineSpec) -> None:
    workdays = ranking.model_copy(update={"schedule": "0 2 * * 1-5"})

    assert nights_of(ranking, order("2026-02-06", "2026-02-09"), now=NOW) == [date(2026, 2, day) for day in (6, 7, 8, 9)]
    assert nights_of(workdays, order("2026-02-06", "2026-02-09"), now=NOW) == [date(2026, 2, 6), date(2026, 2, 9)]
    assert nights_of(ranking.model_copy(update={"schedule": None}), order("2026-02-06", "2026-02-06"), now=NOW) == [date(2026, 2, 6)]


def test_several_slots_a_day_are_one_night(ranking: PipelineSpec) -> None:
    hourly = ranking.model_copy(update={"schedule": "15 * * * *"})

    assert nights_of(hourly, order("2026-02-06", "2026-02-07"), now=NOW) == [date(2026, 2, 6), date(2026, 2, 7)]


def test_tonights_slot_counts_once_it_has_passed_in_the_pipelines_time_zone(ranking: PipelineSpec) -> None:
    in_new_york = ranking.model_copy(update={"timezone": "America/New_York"})
    today = order("2026-11-19", "2026-11-20")

    assert nights_of(in_new_york, today, now=datetime(2026, 11, 20, 7, 0, tzinfo=UTC)) == [date(2026, 11, 19), date(2026, 11, 20)]
    with pytest.raises(BadDayError, match=r"2026-11-20 has not come yet \(it is 2026-11-20 01:59 in America/New_York\)"):
        nights_of(in_new_york, today, now=datetime(2026, 11, 20, 6, 59, tzinfo=UTC))


@pytest.mark.parametrize(
    ("first", "last", "code", "remedy"),
    [
        ("2026-02-03", "2026-02-01", "backfill.range", "exchange them"),
        ("2026-11-19", "2026-11-25", "backfill.future", "TO=2026-11-20 is the last one"),
        ("2027-01-01", "2027-01-02", "backfill.future", "choose earlier dates"),
        ("2024-01-01", "2026-01-01", "backfill.too_many", "the first 400 are TO=2025-02-03"),
        ("1971-01-01", "2099-12-31", "backfill.too_many", "the first 400"),
    ],
)
def test_range_that_cannot_run_is_refused_with_its_remedy(ranking: PipelineSpec, first: str, last: str, code: str, remedy: str) -> None:
    with pytest.raises(BadDayError) as caught:
        nights_of(ranking, order(first, last), now=NOW)
    assert caught.value.code == code
    assert remedy in str(caught.value)
    assert caught.value.exit_code == 64


def test_range_without_a_slot_is_refused(ranking: PipelineSpec) -> None:
    mondays = ranking.model_copy(update={"schedule": "0 2 * * 1"})
    with pytest.raises(BadDayError, match=r"backfill\.empty.*'0 2 \* \* 1'"):
        nights_of(mondays, order("2026-02-10", "2026-02-14"), now=NOW)


@pytest.mark.parametrize("option", ["--from=2026-13-01", "--from=tomorrow", "--from="])
def test_day_that_is_none_is_refused_before_anything_is_started(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backfill", "search_ranking", option, "--to=2026-02-01"]) == 64
    assert "[night.date]" in capsys.readouterr().err


def test_table_has_a_line_for_each_night() -> None:
    rows = [Row(date(2026, 2, 1), "ndcg@10", "0.6363", "-", "accepted"), Row(date(2026, 2, 2), decision="failed")]

    assert table(rows).splitlines() == [
        "night       metric   new model  champion  decision",
        "2026-02-01  ndcg@10  0.6363     -         accepted",
        "2026-02-02  -        -          -         failed",
    ]


def test_backfill_that_stopped_says_how_to_continue(ranking: PipelineSpec) -> None:
    days = [date(2026, 2, day) for day in (1, 2, 3)]
    rows = [Row(days[0], decision="accepted"), Row(days[1], decision="failed")]

    text = _ending(ranking, order("2026-02-01", "2026-02-03"), days, rows)

    assert "2 of 3 nights are not done" in text
    assert "make backfill PIPELINE=search_ranking FROM=2026-02-02 TO=2026-02-03" in text
    assert "not done" not in _ending(ranking, order("2026-02-01", "2026-02-01"), days[:1], rows[:1])


def test_a_night_that_succeeded_says_where_its_reports_are(ranking: PipelineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(backfill, "stage_result", lambda *_of: None)
    monkeypatch.setattr(backfill, "save_reports", lambda *_of: [tmp_path / "evaluation.html"])
    settings: Any = SimpleNamespace(store=lambda: None)
    client: Any = None
    assert backfill.outcome(settings, client, ranking, date(2026, 2, 6), "night-2026-02-06", said.append) == Row(date(2026, 2, 6))
    assert said == [f"  report   {tmp_path}/evaluation.html"]
