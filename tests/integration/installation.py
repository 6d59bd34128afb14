"""A whole installation for tests: real Airflow, real MLflow, its own folder and ports, a small shop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from devstack.airflow_api import AirflowApi
from devstack.environment import USERNAME, credentials
from devstack.lifecycle import api
from devstack.processes import ProcessId, marked, marked_by_home
from devstack.run_summary import stage_result
from devstack.shop import write_day
from devstack.supervisor_state import read_state
from nightshift.settings import Settings
from training.contracts import StageResult
from training.errors import UnavailableError
from training.registry.ledger.ledger import Ledger
from training.store import Store

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS = ROOT.parent / "shared" / "data" / "nycflights13"
EXAMPLES = ROOT / "docs" / "examples"
FIRST_DAY = date(2026, 1, 1)
NUM_DAYS = 36
NUM_SEARCHES = 300
POLL_SECONDS = 0.2
RUN_SECONDS = 1500.0
ENDED = frozenset({"success", "failed"})


def free_ports(count: int) -> list[int]:
    """Return ports above 20000 that nobody listens on."""
    found: list[int] = []
    # Workers of one test run each have a thousand of their own: a port is free for both until one of them listens.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    candidate = 20_000 + worker * 1_000 + os.getpid() % 1_000
    while len(found) < count:
        candidate += 1
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", candidate))
            except OSError:
                continue
        found.append(candidate)
    return found


def distant_schedule(now: datetime) -> str:
    """Return the cron line of a daily slot that is 11 to 12 hours away, in UTC."""
    return f"0 {(now.astimezone(UTC).hour + 12) % 24} * * *"


class Installation:
    """What a test may do to a running installation. Build with `Installation.start`."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self.home = home
        self.environment = dict(environment)
        self.settings = Settings.from_environment(environment)
        self.shop = home / "data" / "shop"
        self.dags = home / "dags"
        self._api: AirflowApi | None = None

    @classmethod
    def start(cls, home: Path, **more: str) -> Installation:
        """Make the folder and start everything; `more` are further settings. Nothing is left running if that fails."""
        made = cls.prepare(home, **more)
        try:
            made.services("start")
        except BaseException:
            made.stop()
            raise
        return made

    @classmethod
    def prepare(cls, home: Path, **more: str) -> Installation:
        """Make the folder: DAG files, pipelines, suites, 36 days of the shop."""
        shutil.copytree(ROOT / "dags", home / "dags", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "expectations", home / "expectations")
        airflow_port, mlflow_port = free_ports(2)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("NIGHTSHIFT_", "AIRFLOW_", "MLFLOW_"))}
        environment = {
            **kept,
            "NIGHTSHIFT_HOME": str(home),
            "NIGHTSHIFT_PIPELINES": str(home / "dags" / "pipelines"),
            "NIGHTSHIFT_EXPECTATIONS": str(home / "expectations"),
            "NIGHTSHIFT_MODEL_PATH": str(EXAMPLES / "cancelled_orders"),
            "NIGHTSHIFT_MODEL_PACKAGES": "shop_models",
            "ORDERS_URI": (EXAMPLES / "cancelled_orders" / "data").as_uri(),
            "NIGHTSHIFT_AIRFLOW_PORT": str(airflow_port),
            "NIGHTSHIFT_MLFLOW_PORT": str(mlflow_port),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plugins")]),
            **({"FLIGHTS_URI": FLIGHTS.as_uri()} if FLIGHTS.is_dir() else {}),
            **more,
        }
        made = cls(home, environment)
        for number in range(NUM_DAYS):
            write_day(made.shop, date.fromordinal(FIRST_DAY.toordinal() + number), searches=NUM_SEARCHES)
        return made

    @property
    def api(self) -> AirflowApi:
        if self._api is None:
            self._api = api(self.settings)
        return self._api

    @property
    def store(self) -> Store:
        return Store(self.settings.store_uri)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.settings.database_url)

    @property
    def mlflow_uri(self) -> str:
        """MLflow's address with the login, for clients in this process."""
        password = credentials(self.settings)["mlflow_password"]
        return self.settings.mlflow_uri.replace("://", f"://{USERNAME}:{password}@")

    def stop(self) -> None:
        """Stop everything; whatever is left over then fails the test run."""
        self.services("stop")
        left = marked_by_home(self.home)
        assert not left, f"left over after stop: {left}"

    def services(self, *arguments: str) -> str:
        """Run `python -m devstack …`; return its output."""
        return self.command(sys.executable, "-m", "devstack", *arguments)

    def airflow(self, *arguments: str) -> str:
        """Run Airflow's own command line as a prepared shell would; return its output."""
        script = 'eval "$("$0" -m devstack env)" && exec airflow "$@"'
        return self.command("sh", "-c", script, sys.executable, *arguments)

    def command(self, *arguments: str) -> str:
        done = subprocess.run(arguments, env=self.environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{arguments} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def unpause(self, dag_id: str) -> None:
        """Wait for Airflow to know the DAG, and switch it on."""
        self.until(lambda: self.api.find(f"/dags/{dag_id}"), f"DAG {dag_id}")
        self.api.patch(f"/dags/{dag_id}", {"is_paused": False})

    def add_pipeline(self, name: str, *, schedule: str | None = None) -> str:
        """Add a small pipeline over the shop, with a model of its own: four days, one epoch, one process.

        Args:
            schedule: None: once a day, half a day from now, so that its slot does not come while a test has the DAG on.
        """
        text = (self.dags / "pipelines" / "search_ranking.yaml").read_text(encoding="utf-8")
        for old, new in (
            ("name: search_ranking", f"name: {name}"),
            ('schedule: "0 2 * * *"', f'schedule: "{schedule or distant_schedule(datetime.now(UTC))}"'),
            ("window: 30d", "window: 4d"),
            ("test: 2d", "test: 1d"),
            ("epochs: 3", "epochs: 1"),
            ("processes_per_node: 2", "processes_per_node: 1"),
            ("model: search_ranking", f"model: {name}"),
        ):
            assert old in text
            text = text.replace(old, new)
        (self.dags / "pipelines" / f"{name}.yaml").write_text(text, encoding="utf-8")
        shutil.copy(self.dags / "search_ranking.py", self.dags / f"{name}.py")
        return name

    def trigger(
        self, dag_id: str, conf: Mapping[str, Any] | None = None, *, logical_date: str | None = None, run_id: str | None = None
    ) -> str:
        """Trigger a run over REST; return its id."""
        self.unpause(dag_id)
        body: dict[str, Any] = {"logical_date": logical_date, "conf": dict(conf or {})}
        if run_id is not None:
            body["dag_run_id"] = run_id
        return str(self.api.post(f"/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def wait(self, dag_id: str, run_id: str, *, timeout_seconds: float = RUN_SECONDS) -> str:
        """Wait for a run's end; return its state, `success` or `failed`."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}"
        state: str = self.until(
            lambda: found if (found := self.api.get(path)["state"]) in ENDED else None,
            f"end of {run_id}",
            timeout_seconds=timeout_seconds,
            why=lambda: json.dumps({name: task["state"] for name, task in self.tasks(dag_id, run_id).items()}),
        )
        return state

    def cancel(self, dag_id: str, run_id: str) -> None:
        """End a run of which a test has seen what it wanted; its tasks are ended too."""
        self.api.patch(f"/dags/{dag_id}/dagRuns/{run_id}", {"state": "failed"})

        def over() -> bool:
            return not any(task["state"] in ("running", "queued", "restarting") for task in self.tasks(dag_id, run_id).values())

        self.until(over, f"the tasks of {run_id} ended")

    def wait_task(self, dag_id: str, run_id: str, task_id: str, *states: str, timeout_seconds: float = RUN_SECONDS) -> dict[str, Any]:
        """Wait until a task is in one of the states; return it as REST gives it."""

        def look() -> dict[str, Any] | None:
            task = self.tasks(dag_id, run_id).get(task_id)
            return task if task and task["state"] in states else None

        seen: dict[str, Any] = self.until(look, f"{task_id} of {run_id} in {states}", timeout_seconds=timeout_seconds)
        return seen

    def tasks(self, dag_id: str, run_id: str) -> dict[str, dict[str, Any]]:
        """Return the run's task instances by task id, as REST gives them."""
        found = self.api.get(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances", limit=100)["task_instances"]
        return {task["task_id"]: task for task in found}

    def why(self, dag_id: str, run_id: str) -> str:
        """Return the states of a run's tasks, and the end of the log of each that failed."""
        tasks = self.tasks(dag_id, run_id)
        states = {name: task["state"] for name, task in tasks.items()}
        failed = [name for name, state in states.items() if state == "failed"]
        logs = [f"--- {name}\n{self.log(dag_id, run_id, name, tasks[name]['try_number'])[-3000:]}" for name in failed]
        return "\n".join([json.dumps(states), *logs])

    def why_each(self, dag_id: str) -> str:
        """Return each run of a DAG with its state, and what `why` says of it."""
        runs = self.api.get(f"/dags/{dag_id}/dagRuns", order_by="run_after")["dag_runs"]
        return "\n".join(f"{run['dag_run_id']} {run['state']}: {self.why(dag_id, run['dag_run_id'])}" for run in runs) or "no run"

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """Return an XCom value, None if there is none."""
        entry = self.api.find(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}")
        value = entry["value"] if entry else None
        return json.loads(value) if isinstance(value, str) else value

    def result(self, dag_id: str, run_id: str, stage: str) -> StageResult:
        """Return a stage's result from XCom."""
        found = stage_result(self.api, dag_id, run_id, stage)
        assert found is not None, f"{stage} of {run_id} left no result\n{self.log(dag_id, run_id, stage)}"
        return found

    def links(self, dag_id: str, run_id: str, task_id: str) -> dict[str, str | None]:
        """Return the extra links of a task, by name."""
        found = self.api.get(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/links")["extra_links"]
        return dict(found)

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1) -> str:
        """Return a try's log as text, exceptions with what they said."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        content = (self.api.find(path, full_content="true") or {"content": []})["content"]
        lines = []
        for line in content:
            entry = line if isinstance(line, dict) else {"event": line}
            lines.append(str(entry.get("event")))
            lines += [f"{detail.get('exc_type')}: {detail.get('exc_value')}" for detail in entry.get("error_detail") or []]
        return "\n".join(lines)

    def pids(self, component: str) -> list[ProcessId]:
        """Return all processes of one component (`scheduler`, `api-server`, `mlflow` …), tasks and stages included."""
        return marked(lambda mark: mark.startswith(f"{component}:") and mark.endswith(f":{self.home}"))

    def kill(self, component: str) -> ProcessId:
        """Kill a component's own process with SIGKILL, once it runs; return which it was."""

        def look() -> ProcessId | None:
            state = read_state(self.home)
            entries = state.components if state else ()
            return next((entry.process for entry in entries if entry.name == component and entry.process and entry.process.alive()), None)

        process: ProcessId = self.until(look, f"{component} running")
        os.kill(process.pid, signal.SIGKILL)
        return process

    def until(
        self, look: Callable[[], Any], what: str, *, timeout_seconds: float = 60.0, why: Callable[[], str] = lambda: "not seen"
    ) -> Any:
        """Wait for a condition; return what was seen. An api-server that does not answer once is asked again."""
        deadline = time.monotonic() + timeout_seconds
        while not (seen := self._seen(look)):
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {timeout_seconds:.0f} s; {why()}")
            time.sleep(POLL_SECONDS)
        return seen

    @staticmethod
    def _seen(look: Callable[[], Any]) -> Any:
        try:
            return look()
        except UnavailableError:
            return None
