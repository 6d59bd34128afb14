"""The view of model versions has what a person wrote about each: the answer to a request for approval, or the reason of a rollback."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# As in 0007, with the newest decision of a person about each version.
_MODEL_VERSION = """
WITH versions AS (
    SELECT
        model, version, MAX(semantic_version) AS semantic_version, MIN(decided_at) AS first_decided_at, MAX(id) AS last_id,
        MAX(CASE WHEN action IN ('promoted', 'rolled_back') THEN id END) AS promotion_id,
        MAX(CASE WHEN action = 'rolled_back' OR outcome IN ('approved', 'declined') THEN id END) AS person_id,
        MAX(CASE WHEN action IN ('promoted', 'rolled_back', 'canary') THEN 1 ELSE 0 END) AS had_alias,
        MAX(deleted_at) AS weights_deleted_at
    FROM ledger_decision
    GROUP BY model, version
)
SELECT
    versions.model AS model_name, versions.version, versions.semantic_version,
    CASE
        WHEN versions.version = {champion} THEN 'champion'
        WHEN versions.version = {canary} THEN 'canary'
        WHEN versions.had_alias = 1 THEN 'archived'
        ELSE 'candidate'
    END AS stage,
    latest.outcome AS last_outcome, versions.first_decided_at, promotion.decided_at AS promoted_at, promotion.decided_by AS promoted_by,
    made.framework, made.input_schema, made.output_schema, made.code_version, made.snapshot_digest, made.weights_digest,
    made.created_at, versions.weights_deleted_at{notes}
FROM versions
JOIN ledger_decision AS latest ON latest.id = versions.last_id
LEFT JOIN ledger_decision AS promotion ON promotion.id = versions.promotion_id
LEFT JOIN ledger_decision AS person ON person.id = versions.person_id
LEFT JOIN model_standing AS standing ON standing.model = versions.model
LEFT JOIN model_version AS made ON made.model = versions.model AND made.semantic_version = versions.semantic_version
"""
_FIELD = {"sqlite": "json_extract(standing.{seat}, '$.version')", "postgresql": "standing.{seat} ->> 'version'"}
_NOTES = {
    "sqlite": ", json_extract(person.reasons, '$[#-1].words') AS notes",
    "postgresql": ", person.reasons -> -1 ->> 'words' AS notes",
}


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    if dialect == "postgresql":
        # A view that is made again has lost the rights of the roles that read it; a column may be added at the end.
        op.execute(f"CREATE OR REPLACE VIEW bi_model_version AS {_query(dialect, _NOTES[dialect])}")
    else:
        op.execute("DROP VIEW bi_model_version")
        op.execute(f"CREATE VIEW bi_model_version AS {_query(dialect, _NOTES[dialect])}")


def downgrade() -> None:
    op.execute("DROP VIEW bi_model_version")
    op.execute(f"CREATE VIEW bi_model_version AS {_query(op.get_bind().dialect.name, '')}")


def _query(dialect: str, notes: str) -> str:
    field = _FIELD[dialect]
    return _MODEL_VERSION.format(notes=notes, champion=field.format(seat="champion"), canary=field.format(seat="canary"))
