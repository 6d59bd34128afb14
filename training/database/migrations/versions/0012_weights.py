"""Decisions are about weights, by their digest. New: where MLflow has them now, findings about its aliases, orders to roll back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_FIXED = (
    *("id", "model", "decision_key", "weights_digest", "version", "action", "outcome", "reasons", "evidence"),
    *("decided_at", "decided_by", "semantic_version", "request_key", "revision"),
)
_UNLOCK = {
    "sqlite": "DROP TRIGGER ledger_decision_no_update",
    "postgresql": "DROP TRIGGER ledger_decision_append_only ON ledger_decision",
}
_LOCK = {
    "sqlite": f"CREATE TRIGGER ledger_decision_no_update BEFORE UPDATE OF {', '.join(_FIXED)} ON ledger_decision "
    "BEGIN SELECT RAISE(ABORT, 'ledger_decision is append-only'); END",
    "postgresql": f"CREATE TRIGGER ledger_decision_append_only BEFORE UPDATE OF {', '.join(_FIXED)} OR DELETE OR TRUNCATE "
    "ON ledger_decision FOR EACH STATEMENT EXECUTE FUNCTION ledger_decision_append_only()",
}
_DIGEST = {"sqlite": "json_extract(evidence, '$.weights_digest')", "postgresql": "evidence ->> 'weights_digest'"}
_FILL = "UPDATE ledger_decision SET weights_digest = {digest} WHERE {digest} IS NOT NULL"

# By weights: two versions may have had the same number, and one version several.
_MODEL_VERSION = """
WITH versions AS (
    SELECT
        model, weights_digest, MAX(semantic_version) AS semantic_version, MIN(decided_at) AS first_decided_at, MAX(id) AS last_id,
        MAX(CASE WHEN action IN ('promoted', 'rolled_back') THEN id END) AS promotion_id,
        MAX(CASE WHEN action = 'rolled_back' OR outcome IN ('approved', 'declined') THEN id END) AS person_id,
        MAX(CASE WHEN action IN ('promoted', 'rolled_back', 'canary') THEN 1 ELSE 0 END) AS had_alias,
        MAX(deleted_at) AS weights_deleted_at
    FROM ledger_decision
    GROUP BY model, weights_digest
)
SELECT
    versions.model AS model_name, CAST(COALESCE(registered.number, latest.version) AS VARCHAR(32)) AS version, versions.semantic_version,
    CASE
        WHEN versions.weights_digest = {champion} THEN 'champion'
        WHEN versions.weights_digest = {canary} THEN 'canary'
        WHEN versions.had_alias = 1 THEN 'archived'
        ELSE 'candidate'
    END AS stage,
    latest.outcome AS last_outcome, versions.first_decided_at, promotion.decided_at AS promoted_at, promotion.decided_by AS promoted_by,
    made.framework, made.input_schema, made.output_schema, made.code_version, made.snapshot_digest, versions.weights_digest,
    made.created_at, versions.weights_deleted_at, {notes} AS notes
FROM versions
JOIN ledger_decision AS latest ON latest.id = versions.last_id
LEFT JOIN ledger_decision AS promotion ON promotion.id = versions.promotion_id
LEFT JOIN ledger_decision AS person ON person.id = versions.person_id
LEFT JOIN model_standing AS standing ON standing.model = versions.model
LEFT JOIN registered_version AS registered
    ON registered.model = versions.model AND registered.weights_digest = versions.weights_digest
LEFT JOIN model_version AS made ON made.model = versions.model AND made.weights_digest = versions.weights_digest
"""
_FIELD = {
    "sqlite": "json_extract(standing.{alias}, '$.weights_digest')",
    "postgresql": "standing.{alias} ->> 'weights_digest'",
}
_NOTES = {"sqlite": "json_extract(person.reasons, '$[#-1].words')", "postgresql": "person.reasons -> -1 ->> 'words'"}


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    if dialect == "sqlite":
        op.execute("DROP VIEW bi_model_version")
    # Not by a batch: SQLite would copy the table, and lose its triggers.
    op.add_column("ledger_decision", sa.Column("weights_digest", sa.String(64), nullable=False, server_default=""))
    op.execute(_UNLOCK[dialect])
    op.execute(_FILL.format(digest=_DIGEST[dialect]))
    op.execute(_LOCK[dialect])
    op.drop_index("ix_ledger_decision_model_version", "ledger_decision")
    op.create_index("ix_ledger_decision_model_weights", "ledger_decision", ["model", "weights_digest"])
    op.add_column("model_standing", sa.Column("mirrored_revision", sa.BigInteger, nullable=False, server_default="0"))
    _create_tables()
    fields = {alias: _FIELD[dialect].format(alias=alias) for alias in ("champion", "canary")}
    # On PostgreSQL, a view that is made again has lost the rights of the roles that read it.
    word = "CREATE VIEW" if dialect == "sqlite" else "CREATE OR REPLACE VIEW"
    op.execute(f"{word} bi_model_version AS {_MODEL_VERSION.format(notes=_NOTES[dialect], **fields)}")


def _create_tables() -> None:
    op.create_table(
        "registered_version",
        sa.Column("model", sa.String(63), primary_key=True),
        sa.Column("weights_digest", sa.String(64), primary_key=True),
        sa.Column("number", sa.String(32), nullable=False),
        sa.Column("logged_model", sa.String(64), nullable=False),
        sa.Column("artifact_digest", sa.String(64), nullable=False),
        sa.Column("rebuilt_at", sa.DateTime(timezone=True)),
    )
    op.create_table(
        "registry_finding",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("model", sa.String(63), nullable=False, index=True),
        sa.Column("alias", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("served", sa.String(64), nullable=False),
        sa.Column("words", sa.Text, nullable=False),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("announced_at", sa.DateTime(timezone=True)),
    )
    op.create_table(
        "rollback_order",
        sa.Column("order_id", sa.String(32), primary_key=True),
        sa.Column("model", sa.String(63), nullable=False),
        sa.Column("weights_digest", sa.String(64), nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("ordered_by", sa.String(512), nullable=False),
        sa.Column("ordered_at", sa.DateTime(timezone=True), nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("the ledger is append-only: restore the database from its backup")
