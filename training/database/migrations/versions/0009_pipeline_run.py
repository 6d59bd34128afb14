"""Pipelines and their runs for SQL clients: what the first task of a run settles, and how the run ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# A view that begins with WITH refuses changes on PostgreSQL, as each view does on SQLite.
_VIEWS = {
    "bi_pipelines": """
WITH found AS (SELECT * FROM pipeline)
SELECT name AS pipeline_id, name, description, schedule, owner, dag_config, updated_at FROM found
""",
    "bi_experiments": """
WITH found AS (SELECT * FROM pipeline)
SELECT name AS experiment_id, name, owner, description FROM found
""",
    "bi_runs": """
WITH found AS (SELECT * FROM pipeline_run)
SELECT run_id, pipeline AS pipeline_id, pipeline AS experiment_id, state, as_of, started_at, ended_at, git_commit, parameters FROM found
""",
    "bi_experiment_run": """
WITH found AS (SELECT * FROM pipeline_run)
SELECT
    run_id AS run_uuid, pipeline AS experiment,
    CASE state WHEN 'success' THEN 'completed' WHEN 'failed' THEN 'failed' WHEN 'lost' THEN 'killed' ELSE 'running' END AS status,
    CASE WHEN LENGTH(git_commit) = 40 THEN git_commit END AS code_commit, resource_spec, started_at, ended_at
FROM found
""",
}


def upgrade() -> None:
    op.create_table(
        "pipeline",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("schedule", sa.String(200)),
        sa.Column("owner", sa.String(1000), nullable=False),
        sa.Column("dag_config", sa.JSON, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "pipeline_run",
        sa.Column("run_id", sa.String(320), primary_key=True),
        sa.Column("pipeline", sa.String(63), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("as_of", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("git_commit", sa.String(64), nullable=False),
        sa.Column("parameters", sa.JSON, nullable=False),
        sa.Column("resource_spec", sa.JSON, nullable=False),
    )
    op.create_index("ix_pipeline_run_state", "pipeline_run", ["state"])
    for name, query in _VIEWS.items():
        op.execute(f"CREATE VIEW {name} AS {query}")


def downgrade() -> None:
    for name in _VIEWS:
        op.execute(f"DROP VIEW {name}")
    op.drop_table("pipeline_run")
    op.drop_table("pipeline")
