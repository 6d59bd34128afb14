"""A collection for people: bytes by kind."""

from __future__ import annotations

from training.store.collection_report import CollectionReport


def report_lines(report: CollectionReport, *, dry_run: bool) -> list[str]:
    """Return the table of bytes by kind."""
    columns = ("kind", "kept", "to be deleted later", "would be deleted now" if dry_run else "deleted")
    rows: list[tuple[str, ...]] = [columns]
    for kind, tally in sorted(report.by_kind.items(), key=lambda item: -item[1].kept):
        rows.append((kind, *(megabytes(value) for value in (tally.kept, tally.condemned, tally.deleted))))
    totals = [megabytes(report.total(verdict)) for verdict in ("kept", "condemned", "deleted")]
    rows.append(("all", totals[0], totals[1], totals[2]))
    widths = [max(len(row[place]) for row in rows) for place in range(len(columns))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(wide) for cell, wide in zip(row[1:], widths[1:], strict=True))]) for row in rows
    ]


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.2f} MB"
