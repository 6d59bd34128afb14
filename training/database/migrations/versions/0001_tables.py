"""The tables, the triggers that keep the ledger append-only, and the views for SQL clients (docs/sql.md)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_INSTANT = sa.DateTime(timezone=True)

_FIXED = (
    *("id", "model", "decision_key", "weights_digest", "version", "action", "outcome", "reasons", "evidence"),
    *("decided_at", "decided_by", "semantic_version", "request_key", "revision"),
)
_TWICE = "OLD.deleted_at IS NOT NULL OR NEW.deleted_at IS NULL"
_REFUSE = "BEGIN SELECT RAISE(ABORT, 'ledger_decision is append-only'); END"
_TRIGGERS = {
    "sqlite": [
        f"CREATE TRIGGER ledger_decision_no_delete BEFORE DELETE ON ledger_decision {_REFUSE}",
        f"CREATE TRIGGER ledger_decision_no_update BEFORE UPDATE OF {', '.join(_FIXED)} ON ledger_decision {_REFUSE}",
        f"CREATE TRIGGER ledger_decision_deleted_once BEFORE UPDATE OF deleted_at ON ledger_decision WHEN {_TWICE} {_REFUSE}",
    ],
    "postgresql": [
        "CREATE FUNCTION ledger_decision_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'ledger_decision is append-only'; END $$",
        f"CREATE TRIGGER ledger_decision_append_only BEFORE UPDATE OF {', '.join(_FIXED)} OR DELETE OR TRUNCATE ON ledger_decision "
        "FOR EACH STATEMENT EXECUTE FUNCTION ledger_decision_append_only()",
        f"CREATE TRIGGER ledger_decision_deleted_once BEFORE UPDATE OF deleted_at ON ledger_decision FOR EACH ROW WHEN ({_TWICE}) "
        "EXECUTE FUNCTION ledger_decision_append_only()",
    ],
}

# A view that begins with WITH refuses INSERT, UPDATE and DELETE on PostgreSQL, as each view does on SQLite.
# PostgreSQL's `->>` is json_extract in SQLite, which knows the operator only from 3.38.
# A later migration changes a view by CREATE OR REPLACE on PostgreSQL: one that is dropped loses the rights of the roles that read it.
_VIEWS = {
    "bi_dataset_version": """
WITH versions AS (SELECT * FROM dataset_version)
SELECT
    name, version, storage_uri, row_count, size_bytes, schema_hash, split_config, split_config_hash, created_at, created_by,
    CASE WHEN deprecated_by IS NOT NULL THEN 'deprecated' WHEN deprecated_at IS NOT NULL THEN 'deleted' ELSE 'available' END AS health,
    deprecated_at, deprecated_by, deprecated_reason
FROM versions
""",
    "bi_training_datasets": """
WITH versions AS (SELECT * FROM dataset_version)
SELECT
    name || ':' || version AS dataset_id, name AS pipeline, version AS feature_store_version, split_config_hash,
    storage_uri AS s3_path, row_count, created_at
FROM versions
""",
    "bi_run_metric": """
WITH points AS (SELECT * FROM run_metric)
SELECT run_id, metric_name, step, value, logged_at, attempt FROM points
""",
    "bi_experiments": """
WITH found AS (SELECT * FROM pipeline)
SELECT name AS experiment_id, name, owner, description FROM found
""",
    "bi_pipelines": """
WITH found AS (SELECT * FROM pipeline)
SELECT name AS pipeline_id, name, description, schedule, owner, dag_config, updated_at, owner AS created_by FROM found
""",
    "bi_runs": """
WITH found AS (SELECT * FROM pipeline_run)
SELECT run_id, pipeline AS pipeline_id, pipeline AS experiment_id, state, as_of, started_at, ended_at, git_commit, parameters FROM found
""",
    "bi_experiment_run": """
WITH found AS (SELECT * FROM pipeline_run)
SELECT
    run_id AS run_uuid, pipeline AS experiment,
    CASE state
        WHEN 'queued' THEN 'queued' WHEN 'success' THEN 'completed' WHEN 'failed' THEN 'failed' WHEN 'lost' THEN 'killed' ELSE 'running'
    END AS status,
    CASE WHEN LENGTH(git_commit) = 40 THEN git_commit END AS code_commit, resource_spec, started_at, ended_at
FROM found
""",
    # By weights: two versions may have had the same number, and one version several.
    "bi_model_version": """
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
""",
}
_JSON_FIELDS = {
    "sqlite": {
        "champion": "json_extract(standing.champion, '$.weights_digest')",
        "canary": "json_extract(standing.canary, '$.weights_digest')",
        "notes": "json_extract(person.reasons, '$[#-1].words')",
    },
    "postgresql": {
        "champion": "standing.champion ->> 'weights_digest'",
        "canary": "standing.canary ->> 'weights_digest'",
        "notes": "person.reasons -> -1 ->> 'words'",
    },
}


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    _create_data_and_runs()
    _create_ledger()
    _create_registry()
    for statement in _TRIGGERS[dialect]:
        op.execute(statement)
    for name, query in _VIEWS.items():
        op.execute(f"CREATE VIEW {name} AS {query.format(**_JSON_FIELDS[dialect])}")


def _create_data_and_runs() -> None:
    op.create_table(
        "dataset_version",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("storage_uri", sa.String(2048), nullable=False),
        sa.Column("row_count", sa.BigInteger, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("schema_hash", sa.String(64), nullable=False),
        sa.Column("split_config", sa.JSON, nullable=False),
        sa.Column("split_config_hash", sa.String(64), nullable=False),
        sa.Column("created_at", _INSTANT, nullable=False),
        sa.Column("created_by", sa.String(512), nullable=False),
        sa.Column("deprecated_at", _INSTANT),
        sa.Column("deprecated_by", sa.String(512)),
        sa.Column("deprecated_reason", sa.String(2000)),
        sa.UniqueConstraint("name", "version", name="uq_dataset_version_name_version"),
    )
    op.create_table(
        "pipeline",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("schedule", sa.String(200)),
        sa.Column("owner", sa.String(1000), nullable=False),
        sa.Column("dag_config", sa.JSON, nullable=False),
        sa.Column("updated_at", _INSTANT, nullable=False),
    )
    op.create_table(
        "pipeline_run",
        sa.Column("run_id", sa.String(320), primary_key=True),
        sa.Column("pipeline", sa.String(63), nullable=False),
        sa.Column("state", sa.String(16), nullable=False, index=True),
        sa.Column("as_of", _INSTANT),
        sa.Column("started_at", _INSTANT),
        sa.Column("ended_at", _INSTANT),
        sa.Column("git_commit", sa.String(64), nullable=False),
        sa.Column("parameters", sa.JSON, nullable=False),
        sa.Column("resource_spec", sa.JSON, nullable=False),
    )
    op.create_table(
        "run_metric",
        sa.Column("run_id", sa.String(320), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("metric_name", sa.String(250), nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("value", sa.Double),
        sa.Column("logged_at", _INSTANT, nullable=False),
        sa.Index("ix_run_metric_run_name_step", "run_id", "metric_name", "step"),
    )


def _create_ledger() -> None:
    op.create_table(
        "ledger_decision",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("model", sa.String(63), nullable=False),
        sa.Column("decision_key", sa.String(64), nullable=False),
        sa.Column("weights_digest", sa.String(64), nullable=False),
        sa.Column("version", sa.String(32), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("reasons", sa.JSON, nullable=False),
        sa.Column("evidence", sa.JSON, nullable=False),
        sa.Column("decided_at", _INSTANT, nullable=False),
        sa.Column("decided_by", sa.String(512), nullable=False),
        sa.Column("semantic_version", sa.String(32), nullable=False),
        sa.Column("request_key", sa.String(64)),
        sa.Column("revision", sa.BigInteger),
        sa.Column("deleted_at", _INSTANT),
        # What the ledger promises holds even for a writer that does not take its lock: rows without a value do not collide.
        sa.UniqueConstraint("model", "decision_key", name="uq_ledger_decision_model_key"),
        sa.UniqueConstraint("model", "request_key", name="uq_ledger_decision_model_request"),
        sa.UniqueConstraint("model", "revision", name="uq_ledger_decision_model_revision"),
        sa.Index("ix_ledger_decision_model_weights", "model", "weights_digest"),
    )
    op.create_table(
        "model_standing",
        sa.Column("model", sa.String(63), primary_key=True),
        sa.Column("champion", sa.JSON),
        sa.Column("canary", sa.JSON),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("mirrored_revision", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("mirrored_decisions", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("mirrors", sa.JSON, nullable=False),
    )
    op.create_table(
        "rollback_order",
        sa.Column("order_id", sa.String(32), primary_key=True),
        sa.Column("model", sa.String(63), nullable=False),
        sa.Column("weights_digest", sa.String(64), nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("ordered_by", sa.String(512), nullable=False),
        sa.Column("ordered_at", _INSTANT, nullable=False),
    )


def _create_registry() -> None:
    op.create_table(
        "registered_version",
        sa.Column("model", sa.String(63), primary_key=True),
        sa.Column("weights_digest", sa.String(64), primary_key=True),
        sa.Column("number", sa.String(32), nullable=False),
        sa.Column("logged_model", sa.String(64), nullable=False),
        sa.Column("artifact_digest", sa.String(64), nullable=False),
        sa.Column("rebuilt_at", _INSTANT),
    )
    op.create_table(
        "registry_finding",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("model", sa.String(63), nullable=False, index=True),
        sa.Column("alias", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("served", sa.String(64), nullable=False),
        sa.Column("words", sa.Text, nullable=False),
        sa.Column("first_seen_at", _INSTANT, nullable=False),
        sa.Column("ended_at", _INSTANT),
        sa.Column("announced_at", _INSTANT),
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
        sa.Column("created_at", _INSTANT, nullable=False),
        sa.UniqueConstraint("model", "semantic_version", name="uq_model_version_semantic"),
        sa.UniqueConstraint("model", "weights_digest", name="uq_model_version_weights"),
    )
