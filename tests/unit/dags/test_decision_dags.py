"""The DAGs beside a pipeline's own, and those of all models: when there are any, and how they are made."""

import json
from pathlib import Path

import pytest
from airflow.sdk import DAG, Asset
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.definitions.timetables.assets import AssetTriggeredTimetable
from airflow.serialization.serialized_objects import DagSerialization

from nightshift.wiring.housekeeping import housekeeping_dag
from nightshift.wiring.pipeline import build_dag, decision_dags, pipeline_dag
from nightshift.wiring.rollback import rollback_dag
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, parse_spec
from training.spec.rules.names import name_is_free

PATH = CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"
PROMOTE = "promote: {model: search_ranking, approval: automatic}"
CANARY = 'promote: {model: search_ranking, canary: {for: 1d, schedule: "5 * * * *"}}'


def spec_with(old: str = "", new: str = "") -> PipelineSpec:
    text = PATH.read_text(encoding="utf-8")
    assert old in text
    return parse_spec(text.replace(old, new, 1).encode())


def dags_of(old: str, new: str) -> dict[str, DAG]:
    return {dag.dag_id: dag for dag in decision_dags(spec_with(old, new), PATH)}


def chain_of(dag: DAG) -> dict[str, set[str]]:
    return {task.task_id: task.downstream_task_ids for task in dag.tasks}


def test_a_pipeline_that_requests_no_approval_and_has_no_canary_has_one_dag() -> None:
    assert decision_dags(spec_with(), PATH) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (PROMOTE, PROMOTE.replace("automatic", "required")),
        ("slice_support: 500", "slice_support: 500\n  slice_drop: 0.1\n  severity: {slices: approve}"),
    ],
    ids=["required", "a gate that asks"],
)
def test_where_people_may_be_asked_there_is_a_dag_that_a_request_starts(old: str, new: str) -> None:
    (dag,) = dags_of(old, new).values()
    assert dag.dag_id == "search_ranking.approval"
    assert chain_of(dag) == {"ask": {"promote"}, "promote": set()}
    assert dag.task_dict["promote"].trigger_rule == "all_done"
    assert dag.max_active_runs > 1
    (wanted,) = dag.timetable.asset_condition.objects
    assert wanted == Asset(name="search_ranking@requested", uri="nightshift://models/search_ranking/requested", group="nightshift")


def test_a_canary_is_judged_by_the_same_stages_as_a_night_up_to_its_own() -> None:
    (dag,) = dags_of(PROMOTE, CANARY).values()
    assert dag.dag_id == "search_ranking.canary"
    assert list(chain_of(dag)) == ["resolve", "wait", "ingest", "validate", "prepare", "canary", "promote", "next_look"]
    assert dag.max_active_runs == 1
    assert dag.catchup is False


def test_a_canarys_dag_is_started_by_its_event_alone_and_a_look_that_fails_is_followed_by_the_next() -> None:
    (dag,) = dags_of(PROMOTE, CANARY).values()
    # No slot of a schedule makes a run where there is no canary.
    assert type(dag.timetable) is AssetTriggeredTimetable
    (wanted,) = dag.timetable.asset_condition.objects
    assert wanted.name == "search_ranking@canary"
    # A teardown: it runs after a failure, and the run's state is that of `promote`.
    next_look = dag.task_dict["next_look"]
    assert next_look.is_teardown
    assert not next_look.on_failure_fail_dagrun
    assert next_look.upstream_task_ids == {"promote"}


def test_the_dags_of_decisions_register_themselves_with_their_pipelines_file(tmp_path: Path) -> None:
    from airflow.dag_processing.dagbag import DagBag

    (tmp_path / "pipelines").mkdir()
    text = PATH.read_text(encoding="utf-8").replace(PROMOTE, CANARY.replace("search_ranking,", "search_ranking, approval: required,"))
    (tmp_path / "pipelines" / "search_ranking.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "search_ranking.py").write_text((CHECKOUT / "dags" / "search_ranking.py").read_text(encoding="utf-8"), encoding="utf-8")
    bag = DagBag(dag_folder=str(tmp_path))
    assert bag.import_errors == {}
    assert sorted(bag.dags) == ["search_ranking", "search_ranking.approval", "search_ranking.canary"]


def test_no_pipeline_can_have_the_id_of_a_dag_that_is_made_beside_it() -> None:
    """All DAGs that one pipeline and the folder can make; a new kind of helper DAG whose name is not reserved fails here."""
    text = PATH.read_text(encoding="utf-8").replace(PROMOTE, CANARY.replace("search_ranking,", "search_ranking, approval: required,"))
    study = "\ntune: {trials: 2, space: {epochs: {int: [1, 2]}}}\n"
    beside = {dag.dag_id for dag in decision_dags(parse_spec((text + study).encode()), PATH)}
    shared = {path.stem for path in (CHECKOUT / "dags").glob("*.py")} - {path.stem for path in PATH.parent.glob("*.yaml")}
    assert len(beside) == 3
    assert shared == {housekeeping_dag().dag_id, rollback_dag().dag_id}
    for dag_id in beside | shared:
        assert [finding.code for finding in name_is_free(dag_id)] == ["name.reserved"], dag_id


def test_all_of_them_serialise_to_the_same_text_twice() -> None:
    text = CANARY.replace("search_ranking,", "search_ranking, approval: required,")

    def made() -> list[str]:
        dags = [*decision_dags(spec_with(PROMOTE, text), PATH), housekeeping_dag(), rollback_dag()]
        return [json.dumps(DagSerialization.to_dict(dag), sort_keys=True) for dag in dags]

    first = made()
    assert len(first) == 4
    assert made() == first


def test_a_nights_evaluation_reads_the_champion_and_its_decision_may_move_it() -> None:
    dag = build_dag(spec_with(), PATH)
    (read,) = dag.task_dict["evaluate"].inlets
    assert (read.name, read.uri) == ("search_ranking@champion", "nightshift://models/search_ranking/champion")
    (outlet,) = dag.task_dict["promote"].outlets
    assert outlet.name == "nightshift-decisions"


def test_a_rollback_takes_an_order_and_neither_a_model_nor_a_reason() -> None:
    dag = rollback_dag()
    assert chain_of(dag) == {"rollback": set()}
    assert {name for name, param in dag.params.items() if dag.params.get_param(name).schema.get("type") == "string"} == {"order"}


def test_housekeeping_expires_requests_and_then_repairs_all_models_in_one_task() -> None:
    dag = housekeeping_dag()
    assert chain_of(dag) == {
        "expire": {"repair"},
        "repair": set(),
        "collect": set(),
        "clean": set(),
        "metrics": set(),
        "canary_looks": set(),
    }
    assert [task_id for task_id, task in dag.task_dict.items() if isinstance(task, MappedOperator)] == []


def test_one_file_still_gives_its_pipelines_dag() -> None:
    assert pipeline_dag(str(CHECKOUT / "dags" / "flight_delay.py")).dag_id == "flight_delay"
