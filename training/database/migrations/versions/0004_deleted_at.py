"""Decisions note when the weights that they are about were deleted; everything else in them stays as it was."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_FIXED = (
    *("id", "model", "decision_key", "version", "action", "outcome", "reasons", "evidence"),
    *("decided_at", "decided_by", "semantic_version", "request_key", "revision"),
)
_TWICE = "OLD.deleted_at IS NOT NULL OR NEW.deleted_at IS NULL"
_TRIGGERS = {
    "sqlite": [
        "DROP TRIGGER ledger_decision_no_update",
        f"CREATE TRIGGER ledger_decision_no_update BEFORE UPDATE OF {', '.join(_FIXED)} ON ledger_decision "
        "BEGIN SELECT RAISE(ABORT, 'ledger_decision is append-only'); END",
        f"CREATE TRIGGER ledger_decision_deleted_once BEFORE UPDATE OF deleted_at ON ledger_decision WHEN {_TWICE} "
        "BEGIN SELECT RAISE(ABORT, 'ledger_decision is append-only'); END",
    ],
    "postgresql": [
        "DROP TRIGGER ledger_decision_append_only ON ledger_decision",
        f"CREATE TRIGGER ledger_decision_append_only BEFORE UPDATE OF {', '.join(_FIXED)} OR DELETE OR TRUNCATE ON ledger_decision "
        "FOR EACH STATEMENT EXECUTE FUNCTION ledger_decision_append_only()",
        f"CREATE TRIGGER ledger_decision_deleted_once BEFORE UPDATE OF deleted_at ON ledger_decision FOR EACH ROW WHEN ({_TWICE}) "
        "EXECUTE FUNCTION ledger_decision_append_only()",
    ],
}


def upgrade() -> None:
    # Not by a batch: SQLite would copy the table, and lose its triggers.
    op.add_column("ledger_decision", sa.Column("deleted_at", sa.DateTime(timezone=True)))
    for statement in _TRIGGERS[op.get_bind().dialect.name]:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("the ledger is append-only: restore the database from its backup")
