"""A canary is judged on rows that are newer than it: a YAML by which there can be none is refused."""

from collections.abc import Callable

import pytest

from training.errors import Problem
from training.spec import PipelineSpec

Refuse = Callable[..., tuple[Problem, ...]]
Accept = Callable[..., PipelineSpec]
Change = tuple[str, str]

R = "search_ranking"
CANARY = ("approval: automatic", "approval: automatic, canary: {for: 3d}")


def time_is(sql: str) -> Change:
    return "event_time: shown_at", f'event_time: recorded_at\n    derive: {{recorded_at: {{type: timestamp, sql: "{sql}"}}}}'


def test_a_canary_of_rows_that_all_have_one_instant_is_refused(refuse: Refuse) -> None:
    found = {problem.field: problem for problem in refuse(R, CANARY, time_is("timezone('UTC', make_timestamp(2026, 11, 27, 0, 0, 0))"))}
    problem = found["promote.canary"]
    assert problem.code == "field.conflict"
    assert "all rows have one instant: recorded_at reads no column" in problem.message
    assert "promote.approval: required" in problem.hint


@pytest.mark.parametrize("changes", [(CANARY, time_is("shown_at")), (time_is("make_timestamptz(2026, 11, 27, 0, 0, 0.0)"),)])
def test_a_time_that_reads_a_column_and_a_pipeline_without_a_canary_are_accepted(changes: tuple[Change, ...], accept: Accept) -> None:
    assert accept(R, *changes).data.source.event_time == "recorded_at"
