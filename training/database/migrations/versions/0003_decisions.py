"""Canaries, approvals and rollbacks in the ledger; the outbox to MLflow; semantic versions."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_APPEND_ONLY = {
    "sqlite": [
        f"CREATE TRIGGER ledger_decision_no_{verb.lower()} BEFORE {verb} ON ledger_decision "
        "BEGIN SELECT RAISE(ABORT, 'ledger_decision is append-only'); END"
        for verb in ("UPDATE", "DELETE")
    ],
    "postgresql": [
        "CREATE FUNCTION ledger_decision_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'ledger_decision is append-only'; END $$",
        "CREATE TRIGGER ledger_decision_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_decision "
        "FOR EACH STATEMENT EXECUTE FUNCTION ledger_decision_append_only()",
    ],
}


def upgrade() -> None:
    with op.batch_alter_table("ledger_decision") as table:
        table.add_column(sa.Column("semantic_version", sa.String(32), nullable=False, server_default=""))
        table.add_column(sa.Column("request_key", sa.String(64)))
        table.add_column(sa.Column("revision", sa.BigInteger))
        # What the ledger promises holds even for a writer that does not take its lock: rows without a value do not collide.
        table.create_unique_constraint("uq_ledger_decision_model_request", ["model", "request_key"])
        table.create_unique_constraint("uq_ledger_decision_model_revision", ["model", "revision"])
    for statement in _APPEND_ONLY[op.get_bind().dialect.name]:
        op.execute(statement)
    _seats()
    op.create_table(
        "registry_outbox",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("model", sa.String(63), nullable=False, index=True),
        sa.Column("decision_key", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("done_at", sa.DateTime(timezone=True)),
    )
    op.create_table(
        "model_version",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("model", sa.String(63), nullable=False),
        sa.Column("weights_digest", sa.String(64), nullable=False),
        sa.Column("semantic_version", sa.String(32), nullable=False),
        sa.Column("input_schema", sa.JSON, nullable=False),
        sa.Column("output_schema", sa.JSON, nullable=False),
        sa.Column("recipe_digest", sa.String(64), nullable=False),
        sa.Column("framework", sa.String(200), nullable=False),
        sa.Column("snapshot_digest", sa.String(64), nullable=False),
        sa.Column("code_version", sa.String(128), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("model", "weights_digest", name="uq_model_version_weights"),
        sa.UniqueConstraint("model", "semantic_version", name="uq_model_version_semantic"),
    )


def _seats() -> None:
    """Turn the champion's columns into one value; a canary gets its own."""
    connection = op.get_bind()
    rows = connection.execute(sa.text("SELECT model, version, weights_digest, model_uri, as_of, bounds FROM model_standing")).all()
    with op.batch_alter_table("model_standing") as table:
        table.add_column(sa.Column("champion", sa.JSON))
        table.add_column(sa.Column("canary", sa.JSON))
        for name in ("version", "weights_digest", "model_uri", "as_of", "bounds"):
            table.drop_column(name)
    standings = sa.table("model_standing", sa.column("model", sa.String), sa.column("champion", sa.JSON))
    for row in rows:
        bounds = json.loads(row.bounds) if isinstance(row.bounds, str) else row.bounds
        champion = {
            "version": row.version,
            "weights_digest": row.weights_digest,
            "model_uri": row.model_uri,
            "as_of": row.as_of,
            "bounds": bounds,
        }
        connection.execute(standings.update().where(standings.c.model == row.model).values(champion=champion))


def downgrade() -> None:
    raise NotImplementedError("the ledger is append-only: restore the database from its backup")
