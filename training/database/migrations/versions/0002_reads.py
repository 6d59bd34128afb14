"""What lists read without a look at every decision: how many there are of a model, its pipelines, and the newest of each kind."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("model_standing", sa.Column("decisions", sa.BigInteger, nullable=False, server_default="0"))
    op.create_table(
        "model_pipeline",
        sa.Column("model", sa.String(63), primary_key=True),
        sa.Column("pipeline", sa.String(63), primary_key=True),
    )
    op.create_index("ix_ledger_decision_model_id", "ledger_decision", ["model", "id"])
    is_request = sa.text("outcome = 'needs_approval'")
    op.create_index("ix_ledger_decision_requests", "ledger_decision", ["model", "id"], sqlite_where=is_request, postgresql_where=is_request)
    op.create_index("ix_dataset_version_name_id", "dataset_version", ["name", "id"])
    _fill()


def _fill() -> None:
    decision = sa.table("ledger_decision", sa.column("model"), sa.column("evidence", sa.JSON))
    pipeline = decision.c.evidence["pipeline"].as_string()
    made = sa.select(decision.c.model, pipeline).where(pipeline.is_not(None)).distinct()
    op.execute(sa.insert(sa.table("model_pipeline", sa.column("model"), sa.column("pipeline"))).from_select(["model", "pipeline"], made))
    op.execute(
        "UPDATE model_standing SET decisions = (SELECT count(*) FROM ledger_decision WHERE ledger_decision.model = model_standing.model)"
    )
