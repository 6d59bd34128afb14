"""The tables, the triggers that keep the ledger append-only, and the views for SQL clients (docs/sql.md)."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_INSTANT = sa.DateTime(timezone=True)
_NAME, _DIGEST, _WORD = sa.String(63), sa.String(64), sa.String(32)

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


def _given(name: str, kind: Any, **options: Any) -> sa.Column[Any]:
    """Return a column that every row has a value of."""
    return sa.Column(name, kind, nullable=False, **options)


def _create_data_and_runs() -> None:
    op.create_table(
        "dataset_version",
        sa.Column("id", _NUMBER, primary_key=True),
        _given("name", _NAME),
        _given("version", _DIGEST),
        _given("storage_uri", sa.String(2048)),
        _given("row_count", sa.BigInteger),
        _given("size_bytes", sa.BigInteger),
        _given("schema_hash", _DIGEST),
        _given("split_config", sa.JSON),
        _given("split_config_hash", _DIGEST),
        _given("created_at", _INSTANT),
        _given("created_by", sa.String(512)),
        sa.Column("deprecated_at", _INSTANT),
        sa.Column("deprecated_by", sa.String(512)),
        sa.Column("deprecated_reason", sa.String(2000)),
        sa.UniqueConstraint("name", "version", name="uq_dataset_version_name_version"),
    )
    op.create_table(
        "pipeline",
        sa.Column("name", _NAME, primary_key=True),
        _given("description", sa.Text),
        sa.Column("schedule", sa.String(200)),
        _given("owner", sa.String(1000)),
        _given("dag_config", sa.JSON),
        _given("updated_at", _INSTANT),
    )
    op.create_table(
        "pipeline_run",
        sa.Column("run_id", sa.String(320), primary_key=True),
        _given("pipeline", _NAME),
        _given("state", sa.String(16), index=True),
        sa.Column("as_of", _INSTANT),
        sa.Column("started_at", _INSTANT),
        sa.Column("ended_at", _INSTANT),
        _given("git_commit", _DIGEST),
        _given("parameters", sa.JSON),
        _given("resource_spec", sa.JSON),
    )
    op.create_table(
        "run_metric",
        sa.Column("run_id", sa.String(320), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        _given("attempt", sa.Integer),
        _given("metric_name", sa.String(250)),
        _given("step", sa.BigInteger),
        sa.Column("value", sa.Double),
        _given("logged_at", _INSTANT),
        sa.Index("ix_run_metric_run_name_step", "run_id", "metric_name", "step"),
    )


def _create_ledger() -> None:
    op.create_table(
        "ledger_decision",
        sa.Column("id", _NUMBER, primary_key=True),
        _given("model", _NAME),
        _given("decision_key", _DIGEST),
        _given("weights_digest", _DIGEST),
        _given("version", _WORD),
        _given("action", _WORD),
        _given("outcome", _WORD),
        _given("reasons", sa.JSON),
        _given("evidence", sa.JSON),
        _given("decided_at", _INSTANT),
        _given("decided_by", sa.String(512)),
        _given("semantic_version", _WORD),
        sa.Column("request_key", _DIGEST),
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
        sa.Column("model", _NAME, primary_key=True),
        sa.Column("champion", sa.JSON),
        sa.Column("canary", sa.JSON),
        _given("revision", sa.BigInteger),
        _given("mirrored_revision", sa.BigInteger, server_default="0"),
        _given("mirrored_decisions", sa.BigInteger, server_default="0"),
        _given("mirrors", sa.JSON),
    )
    op.create_table(
        "rollback_order",
        sa.Column("order_id", _WORD, primary_key=True),
        _given("model", _NAME),
        _given("weights_digest", _DIGEST),
        _given("revision", sa.BigInteger),
        _given("reason", sa.Text),
        _given("ordered_by", sa.String(512)),
        _given("ordered_at", _INSTANT),
    )


def _create_registry() -> None:
    op.create_table(
        "registered_version",
        sa.Column("model", _NAME, primary_key=True),
        sa.Column("weights_digest", _DIGEST, primary_key=True),
        _given("number", _WORD),
        _given("logged_model", _DIGEST),
        _given("artifact_digest", _DIGEST),
        sa.Column("rebuilt_at", _INSTANT),
    )
    op.create_table(
        "registry_finding",
        sa.Column("id", _NUMBER, primary_key=True),
        _given("model", _NAME, index=True),
        _given("alias", _WORD),
        _given("kind", _WORD),
        _given("served", _DIGEST),
        _given("words", sa.Text),
        _given("first_seen_at", _INSTANT),
        sa.Column("ended_at", _INSTANT),
        sa.Column("announced_at", _INSTANT),
    )
    op.create_table(
        "model_version",
        sa.Column("id", _NUMBER, primary_key=True),
        _given("model", _NAME),
        _given("weights_digest", _DIGEST),
        _given("semantic_version", _WORD),
        _given("input_schema", sa.JSON),
        _given("output_schema", sa.JSON),
        _given("recipe_digest", _DIGEST),
        _given("framework", sa.String(200)),
        _given("snapshot_digest", _DIGEST),
        _given("code_version", sa.String(128)),
        _given("created_at", _INSTANT),
        sa.UniqueConstraint("model", "semantic_version", name="uq_model_version_semantic"),
        sa.UniqueConstraint("model", "weights_digest", name="uq_model_version_weights"),
    )
