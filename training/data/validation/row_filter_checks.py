"""What the report says of rows that the YAML leaves out, and of tables that it puts together."""

from __future__ import annotations

from training.data.snapshot_meta import rows_per_table
from training.data.validation.results import CheckResult
from training.data.validation.snapshot_view import TableView


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
