"""Lists of the REST API over many pipelines with long histories: their parts, their queries, and the locks that they take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.models import DagModel  # noqa: TID251 - what the api-server reads
from airflow.models.dag import DagTag  # noqa: TID251 - as above
from airflow.models.dagrun import DagRun  # noqa: TID251 - as above
from airflow.utils.session import create_session
from sqlalchemy import Engine, delete, event

from nightshift.api.paging import cursor_of, key_of
from tests.long_histories import pipeline_names, write_histories, write_runs
from tests.unit.plugins.airflow_dags import PIPELINES
from tests.unit.plugins.api.test_rest_access import READS
from tests.unit.plugins.seeded_installation import Seeded
from training.database import connect
from training.errors import DeniedError

NUM_MODELS = 12
NUM_NIGHTS = 9
NAMES = pipeline_names(NUM_MODELS)
LISTS = {
    "/models": "name",
    "/pipelines": "name",
    "/pipelines?with=last_run": "name",
    "/datasets": "pipeline",
    "/runs": "id",
    f"/runs?pipeline={NAMES[3]}": "id",
    f"/models/{NAMES[3]}/decisions": "key",
    f"/datasets/{NAMES[3]}/versions": "version",
}


@pytest.fixture
def long(seeded: Seeded) -> Iterator[Seeded]:
    """The seeded installation, with more models that have more nights."""
    write_histories(connect(), num_models=NUM_MODELS, num_nights=NUM_NIGHTS)
    try:
        write_runs(NAMES, num_nights=NUM_NIGHTS)
        yield seeded
    finally:
        with create_session() as session:
            for kind in (DagTag, DagRun, DagModel):
                session.execute(delete(kind).where(kind.dag_id.in_(NAMES)))


@contextmanager
def statements() -> Iterator[list[tuple[str, str]]]:
    """Note database and text of each statement."""
    found: list[tuple[str, str]] = []

    def note(connection: Any, _cursor: object, statement: str, *_given: object) -> None:
        found.append((str(connection.engine.url.database), statement))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def with_query(path: str, **query: object) -> str:
    return f"{path}{'&' if '?' in path else '?'}{'&'.join(f'{name}={value}' for name, value in query.items())}"


def in_parts(seeded: Seeded, path: str, limit: int) -> list[Any]:
    found: list[Any] = []
    page = seeded.get(with_query(path, limit=limit)).json()
    while True:
        assert len(page["items"]) <= limit
        found += page["items"]
        if page["next"] is None:
            return found
        page = seeded.get(with_query(path, limit=limit, cursor=page["next"])).json()


@pytest.mark.parametrize(("path", "key"), LISTS.items())
def test_a_list_has_the_same_items_in_the_same_order_in_pages_of_any_size(long: Seeded, path: str, key: str) -> None:
    whole = long.get(with_query(path, limit=200)).json()
    assert whole["next"] is None
    assert len({each[key] for each in whole["items"]}) == len(whole["items"]) >= NUM_NIGHTS
    for limit in (1, 4, len(whole["items"]), len(whole["items"]) - 1):
        assert in_parts(long, path, limit) == whole["items"]


def test_a_cursor_with_the_character_nul_is_invalid() -> None:
    with pytest.raises(DeniedError, match="is not one of this list"):
        key_of(cursor_of("search\0ranking"))


@pytest.mark.parametrize("path", LISTS)
def test_a_list_makes_as_many_queries_for_nine_items_as_for_two(long: Seeded, path: str) -> None:
    counts = []
    for limit in (2, 9):
        # What is asked once in a process is asked here.
        long.get(with_query(path, limit=limit))
        with statements() as found:
            answer = long.get(with_query(path, limit=limit))
        assert len(answer.json()["items"]) == limit
        counts.append(len(found))
    assert counts[0] == counts[1] > 0


def test_the_newest_runs_are_read_alone_and_no_older_ones_to_sort_them(long: Seeded) -> None:
    with statements() as found:
        assert long.get("/runs").status_code == 200
    (asked,) = (statement for _, statement in found if statement.startswith("SELECT dag_run.id"))
    with create_session() as session:
        plan = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {asked}", ("",) * asked.count("?"))
        assert "USE TEMP B-TREE FOR ORDER BY" not in [row.detail for row in plan]


@pytest.mark.parametrize("path", READS)
def test_no_read_takes_the_write_lock_of_the_ledger(seeded: Seeded, path: str) -> None:
    with statements() as found:
        assert seeded.get(path).status_code == 200
    assert "BEGIN IMMEDIATE" not in [statement for database, statement in found if database.endswith("nightshift.db")]


def test_pipelines_have_their_newest_run_where_a_request_asks_for_it(long: Seeded) -> None:
    plain, asked = long.get("/pipelines").json()["items"], long.get("/pipelines?with=last_run").json()["items"]
    assert [{name: value for name, value in each.items() if name != "last_run"} for each in asked] == plain
    assert "last_run" not in plain[0]
    for each in asked:
        assert each["last_run"] == long.get(f"/runs?pipeline={each['name']}&limit=1").json()["items"][0]
    assert asked[-2]["last_run"]["note"] == f"rejected: auc +0.1 %, night {NUM_NIGHTS - 1}"
    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id == NAMES[0]))
    found = {each["name"]: each["last_run"] for each in long.get("/pipelines?with=last_run").json()["items"]}
    assert found[NAMES[0]] is None
    refused = long.get("/pipelines?with=models")
    assert (refused.status_code, refused.json()["code"]) == (422, "request.invalid")


def test_lists_leave_out_what_the_user_may_not_read(long: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    general, own = SimpleAuthManager.is_authorized_dag, {NAMES[2], NAMES[5], NAMES[7]}

    def by_dag(self: SimpleAuthManager, *, details: Any = None, **options: Any) -> bool:
        return details is not None and details.id in own and general(self, details=details, **options)

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", by_dag)
    # The DAGs may be seen; the runs of two of them may not.
    monkeypatch.setattr(SimpleAuthManager, "get_authorized_dag_ids", lambda self, **options: {*own, NAMES[1], *PIPELINES})
    for path in ("/models", "/datasets"):
        assert [each[LISTS[path]] for each in in_parts(long, path, 2)] == sorted(own)
    assert {each["pipeline"] for each in in_parts(long, "/runs", 4)} == own
    shown = {each["name"]: each["last_run"] is not None for each in in_parts(long, "/pipelines?with=last_run", 2)}
    assert shown == {**dict.fromkeys(own, True), NAMES[1]: False, **dict.fromkeys(PIPELINES, False)}
