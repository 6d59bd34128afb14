"""One snapshot, all of its checks, in the order in which a person would want to read what failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq

from training.data.expressions import literal, quoted
from training.data.tables import ARROW_TYPES
from training.data.validation import checks
from training.data.validation.day_checks import check_days
from training.data.validation.drift import add_drift
from training.data.validation.label_checks import check_unknown_labels
from training.data.validation.results import CheckResult, Findings
from training.data.validation.snapshot_view import TableView, column_statistics
from training.data.validation.suites import CODE, load_suite, run_suite


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What the YAML asks of the data, beyond what is always asked."""

    as_of: datetime
    start: datetime
    end: datetime
    zone: ZoneInfo
    label: str
    volume_change: float | None
    freshness: timedelta | None
    unknown_labels: float | None = None
    """`validate.unknown_labels`"""
    empty_days: Any = None
    """`validate.empty_days`"""
    unknown: Mapping[str, Any] | None = None
    """`unknown_labels` of the snapshot's meta."""


def validate_snapshot(
    views: list[TableView],
    rules: Rules,
    previous: Mapping[str, Any] | None,
    *,
    on_table: Callable[[int, int], None],
    suites_path: Path | None = None,
) -> Findings:
    """Run every check on every table.

    Args:
        views: the main table's first.
        previous: `meta` of the snapshot to compare with, or None on the first night.
        on_table: called with (tables done, tables in all).
        suites_path: folder of the suites; None: the installation's.

    Raises:
        SpecError: `suite.missing`, `suite.invalid`.
    """
    findings = Findings()
    # Before anything slow: a suite that cannot be read is wrong whatever the data are.
    suites = {view.name: load_suite(view.contract.suite, suites_path) for view in views if view.contract.suite}
    for number, view in enumerate(views):
        is_main = number == 0
        findings.checks += _always_checked(view, findings, rules, is_main=is_main)
        if is_main:
            findings.rows_per_day = _rows_per_day(view, rules.zone)
            findings.unknown_labels = rules.unknown
            findings.checks += check_days(
                view,
                (rules.start, rules.end),
                rules.zone,
                rows_per_day=findings.rows_per_day,
                allowed=rules.empty_days,
                unknown=rules.unknown,
            )
            findings.checks += check_unknown_labels(view, rules.unknown, rules.unknown_labels)
            findings.checks += checks.check_volume(view, previous, rules.volume_change)
            findings.checks += checks.check_freshness(view, rules.freshness, rules.as_of)
        findings.checks += checks.check_schema_change(view, previous)
        if view.name in suites:
            findings.checks += _suite_checks(view, suites[view.name], findings)
        on_table(number + 1, len(views))
    return findings


def _always_checked(view: TableView, findings: Findings, rules: Rules, *, is_main: bool) -> list[CheckResult]:
    found = [*checks.check_schema(view), checks.check_rows(view)]
    if view.facts["rows"] == 0:
        return found
    statistics = column_statistics(view)
    add_drift(view, statistics, (round(rules.start.timestamp() * 1e6), round(rules.end.timestamp() * 1e6)))
    findings.statistics[view.name] = statistics
    found += checks.check_complete(view, statistics, label=rules.label if is_main else None)
    found += checks.check_unique(view)
    found += checks.check_finite(view, statistics)
    return found + checks.check_partition_days(view, rules.zone)


def _suite_checks(view: TableView, suite: Mapping[str, Any], findings: Findings) -> list[CheckResult]:
    name = view.contract.suite or ""
    if blocker := next((c for c in findings.failed if c.table == view.name and c.code.startswith(("schema.", "data.empty"))), None):
        reason = f"[{blocker.code}] comes first"
        verdict = CheckResult(
            code=CODE, check=f"suite {name}", table=view.name, status="failed", observed="not evaluated", allowed="evaluated", detail=reason
        )
        return [verdict]
    parts = [pq.ParquetFile(path).read(columns=list(view.contract.types)) for path in view.paths.values()]
    wanted = pa.schema([pa.field(column, ARROW_TYPES[kind]) for column, kind in view.contract.types.items()])
    frame = pa.concat_tables([part.select(wanted.names).cast(wanted) for part in parts]).to_pandas()
    return run_suite(suite, frame, name=name, table=view.name)


def _rows_per_day(view: TableView, zone: ZoneInfo) -> dict[str, int]:
    days: dict[str, int] = {}
    if view.contract.partitioned:
        for facts in view.facts["parts"].values():
            days[facts["partition"]] = days.get(facts["partition"], 0) + facts["rows"]
    elif view.contract.event_time in view.sound_columns():
        event_time = quoted(view.contract.event_time or "")
        local = f"timezone({literal(zone.key)}, {event_time})"
        query = f"SELECT strftime({local}, '%Y-%m-%d') AS day, count(*) FROM {{table}} WHERE {event_time} IS NOT NULL GROUP BY 1"  # noqa: S608
        days = dict(view.rows(query))
    return dict(sorted(days.items()))
