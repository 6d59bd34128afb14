"""Studies through the REST API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from urllib.parse import quote

import pytest
from airflow.models import DagModel  # noqa: TID251 - marked as stale
from airflow.utils.session import create_session
from sqlalchemy import update
from sqlalchemy.orm import Session

from nightshift.queries import runs
from nightshift.queries import study_progress as of_studies
from nightshift.queries.study_progress import study_progress, trials_done
from nightshift.run_refs import settled_ref
from nightshift.settings import Settings
from nightshift.wiring.pipeline import build_dag
from tests.unit.plugins.airflow_dags import STUDY as STUDY_SECTION
from tests.unit.plugins.seeded_installation import STUDY_DIGEST, STUDY_RUN, Seeded
from training.errors import UnavailableError
from training.runtime.provenance import CHECKOUT
from training.spec.reader.loader import parse_spec
from training.store import Store
from training.tuning.records import objective_value

STUDY = quote(f"search_ranking:{STUDY_RUN}", safe="")
SPACE = {"learning_rate": {"float": [1e-5, 1e-3], "log": True}}


def test_a_study_shows_its_space_its_finished_trials_and_the_best_while_it_runs(seeded: Seeded) -> None:
    found = seeded.get(f"/hpo/studies/{STUDY}").json()
    assert (found["id"], found["pipeline"], found["state"]) == (f"search_ranking:{STUDY_RUN}", "search_ranking", "running")
    assert (found["digest"], found["objective"], found["num_trials"]) == (STUDY_DIGEST, "validation_loss", 3)
    assert list(found["space"]) == ["learning_rate"]
    assert found["space"]["learning_rate"]["float"] == [0.0001, 0.01]
    assert [(trial["number"], trial["value"]) for trial in found["trials"]] == [(0, 0.5), (1, 0.25)]
    assert (found["best"], found["lower_is_better"]) == (found["trials"][1], True)


@pytest.mark.usefixtures("seeded")
def test_finished_trials_of_a_study_are_counted_while_its_workers_run() -> None:
    store = Store(Settings.from_environment().store_uri)
    assert trials_done(store, "search_ranking", "search_ranking.tune", STUDY_RUN) == "2 of 3 trials"
    assert trials_done(store, "search_ranking", "search_ranking.tune", "not_planned") is None
    assert study_progress("search_ranking.tune", STUDY_RUN, ["success", "running"]) == "2 of 3 trials"
    assert study_progress("search_ranking.tune", STUDY_RUN, ["success", None]) is None


def test_a_run_is_shown_without_its_trials_and_holds_no_session_where_the_store_does_not_answer(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: list[Session] = []
    waits: list[timedelta] = []
    opened = runs.airflow_session

    @contextmanager
    def noted() -> Iterator[Session]:
        with opened() as session:
            sessions.append(session)
            yield session
            sessions.pop()

    def silent(_uri: str, *, retry_timeout: timedelta) -> Store:
        assert sessions == []
        waits.append(retry_timeout)
        raise UnavailableError("storage.unavailable", "no answer")

    monkeypatch.setattr(of_studies, "Store", silent)
    monkeypatch.setattr(runs, "airflow_session", noted)
    monkeypatch.setattr(runs, "study_progress", lambda dag_id, run_id, _states: study_progress(dag_id, run_id, ["running"]))
    found = seeded.get(f"/runs/{quote(f'search_ranking.tune:{STUDY_RUN}', safe='')}").json()
    assert [stage["progress"] for stage in found["stages"] if stage["name"] == of_studies.TRIALS] == [None]
    assert waits == [of_studies.PATIENCE]


@pytest.mark.parametrize(
    ("objective", "shown"), [("validation_loss", -0.7), ("log_loss", -0.7), ("auc", 0.7), ("ndcg@10", 0.7), ("own", 0.7)]
)
def test_a_value_is_shown_in_the_direction_of_its_metric(objective: str, shown: float) -> None:
    assert objective_value(objective, -0.7) == shown


def test_a_started_study_is_a_run_of_the_helper_dag_with_its_own_space_and_no_trials_yet(seeded: Seeded) -> None:
    body = {"pipeline": "search_ranking", "space": SPACE, "objective": "ndcg@10", "trials": 7, "as_of": "2026-02-01"}
    answer = seeded.post("/hpo/studies", body, headers={"Idempotency-Key": "s1"})
    assert answer.status_code == 202, answer.text
    found = answer.json()
    assert (found["state"], found["triggered_by"], found["num_trials"], found["trials"]) == ("queued", "bob", None, [])
    assert answer.headers["location"] == f"/api/v1/hpo/studies/{quote(found['id'], safe='')}"
    assert seeded.post("/hpo/studies", body, headers={"Idempotency-Key": "s1"}).json() == found
    assert seeded.get(f"/hpo/studies/{quote(found['id'], safe='')}").json() == found
    # It is no run of the pipeline.
    assert found["id"] not in [run["id"] for run in seeded.get("/runs?pipeline=search_ranking").json()["items"]]


def test_a_pipeline_without_tune_has_no_study_to_start(seeded: Seeded) -> None:
    set_stale("flight_delay.tune", is_stale=True)
    try:
        answer = seeded.post("/hpo/studies", {"pipeline": "flight_delay"})
    finally:
        set_stale("flight_delay.tune", is_stale=False)
    assert (answer.status_code, answer.json()["code"]) == (409, "study.missing")
    assert "tune" in answer.json()["hint"]


def set_stale(dag_id: str, *, is_stale: bool) -> None:
    """Make a DAG one that its file has no longer, as Airflow's parser does."""
    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id == dag_id).values(is_stale=is_stale))


def test_who_may_start_runs_and_not_those_of_the_helper_dag_is_refused(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.api.access.Access.may_start", lambda self, dag_id: not dag_id.endswith(".tune"))
    answer = seeded.post("/hpo/studies", {"pipeline": "search_ranking"})
    assert (answer.status_code, answer.json()["code"]) == (403, "access.denied")


def test_a_night_without_a_study_answers_with_no_trials(seeded: Seeded) -> None:
    (run, *_) = seeded.get("/runs?pipeline=flight_delay").json()["items"]
    found = seeded.get(f"/hpo/studies/{quote(run['id'], safe='')}").json()
    assert (found["id"], found["num_trials"], found["trials"]) == (run["id"], None, [])


def test_a_settled_spec_that_was_deleted_is_no_internal_error(seeded: Seeded) -> None:
    store = Store(Settings.from_environment().store_uri)
    ref = settled_ref(store, "search_ranking.tune", "manual__study")
    head = ref.read()
    assert head is not None
    ref.move({**head.value, "spec_uri": f"{store.root_uri}/objects/00/{'0' * 64}"}, expected=head.number)
    answer = seeded.get(f"/hpo/studies/{STUDY}")
    assert (answer.status_code, answer.json()["code"]) == (409, "object.missing")


def test_the_tasks_of_a_study_come_in_their_order_in_a_run() -> None:
    path = CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"
    study = build_dag(parse_spec(path.read_bytes() + STUDY_SECTION), path)
    tasks = [task.task_id for task in study.topological_sort()]
    chain = list(runs._chain())
    assert [name for name in chain if name in tasks] == [name for name in tasks if name in chain]
    assert {"tune_plan", "trials", "tune"} <= set(chain) & set(tasks)
