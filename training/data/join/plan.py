"""From a spec and a snapshot to what an engine joins: the main table, the feature tables, and the windows."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from pathlib import Path

from training.data.join.contract import JoinedTable, MainTable
from training.data.join.engines.interface import Engine, Frame
from training.data.join.windows import WindowColumn
from training.data.snapshot.parquet_parts import merged
from training.spec import PipelineSpec
from training.spec.rules.windows import mentioned
from training.sql.arrow_types import ARROW_TYPES
from training.store import Manifest

logger = logging.getLogger(__name__)


def join_snapshot(spec: PipelineSpec, snapshot: Manifest, folder: Path, engine: Engine, *, as_of: datetime) -> Frame:
    """Return the joined rows of a snapshot.

    Args:
        folder: local, with the snapshot's files.
        as_of: the instant whose past may be seen.

    Raises:
        DataError: as `Engine.join`.
    """
    features = [
        JoinedTable(
            name=table.table,
            paths=_parts(snapshot, table.table, folder),
            on=table.on,
            columns={name: column.as_ or name for name, column in table.columns.items() if (column.as_ or name) in table.joined},
            event_time=table.event_time,
            available_after=table.available_after,
            max_age=table.max_age,
        )
        for table in spec.data.features
    ]
    frame = engine.join(_main_table(spec, snapshot, folder), features, window_columns(spec), as_of=as_of)
    source, num_rows = spec.data.source, snapshot.meta["tables"][spec.data.source.table]["rows"]
    if frame.num_rows < num_rows:
        known_at = spec.data.label.known_at
        reasons = {
            f"{known_at} (when the label is known) is null": known_at is not None,
            "they are history before the window": source.history is not None,
        }
        why = ", or ".join(reason for reason, is_possible in reasons.items() if is_possible)
        logger.info("%s of %s rows left out: %s", f"{num_rows - frame.num_rows:,}", f"{num_rows:,}", why)
    return frame


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


def _main_table(spec: PipelineSpec, snapshot: Manifest, folder: Path) -> MainTable:
    source, label = spec.data.source, spec.data.label
    return MainTable(
        name=source.table,
        paths=_parts(snapshot, source.table, folder),
        columns={name: name for name in source.types},
        event_time=source.event_time,
        key=source.key,
        decision_lead=source.decision_lead,
        label_column=label.column,
        label_rule=label.rule,
        label_is_text=spec.data.has_text_label,
        label_known_at=label.known_at,
        start=None if source.history is None else datetime.fromisoformat(snapshot.meta["window"]["start"]),
    )


def _parts(snapshot: Manifest, table: str, folder: Path) -> list[Path]:
    """Return the files of a table, or one of all their rows where they are many and small."""
    facts = snapshot.meta["tables"][table]
    paths = [folder / name for name in sorted(facts["parts"])]
    schema = facts["schema"]
    # Files of several schemas are left to the join, which names what is wrong with them.
    is_one = all(part.get("schema", schema) == schema for part in facts["parts"].values()) and set(schema.values()) <= ARROW_TYPES.keys()
    return merged(paths, schema, folder, table) if is_one else paths
