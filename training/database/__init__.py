"""Nightshift's own tables, SQLAlchemy 2 with Alembic migrations, on SQLite or PostgreSQL. Light enough for operators."""

from __future__ import annotations

from training.database.connect import connect, database_url
from training.database.schema import Base, DatasetVersion

__all__ = ["Base", "DatasetVersion", "connect", "database_url"]
