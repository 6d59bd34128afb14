"""What was erased on a person's order. Rows are only ever added."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TRIGGERS = {
    "sqlite": [
        f"CREATE TRIGGER erasure_no_{what.lower()} BEFORE {what} ON erasure BEGIN SELECT RAISE(ABORT, 'erasure is append-only'); END"
        for what in ("DELETE", "UPDATE")
    ],
    "postgresql": [
        "CREATE FUNCTION erasure_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'erasure is append-only'; END $$",
        "CREATE TRIGGER erasure_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON erasure "
        "FOR EACH STATEMENT EXECUTE FUNCTION erasure_append_only()",
    ],
}


def upgrade() -> None:
    op.create_table(
        "erasure",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("pipeline", sa.String(63), nullable=False),
        sa.Column("target", sa.String(512), nullable=False),
        sa.Column("key_hash", sa.String(64)),
        sa.Column("erased_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("erased_by", sa.String(512), nullable=False),
        sa.Column("reason", sa.String(2000), nullable=False),
        sa.Column("counts", sa.JSON, nullable=False),
        sa.Column("digests", sa.JSON, nullable=False),
    )
    for statement in _TRIGGERS[op.get_bind().dialect.name]:
        op.execute(statement)
