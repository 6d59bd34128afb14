"""From `data.windows` of a spec to the windows that an engine computes, and to how much of a feature table they look back on."""

from __future__ import annotations

from datetime import timedelta

from training.data.join.windows import WindowColumn
from training.spec import PipelineSpec
from training.spec.rules.windows import mentioned


def window_columns(spec: PipelineSpec) -> list[WindowColumn]:
    """Return the columns in the order of the spec, each with all that says when a row of it is known."""
    data, found = spec.data, []
    for name, window in data.windows.items():
        table = data.table_of(window)
        delays = [window.available_after or timedelta(), timedelta() if table is None else table.available_after]
        # A value of the label's column is known when the label is.
        is_label = table is None and data.label.column.lower() in mentioned(window)
        instants = [window.known_at, data.label.known_at if is_label else None]
        found.append(
            WindowColumn(
                name=name,
                kind=window.kind,
                table=data.source.table if table is None else table.table,
                by={name: name for name in window.by or ()} if table is None else table.on,
                column=window.column,
                function=window.function,
                time=window.time,
                tolerance=window.tolerance,
                rows=window.rows,
                where=window.where,
                available_after=max(delays),
                known_at=tuple(dict.fromkeys(instant for instant in instants if instant is not None)),
            )
        )
    return found
