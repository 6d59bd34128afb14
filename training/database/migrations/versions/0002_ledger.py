"""The ledger: every decision about a model version, and each model's standing."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "ledger_decision",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("model", sa.String(63), nullable=False),
        sa.Column("decision_key", sa.String(64), nullable=False),
        sa.Column("version", sa.String(32), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("reasons", sa.JSON, nullable=False),
        sa.Column("evidence", sa.JSON, nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("decided_by", sa.String(512), nullable=False),
        sa.UniqueConstraint("model", "decision_key", name="uq_ledger_decision_model_key"),
    )
    op.create_table(
        "model_standing",
        sa.Column("model", sa.String(63), primary_key=True),
        sa.Column("version", sa.String(32), nullable=False),
        sa.Column("weights_digest", sa.String(64), nullable=False),
        sa.Column("model_uri", sa.String(2048), nullable=False),
        sa.Column("as_of", sa.String(40), nullable=False),
        sa.Column("bounds", sa.JSON, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("model_standing")
    op.drop_table("ledger_decision")
