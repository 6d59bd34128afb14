"""The views for SQL clients tell what the ledger tells, on each database, and cannot be written to."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tests.unit.training.registry.scenes import candidate, decide_on
from training.database import connect
from training.database.schema import DatasetVersionRow, LedgerDecisionRow, ModelStandingRow, ModelVersionRow
from training.registry.ledger.decisions import answer_request, record_candidate, roll_back, settle_canary
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.version_weights import MLflowRegistration

NOW = datetime(2026, 2, 1, tzinfo=UTC)
VIEWS = (
    *("bi_dataset_version", "bi_experiment_run", "bi_experiments", "bi_model_version"),
    *("bi_pipelines", "bi_run_metric", "bi_runs", "bi_training_datasets"),
)
PAGE = Path(__file__).parents[4] / "docs" / "sql.md"


def dataset(version: str, **values: Any) -> DatasetVersionRow:
    fixed: dict[str, Any] = {"name": "ranking", "version": version, "storage_uri": f"s3://b/{version}", "row_count": 9, "size_bytes": 5}
    made = {"schema_hash": "h", "split_config": {"test": 1}, "split_config_hash": "s", "created_at": NOW, "created_by": "t"}
    return DatasetVersionRow(**fixed, **made, **values)


def decision(model: str, version: str, action: str, outcome: str, by: str, *, semantic: str | None = None) -> LedgerDecisionRow:
    return LedgerDecisionRow(
        model=model,
        decision_key=f"{version}-{action}-{by}",
        weights_digest=f"w{version}",
        version=version,
        action=action,
        outcome=outcome,
        reasons=[],
        evidence={},
        decided_at=NOW,
        decided_by=by,
        semantic_version=f"1.{version}.0" if semantic is None else semantic,
    )


def add(engine: Engine, *rows: Any) -> None:
    with Session(engine) as session, session.begin():
        for row in rows:
            session.add(row)
            session.flush()


def read(engine: Engine, query: str) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


def test_a_snapshot_is_available_deprecated_by_a_person_or_deleted_by_retention(empty_database: str) -> None:
    engine = connect(empty_database)
    person = {"deprecated_at": NOW, "deprecated_by": "ada", "deprecated_reason": "late flights"}
    add(engine, dataset("a"), dataset("b", **person), dataset("c", deprecated_at=NOW))
    assert read(engine, "SELECT version, health, deprecated_by FROM bi_dataset_version ORDER BY version") == [
        ("a", "available", None),
        ("b", "deprecated", "ada"),
        ("c", "deleted", None),
    ]
    wanted = "SELECT dataset_id, feature_store_version, split_config_hash, s3_path, row_count FROM bi_training_datasets ORDER BY 1"
    assert read(engine, wanted)[0] == ("ranking:a", "a", "s", "s3://b/a", 9)


def test_the_stage_of_a_version_follows_the_standing_and_its_past(empty_database: str) -> None:
    engine = connect(empty_database)
    add(
        engine,
        decision("m", "1", "promoted", "accepted", "night-1"),
        decision("m", "2", "recorded", "rejected", "night-2"),
        decision("m", "3", "promoted", "accepted", "night-3"),
        decision("m", "4", "canary", "accepted", "night-4"),
        decision("m", "4", "canary_ended", "rolled_back", "settle"),
        decision("m", "5", "canary", "accepted", "night-5"),
        decision("m", "1", "rolled_back", "rolled_back", "ada"),
        decision("other", "1", "recorded", "rejected", "night-6"),
        ModelStandingRow(model="m", champion={"weights_digest": "w1"}, canary={"weights_digest": "w5"}, revision=6),
    )
    found = read(engine, "SELECT model_name, version, stage, last_outcome, promoted_by FROM bi_model_version ORDER BY 1, 2")
    assert found == [
        ("m", "1", "champion", "rolled_back", "ada"),
        ("m", "2", "candidate", "rejected", None),
        ("m", "3", "archived", "accepted", "night-3"),
        ("m", "4", "archived", "rolled_back", None),
        ("m", "5", "canary", "accepted", None),
        ("other", "1", "candidate", "rejected", None),
    ]


def test_weights_that_had_the_same_number_are_two_versions_each_with_the_number_that_it_has_now(empty_database: str) -> None:
    ledger, engine = Ledger(empty_database), connect(empty_database)
    decide_on(ledger, 1)
    # The registered model was deleted: MLflow numbers from 1 again.
    holder = replace(candidate(2), version="1")
    evidence = {"evaluation_digest": "e2", "weights_digest": "w2", "revision": 1}
    record_candidate(ledger, holder, model="m", outcome="rejected", reasons=[], evidence=evidence, decided_by="night/2")
    wanted = "SELECT version, weights_digest, stage FROM bi_model_version ORDER BY weights_digest"
    assert read(engine, wanted) == [("1", "w1", "champion"), ("1", "w2", "candidate")]
    ledger.note_registration("m", "w1", MLflowRegistration(number="2", logged_model="m-1", artifact_digest="a"))
    assert read(engine, wanted) == [("2", "w1", "champion"), ("1", "w2", "candidate")]


def test_stages_agree_with_the_ledger_after_decisions_a_canary_and_a_rollback(empty_database: str) -> None:
    ledger, engine = Ledger(empty_database), connect(empty_database)

    def stages() -> dict[str, str]:
        return {str(version): str(stage) for version, stage in read(engine, "SELECT version, stage FROM bi_model_version")}

    decide_on(ledger, 1)
    decide_on(ledger, 2, "rejected")
    decide_on(ledger, 3, canary=True)
    assert stages() == {"1": "champion", "2": "candidate", "3": "canary"}
    settle_canary(ledger, ledger.standing("m"), outcome="accepted", reasons=[], evidence={}, decided_by="settle")
    assert stages() == {"1": "archived", "2": "candidate", "3": "champion"}
    decide_on(ledger, 4, canary=True)
    settle_canary(ledger, ledger.standing("m"), outcome="rolled_back", reasons=[], evidence={}, decided_by="settle")
    decide_on(ledger, 5, "needs_approval")
    assert read(engine, "SELECT notes FROM bi_model_version WHERE notes IS NOT NULL") == []
    (request,) = ledger.open_requests("m")
    answer_request(ledger, request, "declined", by="eve", words="declined by eve: not now")
    roll_back(ledger, "m", by="ada", reason="late flights")
    assert stages() == {"1": "champion", "2": "candidate", "3": "archived", "4": "archived", "5": "candidate"}
    notes = dict(read(engine, "SELECT version, notes FROM bi_model_version WHERE notes IS NOT NULL"))
    assert notes == {"1": "from version 3 (1.3.0): late flights", "5": "declined by eve: not now"}


def test_a_version_has_the_record_of_its_own_model_or_none(empty_database: str) -> None:
    engine = connect(empty_database)
    made: dict[str, Any] = {"input_schema": {}, "output_schema": {}, "recipe_digest": "r", "snapshot_digest": "d", "code_version": "c"}
    add(
        engine,
        ModelVersionRow(model="m", weights_digest="w1", semantic_version="1.1.0", framework="torch", created_at=NOW, **made),
        ModelVersionRow(model="n", weights_digest="w1", semantic_version="1.1.0", framework="xgboost", created_at=NOW, **made),
        decision("m", "1", "promoted", "accepted", "a"),
        decision("m", "2", "promoted", "accepted", "b", semantic=""),
    )
    wanted = "SELECT version, framework, weights_digest FROM bi_model_version ORDER BY version"
    assert read(engine, wanted) == [("1", "torch", "w1"), ("2", None, "w2")]


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_refuses_changes(empty_database: str, view: str) -> None:
    engine = connect(empty_database)
    add(engine, dataset("a"), decision("m", "1", "promoted", "accepted", "a"))
    column = inspect(engine).get_columns(view)[-1]["name"]
    for statement in (f"DELETE FROM {view}", f"UPDATE {view} SET {column} = NULL"):  # noqa: S608 - names are this file's own
        with pytest.raises(DBAPIError, match="view"), engine.begin() as connection:
            connection.execute(text(statement))


def test_the_page_lists_the_columns_of_each_view_and_its_queries_run(empty_database: str) -> None:
    engine, page = connect(empty_database), PAGE.read_text(encoding="utf-8")
    assert sorted(inspect(engine).get_view_names()) == list(VIEWS)
    rows = {row[1].strip(" `"): row[3] for line in page.splitlines() if len(row := line.split("|")) == 5}
    for view in VIEWS:
        columns = [column["name"] for column in inspect(engine).get_columns(view)]
        documented = re.findall(r"`(\w+)`", rows[view].replace("`dataset_id` (`<pipeline>:<version>`)", "`dataset_id`"))
        assert documented == columns, view
    for query in re.findall(r"```sql\n(.*?)```", page, re.DOTALL)[0].strip().splitlines():
        read(engine, query)
