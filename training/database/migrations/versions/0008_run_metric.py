"""Metrics of trainings for SQL clients: rows copied from the journals in the store, and their view."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_RUN_METRIC = """
WITH points AS (SELECT * FROM run_metric)
SELECT run_id, metric_name, step, value, logged_at, attempt FROM points
"""


def upgrade() -> None:
    op.create_table(
        "run_metric",
        sa.Column("run_id", sa.String(320), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("metric_name", sa.String(250), nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("value", sa.Double),
        sa.Column("logged_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_run_metric_run_name_step", "run_metric", ["run_id", "metric_name", "step"])
    op.execute(f"CREATE VIEW bi_run_metric AS {_RUN_METRIC}")


def downgrade() -> None:
    op.execute("DROP VIEW bi_run_metric")
    op.drop_table("run_metric")
