"""What operators need around them: an installation, Airflow's context of a task, a shop of empty files, a launcher that is scripted."""

import contextvars
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.bases.operator import ExecutorSafeguard
from jsonschema import Draft202012Validator

from nightshift.settings import Settings
from training.runtime.provenance import CHECKOUT
from training.store import Store

SPEC_PATH = CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"
AS_OF = datetime(2026, 2, 1, 2, tzinfo=UTC)
FIRST_DAY = date(2026, 1, 2)
NUM_DAYS = 30

Execute = Callable[[BaseOperator, Any], Any]


@pytest.fixture(scope="session", autouse=True)
def schemas_checked_once() -> Iterator[None]:
    """Check a JSON Schema once: Airflow has a form's checked for each run that is made, half of what a seeded one takes."""
    check, checked = Draft202012Validator.check_schema, set[str]()

    def check_new(schema: Any, *more: Any) -> None:
        if (text := json.dumps(schema, sort_keys=True, default=str)) not in checked:
            check(schema, *more)
            checked.add(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Draft202012Validator, "check_schema", check_new)
        yield


@pytest.fixture(scope="session")
def airflow_dags(airflow_database: None) -> None:
    """The shipped pipelines in Airflow's database."""
    from tests.unit.plugins.airflow_dags import write_dags

    write_dags()


@pytest.fixture
def seeded(airflow_dags: None, installation: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The REST API's application over an installation with runs, models and data; tests send more requests than people do."""
    monkeypatch.setenv("NIGHTSHIFT_API_RATE", "0")
    from tests.unit.plugins.seeded_installation import seeded_installation

    with seeded_installation() as found:
        yield found


@pytest.fixture
def shop(installation: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Thirty partitions before the night; SHOP_URI leads to them. Return the folder of the partitions."""
    monkeypatch.setenv("SHOP_URI", str(installation / "shop"))
    monkeypatch.setenv("NIGHTSHIFT_PLACES", "SHOP_URI")
    clicks = installation / "shop" / "clicks"
    for number in range(NUM_DAYS):
        folder = clicks / f"dt={FIRST_DAY + timedelta(days=number)}"
        folder.mkdir(parents=True)
        (folder / "part-0.parquet").write_bytes(b"never read here")
    return clicks


@pytest.fixture
def settings(installation: Path) -> Settings:
    return Settings.from_environment()


@pytest.fixture
def store(settings: Settings) -> Store:
    return Store(settings.store_uri)


@pytest.fixture
def context_of() -> Callable[..., Any]:
    """Return `context_of(task_id, run_id=…, results=…, conf=…)`: what Airflow hands to `execute`."""

    def make(
        task_id: str,
        *,
        run_id: str = "r1",
        try_number: int = 1,
        results: Mapping[str, Any] | None = None,
        **run: Any,
    ) -> Any:
        found = dict(results or {})
        ti = SimpleNamespace(
            dag_id="search_ranking",
            run_id=run_id,
            task_id=task_id,
            try_number=try_number,
            xcom_pull=lambda task_ids: found.get(task_ids),
        )
        values = {"conf": {}, "logical_date": None, "run_after": AS_OF, "start_date": AS_OF, **run}
        return {"ti": ti, "dag_run": SimpleNamespace(dag_id="search_ranking", run_id=run_id, **values)}

    return make


@pytest.fixture
def execute() -> Execute:
    """Return `execute(operator, context)`, which Airflow allows as it does its own task runner."""

    def call(operator: BaseOperator, context: Any) -> Any:
        inside = contextvars.copy_context()
        inside.run(ExecutorSafeguard.tracker.set, operator)
        return inside.run(operator.execute, context)

    return call
