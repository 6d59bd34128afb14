"""The check of days without rows: a day that is there and empty is a fault of the source more often than a day off."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import date, datetime, time, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from training.data.snapshot.label_delay import UnknownLabels
from training.spec.key_types import WEEKDAYS
from training.validation.results import CheckResult, Status, listed
from training.validation.snapshot_view import TableView


def check_days(
    view: TableView,
    span: tuple[datetime, datetime],
    zone: ZoneInfo,
    *,
    rows_per_day: Mapping[str, int],
    allowed: Literal["allow"] | Collection[str] | None,
    unknown: UnknownLabels | None,
) -> list[CheckResult]:
    """`data.empty_days` and `data.missing_days`: each whole day of the window has rows.

    A partition that is there without a row fails, unless its day may be empty; a partition that is not there warns, because whether a
    run waits for it is the schedule's to decide. Without partitions a day without rows warns.

    Args:
        span: begin and end of the window; days that lie in it in part are not looked at.
        rows_per_day: of the snapshot, by day in `zone`.
        allowed: `validate.empty_days`.
        unknown: `unknown_labels` of the snapshot: rows that are not in it, because their label is not known yet, are rows all the same.
    """
    counts = dict(rows_per_day)
    for day, found in ({} if unknown is None else unknown["days"]).items():
        counts[day] = max(counts.get(day, 0), found["rows"])
    days = _whole_days(span, zone)
    empty = [day for day in days if not counts.get(day.isoformat())]
    if not days:
        return []
    if not view.contract.partitioned:
        return [_result(view, "data.empty_days", "days of the window with rows", days, empty, allowed, "warned")]
    there = {facts["partition"] for facts in view.facts["parts"].values()}
    present, missing = ([day for day in empty if (day.isoformat() in there) is is_there] for is_there in (True, False))
    return [
        _result(view, "data.empty_days", "partitions of the window with rows", days, present, allowed, "failed"),
        _result(view, "data.missing_days", "days of the window with a partition", days, missing, None, "warned"),
    ]


def _result(
    view: TableView,
    code: str,
    check: str,
    days: list[date],
    empty: list[date],
    allowed: Literal["allow"] | Collection[str] | None,
    otherwise: Status,
) -> CheckResult:
    wrong = [day for day in empty if allowed is None or (allowed != "allow" and WEEKDAYS[day.weekday()] not in allowed)]
    words = "all of them" if allowed is None else "any" if allowed == "allow" else f"all but {', '.join(allowed)}"
    # A sentence of its own: a page joins it to the number of days that have rows.
    detail = f"days without rows: {_named(wrong)}" if wrong else f"days without rows, as allowed: {_named(empty)}" if empty else ""
    if wrong and otherwise == "failed":
        detail += "; repair the source, or allow such days: validate.empty_days: [sat, sun]"
    return CheckResult(
        code=code,
        check=check,
        table=view.name,
        status=otherwise if wrong else "passed",
        observed=f"{len(days) - len(empty)} of {len(days)}",
        allowed=words,
        detail=detail,
    )


def _named(days: list[date]) -> str:
    return listed([f"{day.isoformat()} ({WEEKDAYS[day.weekday()]})" for day in days])


def _whole_days(span: tuple[datetime, datetime], zone: ZoneInfo) -> list[date]:
    """Return the days that lie in the window from their first to their last instant."""
    first, last = (moment.astimezone(zone).date() for moment in span)
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    edges = [datetime.combine(day, time(), tzinfo=zone) for day in (*days, last + timedelta(days=1))]
    return [day for number, day in enumerate(days) if edges[number] >= span[0] and edges[number + 1] <= span[1]]
