"""What the report says of rows that the YAML leaves out."""

from __future__ import annotations

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
