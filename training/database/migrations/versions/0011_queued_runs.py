"""Runs that were asked for and have not begun, who made a pipeline, and an index for a model's versions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_CREATED_BY = ", owner AS created_by"
_QUEUED = "WHEN 'queued' THEN 'queued' "
_VIEWS = {
    "bi_pipelines": """
WITH found AS (SELECT * FROM pipeline)
SELECT name AS pipeline_id, name, description, schedule, owner, dag_config, updated_at{created_by} FROM found
""",
    "bi_runs": """
WITH found AS (SELECT * FROM pipeline_run)
SELECT run_id, pipeline AS pipeline_id, pipeline AS experiment_id, state, as_of, started_at, ended_at, git_commit, parameters FROM found
""",
    "bi_experiment_run": """
WITH found AS (SELECT * FROM pipeline_run)
SELECT
    run_id AS run_uuid, pipeline AS experiment,
    CASE state {queued}WHEN 'success' THEN 'completed' WHEN 'failed' THEN 'failed' WHEN 'lost' THEN 'killed' ELSE 'running' END AS status,
    CASE WHEN LENGTH(git_commit) = 40 THEN git_commit END AS code_commit, resource_spec, started_at, ended_at
FROM found
""",
}
_TIMES = ("as_of", "started_at")


def upgrade() -> None:
    _change(nullable=True, queued=_QUEUED, created_by=_CREATED_BY)
    op.create_index("ix_ledger_decision_model_version", "ledger_decision", ["model", "version"])


def downgrade() -> None:
    op.drop_index("ix_ledger_decision_model_version", "ledger_decision")
    op.execute("DELETE FROM pipeline_run WHERE started_at IS NULL")
    op.execute("UPDATE pipeline_run SET as_of = started_at WHERE as_of IS NULL")
    if op.get_bind().dialect.name == "postgresql":
        # A column cannot be taken from a view that is there.
        op.execute("DROP VIEW bi_pipelines")
    _change(nullable=False, queued="", created_by="")


def _change(*, nullable: bool, queued: str, created_by: str) -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    if is_sqlite:
        # It makes the table again to change a column, and refuses that while views read it.
        for name in _VIEWS:
            op.execute(f"DROP VIEW {name}")
    with op.batch_alter_table("pipeline_run") as table:
        for name in _TIMES:
            table.alter_column(name, existing_type=sa.DateTime(timezone=True), nullable=nullable)
    for name, query in _VIEWS.items():
        # On PostgreSQL, a view that is made again has lost the rights of the roles that read it.
        word = "CREATE VIEW" if is_sqlite else "CREATE OR REPLACE VIEW"
        op.execute(f"{word} {name} AS {query.format(queued=queued, created_by=created_by)}")
