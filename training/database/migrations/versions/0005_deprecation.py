"""Versions of data sets say who deprecated them, and why; those that retention deleted have a time alone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("dataset_version", sa.Column("deprecated_by", sa.String(512)))
    op.add_column("dataset_version", sa.Column("deprecated_reason", sa.String(2000)))


def downgrade() -> None:
    op.drop_column("dataset_version", "deprecated_reason")
    op.drop_column("dataset_version", "deprecated_by")
