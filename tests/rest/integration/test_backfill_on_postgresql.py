"""Airflow's own backfill, which docs/compose.md names, with Airflow's database on PostgreSQL; SQLite refuses it beside a scheduler."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from devstack.shutdown import running
from tests.databases import new_database, postgres_cluster, why_no_postgres
from tests.integration.installation import ROOT, Installation

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_postgres()), reason=why_no_postgres()),
    pytest.mark.timeout(3600),
]

URL, ARGUMENTS = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS"
SUPERVISE = f"""
import sys
from dataclasses import replace
from devstack.components import components
from devstack.environment import prepare_home
from devstack.service_environment import digests
from devstack.supervisor import Supervisor
from nightshift.settings import Settings
settings = Settings.from_environment()
prepare_home(settings)
(settings.home / "logs").mkdir(exist_ok=True)
kept = []
for component in components(settings):
    environment = {{**component.environment, {URL!r}: sys.argv[1]}}
    environment.pop({ARGUMENTS!r}, None)
    kept.append(replace(component, environment=environment))
Supervisor(settings.home, kept, settings=digests(settings)).run()
"""


@contextmanager
def supervised(installation: Installation, url: str) -> Iterator[None]:
    """Run the installation's services with Airflow's database at `url`."""
    variables = {**installation.environment, "SHOP_URI": installation.shop.as_uri(), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"}
    with (installation.home / "supervisor.txt").open("wb") as log:
        supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISE, url], env=variables, cwd=ROOT, stdout=log, stderr=log)
        try:
            installation.until(lambda: running(installation.home), "the supervisor", timeout_seconds=60)
            installation.services("start")
            yield
        finally:
            installation.stop()
            supervisor.wait(240)


def test_airflows_own_backfill_runs_each_night_as_of_its_slot(tmp_path: Path) -> None:
    installation = Installation.prepare(tmp_path)
    name = installation.add_pipeline("backfilled", schedule="0 2 * * *")
    with postgres_cluster() as cluster:
        url = new_database(cluster, "airflow")
        with supervised(installation, url):
            installation.unpause(name)
            range_ = ("--from-date", "2026-01-10", "--to-date", "2026-01-11T23:59:00")
            # One at a time: each night is measured against the champion that the one before it left.
            script = f'eval "$("$0" -m devstack env)" && unset {ARGUMENTS} && export {URL}="$1" && shift && exec airflow "$@"'
            create = ("backfill", "create", "--dag-id", name, *range_, "--max-active-runs", "1")
            installation.command("sh", "-c", script, sys.executable, url, *create)

            def created() -> list[dict[str, Any]] | None:
                # Its schedule is on, so today's slot may have a run too.
                found = [run for run in installation.api.get(f"/dags/{name}/dagRuns")["dag_runs"] if run["run_type"] == "backfill"]
                return found if len(found) == 2 else None

            runs = installation.until(created, "two runs")
            for run in runs:
                assert installation.wait(name, run["dag_run_id"], timeout_seconds=600) == "success", installation.why(
                    name, run["dag_run_id"]
                )
            nights = sorted(datetime.fromisoformat(installation.xcom(name, run["dag_run_id"], "resolve")["as_of"]) for run in runs)
            assert nights == [datetime(2026, 1, day, 2, tzinfo=UTC) for day in (10, 11)]
            notes = [str(installation.api.get(f"/dags/{name}/dagRuns/{run['dag_run_id']}")["note"]) for run in runs]
            assert any(note.startswith("promoted: ") and "; version 1.0.0 of " in note for note in notes), notes
            assert all(" of " in note for note in notes), notes
