"""Nightshift's own tables, SQLAlchemy 2 with Alembic migrations, on SQLite or PostgreSQL. Light enough for operators."""

from __future__ import annotations

from training.tables.connect import connect, database_url
from training.tables.schema import Base, DatasetVersion

__all__ = ["Base", "DatasetVersion", "connect", "database_url"]
