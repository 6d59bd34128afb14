"""Index of the snapshots that runs made."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "dataset_version",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("storage_uri", sa.String(2048), nullable=False),
        sa.Column("row_count", sa.BigInteger, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("schema_hash", sa.String(64), nullable=False),
        sa.Column("split_config", sa.JSON, nullable=False),
        sa.Column("split_config_hash", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(512), nullable=False),
        sa.Column("deprecated_at", sa.DateTime(timezone=True)),
        sa.UniqueConstraint("name", "version", name="uq_dataset_version_name_version"),
    )


def downgrade() -> None:
    op.drop_table("dataset_version")
