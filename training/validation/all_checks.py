"""One snapshot, all of its checks, in the order in which a person would want to read what failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

from training.contracts import Instant, JsonObject, JsonValue, instant_text
from training.data.snapshot.label_delay import UnknownLabels
from training.data.snapshot.meta import SnapshotMeta
from training.spec.sections.drift import Drift
from training.sql.expressions import literal, quoted
from training.validation.checks import required as checks
from training.validation.checks.empty_days import check_days
from training.validation.checks.label_delay import check_unknown_labels
from training.validation.columns.profiles import counts_of
from training.validation.columns.statistics import ColumnProfile, profile
from training.validation.drift.between_snapshots import SnapshotComparison, values_named
from training.validation.drift.limits import Earlier, compare
from training.validation.results import CheckResult, ColumnStatistics, Findings
from training.validation.snapshot_view import TableView
from training.validation.suites.judging import Suite, SuiteJudge, load_suite
from training.validation.suites.wording import CODE

DEFAULT_MEMORY: Final = 2**30
"""Of `validate.memory`: 1 GiB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckRules:
    """The YAML's checks of the data, beyond those that always run."""

    as_of: Instant
    start: datetime
    end: datetime
    zone: ZoneInfo
    label: str
    volume_change: float | None
    freshness: timedelta | None
    unknown_labels: float | None = None
    """`validate.unknown_labels`"""
    schema_change: str = "warn"
    """`validate.schema_change`"""
    empty_days: Any = None
    """`validate.empty_days`"""
    memory: int = DEFAULT_MEMORY
    """`validate.memory`, bytes."""
    drift: Drift = field(default_factory=Drift)
    """`validate.drift`"""
    unknown: UnknownLabels | None = None
    """`unknown_labels` of the snapshot's meta."""


def validate_snapshot(
    views: list[TableView],
    rules: CheckRules,
    previous: SnapshotMeta | None,
    *,
    on_table: Callable[[int, int], None],
    suites_path: Path | None = None,
    earlier: Sequence[Earlier] = (),
) -> Findings:
    """Run every check on every table.

    Args:
        views: the main table's first.
        previous: `meta` of the snapshot to compare with, or None on the first run.
        on_table: called with (tables done, tables in all).
        suites_path: folder of the suites; None: the installation's.
        earlier: snapshots whose columns are compared.

    Raises:
        SpecError: `suite.missing`, `suite.invalid`, `suite.memory`.
    """
    findings = Findings(comparisons=[SnapshotComparison(words=found.words, as_of=found.as_of) for found in earlier])
    # Before anything slow: a suite that cannot be read is an error for any data.
    suites = {view.name: load_suite(view.contract.suite, suites_path) for view in views if view.contract.suite}
    for number, view in enumerate(views):
        findings.checks += _table_checks(view, suites.get(view.name), findings, rules, previous, earlier, is_main=number == 0)
        on_table(number + 1, len(views))
    before = next((found.runs for found in earlier if "previous" in found.names), ())
    findings.runs = with_run(before, numbers_of_run(rules.as_of, views, findings.statistics))
    return findings


def _table_checks(
    view: TableView,
    suite: Suite | None,
    findings: Findings,
    rules: CheckRules,
    previous: SnapshotMeta | None,
    earlier: Sequence[Earlier],
    *,
    is_main: bool,
) -> list[CheckResult]:
    """Return the checks of a table; add its statistics to `findings`, and what is known of the main table's days."""
    always = [*checks.check_schema(view), checks.check_rows(view)]
    asked = _main_checks(view, findings, rules, previous) if is_main else []
    asked += checks.check_schema_change(view, previous, blocks=rules.schema_change == "fail")
    blocker = next((c for c in [*always, *asked] if c.status == "failed" and c.code.startswith(("schema.", "data.empty"))), None)
    judge = None
    if suite and not blocker:
        types = {name: view.contract.types[name] for name in view.sound_columns()}
        judge = SuiteJudge(suite, name=view.contract.suite or "", table=view.name, types=types)
        judge.refuse_too_large(view, rules.memory)
    profiles: dict[str, ColumnProfile] = {}
    if view.facts["rows"]:
        span_us = (round(rules.start.timestamp() * 1e6), round(rules.end.timestamp() * 1e6))
        profiles = profile(view, span_us, _named(earlier, view.name))
        statistics = findings.statistics[view.name] = {name: column.statistics for name, column in profiles.items()}
        always += checks.check_complete(view, statistics, label=rules.label if is_main else None)
        always += checks.check_unique(view)
        always += checks.check_finite(view, statistics)
        always += checks.check_partition_days(view, rules.zone)
        asked += _drift_checks(view, profiles, findings, earlier, rules.drift)
    return always + asked + (_suite_checks(view, judge, blocker, profiles, rules) if suite else [])


def _named(earlier: Sequence[Earlier], table: str) -> dict[str, list[str]]:
    """Return the values of earlier snapshots, by column."""
    found: dict[str, dict[str, None]] = {}
    for snapshot in earlier:
        for column, values in values_named(snapshot.tables.get(table, {})).items():
            found.setdefault(column, {}).update(dict.fromkeys(values))
    return {column: list(values) for column, values in found.items()}


def _drift_checks(
    view: TableView, profiles: dict[str, ColumnProfile], findings: Findings, earlier: Sequence[Earlier], rules: Drift
) -> list[CheckResult]:
    counts = findings.profiles[view.name] = counts_of(view, profiles, rules.columns)
    named = {name: column.values.named for name, column in profiles.items() if column.values is not None}
    return [
        check
        for snapshot, comparison in zip(earlier, findings.comparisons, strict=True)
        for check in compare(snapshot, comparison, view.name, counts, named, rules)
    ]


def _main_checks(view: TableView, findings: Findings, rules: CheckRules, previous: SnapshotMeta | None) -> list[CheckResult]:
    findings.rows_per_day = _rows_per_day(view, rules.zone)
    findings.unknown_labels = rules.unknown
    found = check_days(
        view,
        (rules.start, rules.end),
        rules.zone,
        rows_per_day=findings.rows_per_day,
        allowed=rules.empty_days,
        unknown=rules.unknown,
    )
    found += check_unknown_labels(view, rules.unknown, rules.unknown_labels)
    found += checks.left_out_rows(view) + checks.rows_of_union(view)
    found += checks.check_volume(view, previous, rules.volume_change, window=rules.end - rules.start)
    return found + checks.check_freshness(view, rules.freshness, rules.as_of)


def _suite_checks(
    view: TableView, judge: SuiteJudge | None, blocker: CheckResult | None, profiles: dict[str, ColumnProfile], rules: CheckRules
) -> list[CheckResult]:
    if judge:
        return judge.judge(view, profiles, rules.memory)
    return [
        CheckResult(
            code=CODE,
            check=f"suite {view.contract.suite}",
            table=view.name,
            status="failed",
            observed="not evaluated",
            allowed="evaluated",
            detail=f"[{blocker.code if blocker else ''}] comes first",
        )
    ]


def _rows_per_day(view: TableView, zone: ZoneInfo) -> dict[str, int]:
    days: dict[str, int] = {}
    if view.contract.partitioned:
        for facts in view.facts["parts"].values():
            day = facts["partition"] or ""
            days[day] = days.get(day, 0) + facts["rows"]
    elif (event_time := view.sound_event_time) is not None:
        local = f"CAST(timezone({literal(zone.key)}, {quoted(event_time)}) AS DATE)"
        query = f"SELECT {local} AS day, count(*) FROM {{table}} WHERE {quoted(event_time)} IS NOT NULL GROUP BY 1"  # noqa: S608
        days = {day.isoformat(): count for day, count in view.rows(query)}
    return dict(sorted(days.items()))


MAX_RUNS: Final = 30


def numbers_of_run(as_of: Instant, views: Sequence[TableView], statistics: Mapping[str, Mapping[str, ColumnStatistics]]) -> JsonObject:
    """Return a run as JSON: of each table its rows, the age of the newest row in hours (null without event times), missing values.

    Args:
        as_of: of the run.
        statistics: table, column.
    """
    tables: dict[str, JsonValue] = {}
    for view in views:
        columns, event_time = statistics.get(view.name, {}), view.sound_event_time
        newest = None if event_time is None or event_time not in columns else columns[event_time]["maximum"]
        tables[view.name] = {
            "rows": view.facts["rows"],
            "age_hours": None if newest is None else _age_hours(as_of, str(newest)),
            "missing": {name: found["nulls"] for name, found in columns.items() if found["nulls"]},
        }
    return {"as_of": instant_text(as_of), "tables": tables}


def with_run(earlier: Sequence[Any], run: JsonObject) -> list[JsonObject]:
    """Return the newest runs, oldest first, `run` being the last."""
    return [*earlier, run][-MAX_RUNS:]


def _age_hours(as_of: Instant, newest: str) -> float | None:
    """Return the age of an instant, negative for a later one; None for one before the year 1 or after 9999, which Python does not have."""
    try:
        age = as_of - datetime.fromisoformat(newest)
    except ValueError:
        return None
    return round(age.total_seconds() / 3600, 3)
