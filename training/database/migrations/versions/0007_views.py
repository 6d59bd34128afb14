"""Views for SQL clients (docs/sql.md). A later migration that changes a column they read drops and makes them again."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# A view that begins with WITH refuses INSERT, UPDATE and DELETE on PostgreSQL, as each view does on SQLite.
# PostgreSQL's `->>` is json_extract in SQLite, which knows the operator only from 3.38.
_DATASET_VERSION = """
WITH versions AS (SELECT * FROM dataset_version)
SELECT
    name, version, storage_uri, row_count, size_bytes, schema_hash, split_config, split_config_hash, created_at, created_by,
    CASE WHEN deprecated_by IS NOT NULL THEN 'deprecated' WHEN deprecated_at IS NOT NULL THEN 'deleted' ELSE 'available' END AS health,
    deprecated_at, deprecated_by, deprecated_reason
FROM versions
"""
_TRAINING_DATASETS = """
WITH versions AS (SELECT * FROM dataset_version)
SELECT
    name || ':' || version AS dataset_id, name AS pipeline, version AS feature_store_version, split_config_hash,
    storage_uri AS s3_path, row_count, created_at
FROM versions
"""
_MODEL_VERSION = """
WITH versions AS (
    SELECT
        model, version, MAX(semantic_version) AS semantic_version, MIN(decided_at) AS first_decided_at, MAX(id) AS last_id,
        MAX(CASE WHEN action IN ('promoted', 'rolled_back') THEN id END) AS promotion_id,
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
    made.created_at, versions.weights_deleted_at
FROM versions
JOIN ledger_decision AS latest ON latest.id = versions.last_id
LEFT JOIN ledger_decision AS promotion ON promotion.id = versions.promotion_id
LEFT JOIN model_standing AS standing ON standing.model = versions.model
LEFT JOIN model_version AS made ON made.model = versions.model AND made.semantic_version = versions.semantic_version
"""
_FIELD = {"sqlite": "json_extract(standing.{seat}, '$.version')", "postgresql": "standing.{seat} ->> 'version'"}
_VIEWS = {"bi_dataset_version": _DATASET_VERSION, "bi_training_datasets": _TRAINING_DATASETS, "bi_model_version": _MODEL_VERSION}


def upgrade() -> None:
    field = _FIELD[op.get_bind().dialect.name]
    fields = {seat: field.format(seat=seat) for seat in ("champion", "canary")}
    for name, query in _VIEWS.items():
        op.execute(f"CREATE VIEW {name} AS {query.format(**fields)}")


def downgrade() -> None:
    for name in _VIEWS:
        op.execute(f"DROP VIEW {name}")
