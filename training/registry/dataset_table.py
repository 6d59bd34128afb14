"""Versions of data in words, for people: the same where the database is read and where a server is asked."""

from __future__ import annotations

from collections.abc import Mapping

from training.database.datasets import Dataset


def dataset_line(found: Dataset) -> str:
    """Return a version as a line of a list."""
    state = {"deprecated": "  deprecated", "deleted": "  deleted by retention"}.get(found.health, "")
    created = found.created_at.isoformat(timespec="seconds")
    return f"{found.pipeline}  {found.version}  {created}  {found.rows:,} rows  {found.size_bytes / 2**20:,.1f} MiB{state}"


def dataset_words(found: Dataset, columns: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """Return all about a version, a line for each fact, and for each table's columns where they are known."""
    lines = {
        "snapshot": f"{found.version} of {found.pipeline}",
        "manifest": found.uri,
        "rows": f"{found.rows:,}",
        "size": f"{found.size_bytes:,} bytes",
        "schema": found.schema_hash,
        "split": ", ".join(f"{name} {value}" for name, value in found.split.items()) or "as by default",
        "created": f"{found.created_at.isoformat(timespec='seconds')} by {found.created_by}",
    }
    if found.deleted_at is not None:
        when = found.deleted_at.isoformat(timespec="seconds")
        who = f"by {found.deprecated_by}: {found.reason}" if found.is_deprecated else "(its files were deleted by retention)"
        lines["deprecated" if found.is_deprecated else "deleted"] = f"{when} {who}"
    for name, types in (columns or {}).items():
        lines[f"table {name}"] = ", ".join(f"{column} {kind}" for column, kind in types.items())
    return "".join(f"{name + ':':<12} {value}\n" for name, value in lines.items())


def none_words(pipeline: str | None) -> str:
    """Return that there is no version."""
    return f"pipeline {pipeline} has no snapshot" if pipeline else "there is no snapshot yet"
