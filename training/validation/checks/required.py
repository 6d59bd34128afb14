"""The checks that no user can remove: an empty or half-empty table passes many a suite, so these do not live in one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa

from training.data.snapshot.meta import SnapshotMeta, rows_per_table
from training.data.snapshot.parquet_parts import FILE_COLUMN
from training.errors import counted
from training.sources.stored_types import nested_remedy, remedy
from training.spec.scalar_types import duration_text
from training.spec.schedule.instants import LARGEST_SHIFT
from training.spec.schedule.partitions import Grain, bounds_of, grain_of
from training.sql.expressions import quoted
from training.validation.checks.key_order import has_unique_order
from training.validation.results import CheckResult, ColumnStatistics, listed, status_of
from training.validation.snapshot_view import TableView

NOTHING = "none"
NOT_KNOWN_YET = "if null means that the label is not known yet, declare this column `nullable: true`"


def check_rows(view: TableView) -> CheckResult:
    """`data.empty`: the table has rows."""
    rows = view.facts["rows"]
    return CheckResult(
        code="data.empty", check="row count", table=view.name, status=status_of(rows > 0), observed=f"{rows:,}", allowed="at least 1"
    )


def check_schema(view: TableView) -> list[CheckResult]:
    """`schema.missing`, `schema.type`, `schema.unexpected`: every part has the declared columns with their types, and no others."""
    missing: dict[str, list[str]] = defaultdict(list)
    mistyped: dict[tuple[str, str], list[str]] = defaultdict(list)
    unexpected: dict[tuple[str, str], list[str]] = defaultdict(list)
    types, parts = view.contract.types, list(view.facts["parts"])
    for part in parts:
        schema = view.part_schema(part)
        for name, kind in types.items():
            if name not in schema:
                missing[name].append(part)
            elif schema[name] != kind:
                mistyped[name, schema[name]].append(part)
        for name in schema.keys() - types.keys() - set(view.contract.ignore):
            nested = schema[name] if nested_remedy(schema[name], name) else "undeclared"
            unexpected[name, nested].append(part)

    def result(code: str, check: str, column: str, observed: str, allowed: str, where: list[str]) -> CheckResult:
        detail = f"in {len(where)} of {len(parts)} files: {listed(where)}"
        detail += f"; {what}" if (what := remedy(observed, column)) else ""
        return CheckResult(
            code=code, check=check, table=view.name, column=column, status="failed", observed=observed, allowed=allowed, detail=detail
        )

    results = [result("schema.missing", "column is there", name, "missing", types[name], where) for name, where in missing.items()]
    results += [result("schema.type", "column's type", name, kind, types[name], where) for (name, kind), where in mistyped.items()]
    results += [
        result("schema.unexpected", "no undeclared column", name, observed, "declared or ignored", where)
        for (name, observed), where in sorted(unexpected.items())
    ]
    return results or [
        CheckResult(
            code="schema.missing",
            check="columns and types as declared",
            table=view.name,
            status="passed",
            observed=f"{counted(len(types), 'column')} in {counted(len(parts), 'file')}",
            allowed=counted(len(types), "column"),
        )
    ]


def check_complete(view: TableView, statistics: Mapping[str, ColumnStatistics], *, label: str | None) -> list[CheckResult]:
    """`data.nulls` and `label.nulls`: key, event time, label and what is not declared nullable are complete; NaN counts as null.

    Of a label also an empty text: `prepare` takes it for none.
    """
    columns = view.contract.columns
    always = {*view.contract.key, view.contract.event_time, label}
    results = []
    for name, numbers in statistics.items():
        nullable = name in columns and columns[name].nullable
        if nullable and name not in always:
            continue
        nulls, rows = numbers["nulls"], numbers["rows"]
        if name == label and view.contract.types[name] == "string":
            nulls += view.rows(f"SELECT count(*) FROM {{table}} t WHERE t.{quoted(name)} = ''")[0][0]  # noqa: S608 - quoted column name
        results.append(
            CheckResult(
                code="label.nulls" if name == label else "data.nulls",
                check="no nulls in the label" if name == label else ("no nulls in the key" if name in view.contract.key else "no nulls"),
                table=view.name,
                column=name,
                status=status_of(nulls == 0),
                observed=f"{nulls:,} of {rows:,} rows" + (f" ({nulls / rows:.2%})" if nulls else ""),
                allowed="0",
                detail=NOT_KNOWN_YET if nulls and name == view.contract.known_at else "",
            )
        )
    return results


def check_finite(view: TableView, statistics: Mapping[str, ColumnStatistics]) -> list[CheckResult]:
    """`data.nonfinite`: no number is infinite."""
    infinite = {name: numbers["infinite"] for name, numbers in statistics.items() if numbers["infinite"]}
    if not infinite:
        return [
            CheckResult(code="data.nonfinite", check="no infinite numbers", table=view.name, status="passed", observed="0", allowed="0")
        ]
    return [
        CheckResult(
            code="data.nonfinite",
            check="no infinite numbers",
            table=view.name,
            column=name,
            status="failed",
            observed=f"{count:,} of {statistics[name]['rows']:,} rows",
            allowed="0",
        )
        for name, count in infinite.items()
    ]


def check_unique(view: TableView) -> list[CheckResult]:
    """`data.duplicates`: no key stands in two rows, within a part or in two of them, and no two parts are the same file."""
    results = []
    by_digest: dict[str, list[str]] = defaultdict(list)
    for part, digest in view.digests.items():
        by_digest[digest].append(part)
    copies = [parts for parts in by_digest.values() if len(parts) > 1 and view.facts["parts"][parts[0]]["rows"]]
    if len(view.digests) > 1:
        results.append(
            CheckResult(
                code="data.duplicates",
                check="no file twice",
                table=view.name,
                status=status_of(not copies),
                observed=f"{sum(len(parts) - 1 for parts in copies)} copies",
                allowed="0",
                detail=f"equal bytes: {listed(copies[0])}" if copies else "",
            )
        )
    key = view.contract.key
    if not key or not set(key) <= set(view.sound_columns()):
        return results
    extra, first = (0, None) if has_unique_order(view, key) else _repeated_keys(view, key)
    rows = view.facts["rows"]
    results.append(
        CheckResult(
            code="data.duplicates",
            check=f"one row per key ({', '.join(key)})",
            table=view.name,
            status=status_of(extra == 0),
            observed=f"{extra:,} rows too many" + (f" of {rows:,} ({extra / rows:.2%})" if extra else ""),
            allowed="0",
            detail=f"the first such key: {first}" if extra else "",
        )
    )
    return results


def _repeated_keys(view: TableView, key: Sequence[str]) -> tuple[int, str | None]:
    """Return how many rows are too many for one row per key, and the first such key."""
    columns = ", ".join(quoted(name) for name in key)
    example = " || ', ' || ".join(f"coalesce(CAST({quoted(name)} AS VARCHAR), 'null')" for name in key)
    # Rows without a complete key are counted by the check for nulls.
    complete = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in key)
    query = f"""
        WITH repeated AS (SELECT {columns}, count(*) AS n FROM {{table}} WHERE {complete} GROUP BY {columns} HAVING count(*) > 1)
        SELECT coalesce(sum(n - 1), 0), (SELECT min({example}) FROM repeated) FROM repeated
    """  # noqa: S608 - quoted column names
    extra, first = view.rows(query)[0]
    return int(extra), first


def check_partition_days(view: TableView, zone: ZoneInfo) -> list[CheckResult]:
    """`data.misplaced`: each row's event time is within the hour, day or month of its partition."""
    event_time = view.sound_event_time
    if event_time is None or (view.contract.partition is None and not view.contract.partitioned):
        return []
    days = [facts["partition"] or "" for facts in view.facts["parts"].values()]
    grain = grain_of(view.contract.partition or "") or Grain.DAY
    bounds = [tuple(round(moment.timestamp() * 1e6) for moment in bounds_of(day, zone)) for day in days]
    begin, finish = ([bound[side] for bound in bounds] for side in (0, 1))
    files = [str(path) for path in view.source.paths()]
    view.connection.register("partition_days", pa.table({"file": files, "begin": begin, "finish": finish, "day": days}))
    # Null of an infinite instant too: the largest and the smallest but one that a Parquet file can hold.
    moment = f"epoch_us(t.{quoted(event_time)})"
    query = f"""
        SELECT p.day, count(*) FROM {{table}} t JOIN partition_days p ON p.file = t.{FILE_COLUMN}
        WHERE t.{quoted(event_time)} IS NOT NULL AND coalesce({moment} < p.begin OR {moment} >= p.finish, true)
        GROUP BY p.day ORDER BY p.day
    """  # noqa: S608 - quoted column names
    misplaced = view.rows(query)
    view.connection.unregister("partition_days")
    return [
        CheckResult(
            code="data.misplaced",
            check=f"event times within the partition's {grain}",
            table=view.name,
            column=event_time,
            status=status_of(not misplaced),
            observed=f"{sum(count for _, count in misplaced):,} rows outside",
            allowed="0",
            detail=f"in the partitions of {listed([day for day, _ in misplaced])}" if misplaced else "",
        )
    ]


def left_out_rows(view: TableView) -> list[CheckResult]:
    """`data.left_out`: how many rows of the window `where` and `sample` left out; always passed, a check of its own for each."""
    left_out = view.facts.get("left_out", {})
    return [
        CheckResult(
            code="data.left_out",
            check=f"rows left out by data.source.{key}",
            table=view.name,
            status="passed",
            observed=f"{left_out[key]:,} left out, {view.facts['rows']:,} in the snapshot",
            allowed="any",
        )
        for key in ("where", "sample")
        if key in left_out
    ]


def rows_of_union(view: TableView) -> list[CheckResult]:
    """`data.union`: how many rows each table of a union has; fails where one has none."""
    counts = rows_per_table(view.facts)
    empty = [name for name, rows in counts.items() if not rows]
    if not counts:
        return []
    return [
        CheckResult(
            code="data.union",
            check="rows of each table of data.source.union",
            table=view.name,
            status="failed" if empty else "passed",
            observed=", ".join(f"{name} {rows:,}" for name, rows in counts.items()),
            allowed="at least 1 each",
            detail=f"without rows: {', '.join(empty)}" if empty else "",
        )
    ]


def check_volume(view: TableView, previous: SnapshotMeta | None, limit: float | None, *, window: timedelta) -> list[CheckResult]:
    """`volume.change`: as many rows as the day before (partitions), or as the previous validated run (else), give or take `limit`.

    Args:
        window: its length. Rows of a longer or a shorter one are not compared, which warns.
    """
    if limit is None:
        return []
    if view.contract.partitioned:
        by_day: dict[str, int] = defaultdict(int)
        for facts in view.facts["parts"].values():
            by_day[facts["partition"] or ""] += facts["rows"]
        days = sorted(by_day)
        now, before = by_day[days[-1]], (by_day[days[-2]] if len(days) > 1 else None)
        what, against = f"rows of {days[-1]}", f"{days[-2]}" if len(days) > 1 else ""
    else:
        now, before = view.facts["rows"], previous["tables"][view.name]["rows"] if previous and view.name in previous["tables"] else None
        what, against = "rows of the window", f"the run of {previous['as_of']}" if previous else ""
        if previous and before is not None and abs((then := _length(previous)) - window) > LARGEST_SHIFT:
            detail = f"the window is {duration_text(window)}, that of {against} was {duration_text(then)}"
            return [
                CheckResult(
                    code="volume.change",
                    check=what,
                    table=view.name,
                    status="warned",
                    observed="not compared",
                    allowed="compared",
                    detail=detail,
                )
            ]
    allowed = f"within {limit:.0%}"
    if before is None:
        observed = f"{now:,}, nothing to compare with"
        return [CheckResult(code="volume.change", check=what, table=view.name, status="passed", observed=observed, allowed=allowed)]
    change = (now - before) / before if before else float("inf") if now else 0.0
    return [
        CheckResult(
            code="volume.change",
            check=what,
            table=view.name,
            status=status_of(abs(change) <= limit),
            observed=f"{now:,} after {before:,} ({change:+.1%})",
            allowed=f"{allowed} of {against}",
        )
    ]


def _length(snapshot: SnapshotMeta) -> timedelta:
    """Return that of the window; the same days may have other hours, where the clock changes."""
    return datetime.fromisoformat(snapshot["window"]["end"]) - datetime.fromisoformat(snapshot["window"]["start"])


def check_freshness(view: TableView, limit: timedelta | None, as_of: datetime) -> list[CheckResult]:
    """`freshness.late`: the newest event is not older than `limit` at `as_of`."""
    event_time = view.sound_event_time
    if limit is None or event_time is None:
        return []
    newest_us = view.rows(f"SELECT epoch_us(max({quoted(event_time)})) FROM {{table}}")[0][0]  # noqa: S608 - quoted column name
    # In numbers: a file can hold instants of years that Python does not have.
    age_us, limit_us = None if newest_us is None else round(as_of.timestamp() * 1e6) - newest_us, limit // timedelta(microseconds=1)
    return [
        CheckResult(
            code="freshness.late",
            check="age of the newest row",
            table=view.name,
            column=event_time,
            status=status_of(age_us is not None and age_us <= limit_us),
            observed="no event time" if age_us is None else hours(age_us),
            allowed=f"at most {hours(limit_us)}",
        )
    ]


def check_schema_change(view: TableView, previous: SnapshotMeta | None, *, blocks: bool) -> list[CheckResult]:
    """`schema.changed`: the table looks as it did in the previous validated run.

    A difference that reaches this far was made in the YAML: the columns that it declares have been checked.

    Args:
        blocks: `validate.schema_change` is `fail`; otherwise a difference is reported.
    """
    if not previous or view.name not in previous["tables"]:
        return []
    then, now = previous["tables"][view.name]["schema"], view.facts["schema"]
    changes = [
        f"{name}: {then.get(name, NOTHING)} → {now.get(name, NOTHING)}" for name in sorted({*then, *now}) if then.get(name) != now.get(name)
    ]
    return [
        CheckResult(
            code="schema.changed",
            check="schema of the previous run",
            table=view.name,
            status=status_of(not changes, blocks=blocks),
            observed=f"{len(changes)} columns differ",
            allowed="0",
            detail="; ".join(changes[:10]),
        )
    ]


def hours(microseconds: int) -> str:
    return f"{microseconds / 3.6e9:.1f} h"
