"""The shipped pipelines as DAGs, and what a DAG folder does with a broken one."""

import copy
import json
import os
import shutil
import subprocess
import sys
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from airflow.cli.simple_table import AirflowConsole
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.definitions.param import Param, process_params
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from nightshift.airflow_ext.alerts import deadline_missed
from nightshift.airflow_ext.deadlines import TimeOfDayDeadline
from nightshift.airflow_ext.timetables import CronTimetable
from nightshift.wiring.housekeeping import housekeeping_dag
from nightshift.wiring.pipeline import build_dag, decision_dags, pipeline_dag
from nightshift.wiring.rollback import rollback_dag
from training.runtime.provenance import CHECKOUT
from training.spec import load_spec, parse_spec

DAGS = CHECKOUT / "dags"
TUNE = """
tune:
  trials: 4
  parallel: 2
  space: {learning_rate: {float: [1e-5, 1e-2], log: true}}
"""
SERIALISED = """
import json, sys
from nightshift.wiring.pipeline import pipeline_dag
from airflow.serialization.serialized_objects import DagSerialization
sys.stdout.write("\\n" + json.dumps(DagSerialization.to_dict(pipeline_dag(sys.argv[1])), sort_keys=True))
"""


@pytest.fixture(scope="module")
def ranking() -> DAG:
    return pipeline_dag(str(DAGS / "search_ranking.py"))


@pytest.fixture(scope="module")
def flights() -> DAG:
    return pipeline_dag(str(DAGS / "flight_delay.py"))


def changed(pipeline: str, old: str, new: str) -> DAG:
    path = DAGS / "pipelines" / f"{pipeline}.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    return build_dag(parse_spec(text.replace(old, new, 1).encode()), path)


def serialised(dag: DAG) -> str:
    # Keys sorted, as Airflow does before it compares: its own order of fields comes from sets.
    return json.dumps(DagSerialization.to_dict(dag), sort_keys=True)


def test_the_chain_of_a_partitioned_source_waits(ranking: DAG) -> None:
    assert {task.task_id: task.downstream_task_ids for task in ranking.tasks} == {
        "resolve": {"wait"},
        "wait": {"ingest"},
        "ingest": {"validate"},
        "validate": {"prepare"},
        "prepare": {"train"},
        "train": {"evaluate"},
        "evaluate": {"promote"},
        "promote": set(),
    }


def test_the_chain_of_a_file_has_nothing_to_wait_for(flights: DAG) -> None:
    assert {task.task_id: task.downstream_task_ids for task in flights.tasks} == {
        "resolve": {"ingest"},
        "ingest": {"validate"},
        "validate": {"prepare"},
        "prepare": {"train"},
        "train": {"evaluate"},
        "evaluate": {"promote"},
        "promote": set(),
    }


def tuned() -> tuple[DAG, DAG]:
    """Return the ranking pipeline with a study, and the DAG of the study alone."""
    path = DAGS / "pipelines" / "search_ranking.yaml"
    spec = parse_spec(path.read_bytes() + TUNE.encode())
    (alone,) = [dag for dag in decision_dags(spec, path) if dag.dag_id == "search_ranking.tune"]
    return build_dag(spec, path), alone


def test_a_pipeline_with_a_study_searches_before_it_trains() -> None:
    dag, _ = tuned()
    assert {task.task_id: task.downstream_task_ids for task in dag.tasks} == {
        "resolve": {"wait"},
        "wait": {"ingest"},
        "ingest": {"validate"},
        "validate": {"prepare"},
        "prepare": {"tune_plan"},
        "tune_plan": {"trials"},
        "trials": {"tune"},
        "tune": {"train"},
        "train": {"evaluate"},
        "evaluate": {"promote"},
        "promote": set(),
    }
    assert dag.get_task("trials").is_mapped
    assert dag.get_task("trials").pool == "train"
    assert "tune" in dag.params


def test_a_refit_is_a_training_of_its_own_between_training_and_evaluation() -> None:
    dag = changed("search_ranking", "seed: 17", "seed: 17\n  refit: validation")
    refit = dag.get_task("refit")
    assert (refit.upstream_task_ids, refit.downstream_task_ids) == ({"train"}, {"evaluate"})
    assert (refit.task_type, refit.pool) == ("TrainOperator", "train")
    assert "refit" not in changed("search_ranking", "seed: 17", "seed: 17\n  refit: none").task_ids


def test_a_study_alone_trains_no_candidate() -> None:
    _, alone = tuned()
    assert {task.task_id: task.downstream_task_ids for task in alone.tasks} == {
        "resolve": {"wait"},
        "wait": {"ingest"},
        "ingest": {"validate"},
        "validate": {"prepare"},
        "prepare": {"tune_plan"},
        "tune_plan": {"trials"},
        "trials": {"tune"},
        "tune": set(),
    }
    assert not alone.timetable.can_be_scheduled


def test_a_pipeline_with_a_study_serialises_the_same_bytes_twice() -> None:
    first, second = serialised(tuned()[0]), serialised(tuned()[0])
    assert first == second
    assert " at 0x" not in first


def test_workers_have_both_budgets_and_alerts() -> None:
    trials = tuned()[0].get_task("trials")
    assert trials.retries == 2 + 8
    assert trials.partial_kwargs["retry_policy"].failures == 2
    assert trials.partial_kwargs["on_failure_callback"]


def test_the_folder_loads_each_pipeline_under_its_name() -> None:
    bag = DagBag(dag_folder=str(DAGS))
    assert bag.import_errors == {}
    assert sorted(bag.dags) == ["flight_delay", "housekeeping", "rollback", "search_ranking"]


def test_safe_mode_finds_the_files() -> None:
    for path in DAGS.glob("*.py"):
        text = path.read_text(encoding="utf-8").lower()
        assert "dag" in text
        assert "airflow" in text
        assert len([line for line in text.splitlines() if line]) == 2


def test_a_broken_yaml_leaves_the_good_ones_loaded(tmp_path: Path) -> None:
    shutil.copytree(DAGS, tmp_path / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    broken = tmp_path / "dags" / "pipelines" / "flight_delay.yaml"
    broken.write_text(broken.read_text(encoding="utf-8").replace("epochs: 200", "epoch: 200"), encoding="utf-8")
    bag = DagBag(dag_folder=str(tmp_path / "dags"))
    assert sorted(bag.dags) == ["housekeeping", "rollback", "search_ranking"]
    ((path, error),) = bag.import_errors.items()
    assert path.endswith("flight_delay.py")
    assert f"{broken}:" in error
    assert "did you mean epochs?" in error
    # The command line prints the error through rich, which swallows `[code]` as markup.
    shown = StringIO()
    AirflowConsole(file=shown, width=400).print_as(data=[{"error": error}], output="table")
    assert "[spec.unknown_key]" in error
    assert "[spec.unknown_key]" not in shown.getvalue()
    assert "spec.unknown_key (line" in shown.getvalue()


def test_helper_dags_have_the_helpers_tag_and_name_their_pipeline_and_a_pipeline_does_not() -> None:
    path = DAGS / "pipelines" / "search_ranking.yaml"
    text = path.read_text(encoding="utf-8").replace("approval: automatic}", "approval: required, canary: {}}", 1) + TUNE
    spec = parse_spec(text.encode())
    helpers = decision_dags(spec, path)
    assert [dag.dag_id for dag in helpers] == ["search_ranking.approval", "search_ranking.canary", "search_ranking.tune"]
    # A paused one would leave what somebody starts queued for ever.
    assert [dag.is_paused_upon_creation for dag in helpers] == [False, False, False]
    assert all(str(dag.description).startswith("Helper of search_ranking: ") for dag in helpers)
    shared = [housekeeping_dag(), rollback_dag()]
    assert all(str(dag.description).startswith("Helper of all pipelines: ") for dag in shared)
    assert all("nightshift-helper" in dag.tags and "nightshift-pipeline" not in dag.tags for dag in [*helpers, *shared])
    assert "nightshift-helper" not in build_dag(spec, path).tags


def test_meta_data_comes_from_the_spec(ranking: DAG) -> None:
    assert ranking.tags == {"ranking", "torch", "demo", "nightshift-pipeline"}
    assert {task.owner for task in ranking.tasks} == {"search-relevance"}
    assert ranking.description == "Ranks the results of an online shop's search, retrained every night on the last thirty days of clicks."
    assert "```yaml" in str(ranking.doc_md)
    assert 'uri: "${SHOP_URI}/clicks"' in str(ranking.doc_md)
    assert ranking.max_active_runs == 1
    assert ranking.catchup is False


def test_every_task_has_both_budgets(ranking: DAG) -> None:
    assert {task.retries for task in ranking.tasks} == {2 + 8}
    assert {task.retry_delay for task in ranking.tasks} == {timedelta(seconds=10)}
    assert {task.retry_policy.failures for task in ranking.tasks if task.retry_policy} == {2}


def test_pools_are_those_of_the_resources(ranking: DAG) -> None:
    assert {task.task_id: task.pool for task in ranking.tasks if task.pool != "cpu"} == {"train": "train"}
    own = changed("search_ranking", "processes_per_node: 2}", "processes_per_node: 2, pool: big}")
    assert own.get_task("train").pool == "big"


def test_the_schedule_is_in_the_pipelines_time_zone(flights: DAG) -> None:
    assert isinstance(flights.timetable, CronTimetable)
    assert flights.timetable.serialize()["expression"] == "0 2 * * *"
    assert flights.timetable.serialize()["timezone"] == "America/New_York"
    assert flights.start_date is None


def test_the_first_day_of_the_schedule_is_a_day_of_its_time_zone() -> None:
    dag = changed("flight_delay", 'deadline: "07:00"', 'deadline: "07:00"\nstart: 2026-05-01')
    assert dag.start_date is not None
    assert dag.start_date.isoformat() == "2026-05-01T04:00:00+00:00"


def test_a_pipeline_without_a_schedule_is_started_by_hand() -> None:
    dag = changed("search_ranking", 'schedule: "0 2 * * *"\n', "")
    assert not dag.timetable.can_be_scheduled


def test_the_deadline_is_a_time_of_day(ranking: DAG) -> None:
    (alert,) = ranking.deadline or []
    assert alert.reference == TimeOfDayDeadline(at="07:00", timezone="UTC")
    assert alert.callback.path == f"{deadline_missed.__module__}.deadline_missed"
    assert alert.callback.kwargs == {
        "pipeline": "search_ranking",
        "deadline": "07:00 UTC",
        "alerts": {"on": ["failure", "deadline"], "webhook": "${ALERTS_URI}", "slack": None, "email": None},
    }


def test_alerts_that_are_not_configured_are_not_sent() -> None:
    dag = changed("search_ranking", "on: [failure, deadline]", "on: [success]")
    assert not dag.deadline
    assert [callback.__qualname__.partition(".")[0] for callback in dag.on_success_callback] == ["run_ended", "run_succeeded"]
    assert not any(task.on_failure_callback for task in dag.tasks)


def test_serialising_twice_gives_the_same_bytes(ranking: DAG) -> None:
    again = pipeline_dag(str(DAGS / "search_ranking.py"))
    assert serialised(again) == serialised(ranking)
    assert " at 0x" not in serialised(ranking)


@pytest.mark.slow
def test_two_processes_serialise_the_same_bytes(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "plugins")])}
    command = [sys.executable, "-c", SERIALISED, str(DAGS / "search_ranking.py")]
    started = [
        subprocess.Popen(command, env={**environment, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, cwd=tmp_path) for seed in ("1", "2")
    ]
    first, second = [process.communicate()[0].splitlines()[-1] for process in started]
    assert first == second
    assert json.loads(first)["dag"]["dag_id"] == "search_ranking"


@pytest.mark.parametrize(
    "conf",
    [
        {"train": {"epochs": 0}},
        {"train": {"epochs": "three"}},
        {"train": {"learning_rate": 0}},
        {"train": {"momentum": 1}},
        {"force": "yes"},
        {"as_of": 20260201},
        {"as_of": "yesterday"},
        {"as_of": "2026-02-01T02:00:00"},
        {"as_of": "2026-02-01\n"},
        {"train": {"settings": {"hiden": [8]}}},
        {"train": {"settings": {"dropout": 1}}},
        {"evaluate": {"confidence": 2}},
        {"evaluate": {"severity": {"drift": "warn"}}},
        {"evaluate": {"minimum": {"mrr": "high"}}},
    ],
)
def test_the_form_refuses(ranking: DAG, conf: dict[str, object]) -> None:
    params = copy.deepcopy(ranking.params)
    ((name, value),) = conf.items()
    with pytest.raises(ParamValidationError, match=name):
        params[name] = value


@pytest.mark.parametrize(
    "conf",
    [
        {"train": {"epochs": 5}},
        {"force": True},
        {"as_of": "2026-02-01T02:00:00+00:00"},
        {"as_of": None},
        {"as_of": "2026-02-01"},
        {"evaluate": {"minimum": {"mrr": 0.5}}},
        {"train": {"settings": {"hidden": [8]}}},
    ],
)
def test_the_form_accepts(ranking: DAG, conf: dict[str, object]) -> None:
    params = copy.deepcopy(ranking.params)
    ((name, value),) = conf.items()
    params[name] = value
    assert params[name] == value


def test_the_form_shows_what_the_spec_says(ranking: DAG) -> None:
    assert ranking.params.dump() == {
        "as_of": None,
        "force": False,
        "promote": True,
        "snapshot": None,
        "registration": None,
        "data": {"source": {"window": "30d"}},
        "train": load_spec(DAGS / "pipelines" / "search_ranking.yaml").train.model_dump(
            mode="json", exclude={"activation_checkpointing": True, "refit": True, "placement": {"pool"}}
        ),
        "evaluate": {
            "threshold": 0.5,
            "minimum": {"ndcg@10": 0.3},
            "maximum": {},
            "improvement": {"absolute": None, "relative": 0.005},
            "confidence": 0.95,
            "slice_support": 500,
            "slice_drop": None,
            "fairness": {"equal_opportunity": None, "calibration": None},
            "latency_ms": {"p50": None, "p95": None, "p99": None},
            "checks": {"leakage": 0.98, "overlap": None, "drift": 0.25},
        },
    }


@pytest.mark.parametrize("pipeline", ["search_ranking", "flight_delay"])
def test_serialised_params_refuse_an_as_of_that_is_no_time(pipeline: str) -> None:
    """What the api-server validates at a trigger, by UI, CLI and REST: the params as they come back from the database."""
    dag = DagSerialization.from_dict(json.loads(serialised(pipeline_dag(str(DAGS / f"{pipeline}.py")))))
    dag.params.deep_merge({"as_of": "2026-02-01"}).validate()
    dag.params.deep_merge({"as_of": None}).validate()
    wrong = dag.params.deep_merge({"as_of": "yesterday"})
    with pytest.raises(ParamValidationError, match="'yesterday' does not match"):
        wrong.validate()


def test_params_are_serialised_once_for_a_dag_and_not_once_for_each_task() -> None:
    """Each copy costs a check of its JSON Schema at every parse: 40 ms a DAG, 25 times a DAG without params."""
    path = DAGS / "pipelines" / "search_ranking.yaml"
    promote = 'approval: automatic, canary: {for: 1d, schedule: "5 * * * *"}}'
    spec = parse_spec((path.read_text(encoding="utf-8").replace("approval: automatic}", promote, 1) + TUNE).encode())
    dags = [build_dag(spec, path), *decision_dags(spec, path)]
    assert {dag.dag_id.rpartition(".")[2] for dag in dags} >= {"search_ranking", "canary", "tune"}
    for dag in dags:
        text = json.loads(serialised(dag))["dag"]
        assert text["params"], dag.dag_id
        assert [task["__var"]["task_id"] for task in text["tasks"] if task["__var"].get("params")] == []


@pytest.mark.parametrize("pipeline", ["search_ranking", "flight_delay"])
def test_parsing_a_pipeline_checks_no_params_whose_defaults_are_valid_anyway(pipeline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of one schema costs 3 ms: four fifths of the parse, in each round of the dag-processor and in each task."""
    checks: list[Param] = []
    with monkeypatch.context() as patch:
        patch.setattr(Param, "resolve", lambda param, *_values, **_options: checks.append(param))
        dag = pipeline_dag(str(DAGS / f"{pipeline}.py"))
    assert checks == []
    assert dag.params.validate()["force"] is False


def test_every_task_sees_the_params_of_the_trigger_and_the_defaults_of_the_rest(ranking: DAG) -> None:
    for task in ranking.tasks:
        seen = process_params(ranking, task, {"force": True}, suppress_exception=False)
        assert seen == {**ranking.params.dump(), "force": True}, task.task_id
        with pytest.raises(ParamValidationError, match="train"):
            process_params(ranking, task, {"train": {"epoch": 5}}, suppress_exception=False)
