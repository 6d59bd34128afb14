"""Runs migrations on the connection that `training.database.connect` holds, inside its transaction."""

from __future__ import annotations

from alembic import context

from training.database.schema import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
