"""Mapped tasks: Airflow makes each task instance's operator by calling its class with every argument that `partial` filled in."""

from collections.abc import Iterator
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.definitions.mappedoperator import MappedOperator

import nightshift.operators as operators_package
from nightshift.airflow_ext.assets import DECISIONS
from nightshift.execution.kubernetes.backend import KubernetesBackend
from nightshift.operators import (
    approval,
    approval_expiry,
    canary_runs,
    cleaning,
    metrics,
    pods,
    promotion,
    repair,
    resolve,
    resolve_canary,
    rollback,
    stage,
    study,
    wait,
)
from nightshift.operators.promotion import FollowOperator, PromoteOperator
from nightshift.wiring.housekeeping import housekeeping_dag
from nightshift.wiring.pipeline import build_dag, decision_dags
from nightshift.wiring.rollback import rollback_dag
from training.runtime.provenance import CHECKOUT
from training.spec import load_spec
from training.spec.pipeline_spec import Alerts

MODULES = [import_module(f"nightshift.operators.{found.name}") for found in iter_modules(operators_package.__path__)]
TUNE = "\ntune: {trials: 2, space: {learning_rate: {float: [1e-3, 1e-1], log: true}}}\n"
SPEC_PATH = CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"
SPEC = load_spec(SPEC_PATH)
PROMOTES: dict[str, Any] = {"model": "search_ranking", "alerts": Alerts()}
OWN: dict[type[BaseOperator], dict[str, Any]] = {
    resolve.ResolveOperator: {"spec_path": str(SPEC_PATH)},
    wait.WaitForData: {"wait": timedelta(minutes=1)},
    stage.StageOperator: {"stage": "prepare"},
    stage.TrainOperator: {"stage": "train"},
    study.PlanOperator: {},
    study.TrialsOperator: {"worker": 0},
    study.TuneOperator: {},
    promotion.PromoteOperator: PROMOTES,
    promotion.CanaryDecisionOperator: PROMOTES,
    approval.AskOperator: {"spec": SPEC},
    approval.AnswerOperator: {**PROMOTES, "spec": SPEC},
    resolve_canary.ResolveCanary: {"spec_path": str(SPEC_PATH), "model": "search_ranking"},
    canary_runs.NextCanaryRunOperator: {"model": "search_ranking", "schedule": "5 * * * *", "timezone": "UTC"},
    canary_runs.MissedCanaryRunsOperator: {},
    rollback.RollbackOperator: {},
    cleaning.CollectOperator: {},
    cleaning.CleanHomeOperator: {},
    approval_expiry.ExpireOperator: {},
    metrics.CopyMetricsOperator: {},
    repair.RepairOperator: {},
}
"""Operator to the arguments that are its own."""
IN_PODS = {"namespace": "n", "image": "i", "resources": {}, "labels": {}, "kubernetes_conn_id": None, "in_cluster": None}
for _name, _place in KubernetesBackend.operators.items():
    _module, _, _kind = _place.partition(":")
    _own = next(arguments for kind, arguments in OWN.items() if kind.__name__ == _name)
    OWN[getattr(import_module(_module), _kind)] = {**_own, **IN_PODS}
MAPPED = {"trials": {"worker": 0}}
"""Task id of each mapped task to what one of its instances is called with."""


def dags(folder: Path) -> Iterator[DAG]:
    """Every kind of DAG that the project makes."""
    path = folder / "search_ranking.yaml"
    text = SPEC_PATH.read_text(encoding="utf-8")
    promote = "promote: {model: search_ranking, approval: automatic}"
    assert promote in text
    path.write_text(text.replace(promote, "promote: {model: search_ranking, approval: required, canary: {}}") + TUNE, encoding="utf-8")
    spec = load_spec(path)
    yield from (build_dag(spec, path), *decision_dags(spec, path), housekeeping_dag(), rollback_dag())


def test_every_mapped_task_of_every_dag_is_unmapped(tmp_path: Path) -> None:
    seen = set()
    for dag in dags(tmp_path):
        for task_id, task in dag.task_dict.items():
            if isinstance(task, MappedOperator):
                seen.add(task_id)
                assert isinstance(task.unmap(MAPPED[task_id]), task.operator_class), f"{dag.dag_id}.{task_id}"
    assert seen == set(MAPPED)


def operators() -> set[type[BaseOperator]]:
    found = {value for module in MODULES for value in vars(module).values() if isinstance(value, type) and issubclass(value, BaseOperator)}
    return {kind for kind in found if kind.__module__.startswith("nightshift.")} - {FollowOperator, pods.PodTask, pods.JobTask}


def test_every_operator_is_in_the_table() -> None:
    assert operators() == set(OWN)


@pytest.mark.parametrize("kind", list(OWN), ids=lambda kind: kind.__name__)
def test_an_operator_takes_every_argument_that_airflow_fills_in(kind: type[BaseOperator]) -> None:
    with DAG(dag_id="mapped", schedule=None):
        mapped = kind.partial(task_id="task", **OWN[kind]).expand(doc=["a", "b"])
    assert isinstance(mapped.unmap({"doc": "a"}), kind)


def test_a_mapped_decision_has_the_outlet_that_others_have() -> None:
    with DAG(dag_id="mapped", schedule=None):
        mapped = PromoteOperator.partial(task_id="task", **PROMOTES).expand(doc=["a", "b"])
    unmapped = mapped.unmap({"doc": "a"})
    assert isinstance(unmapped, PromoteOperator)
    assert unmapped.outlets == PromoteOperator(task_id="promote", model="m", alerts=Alerts()).outlets == [DECISIONS]
