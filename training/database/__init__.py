"""Nightshift's own tables, SQLAlchemy 2 with Alembic migrations, on SQLite or PostgreSQL. Light enough for operators."""

from __future__ import annotations

from training.database.connect import connect, database_url
from training.database.schema import Base, DatasetVersionRow

__all__ = ["Base", "DatasetVersionRow", "connect", "database_url"]
