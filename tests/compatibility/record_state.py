"""Records the state of an installation of an earlier version: store, ledger, Airflow's database and MLflow's, in the middle of work.

Run it in a checkout of that version, with its installed environment; this file is the only one of a later version:

    git worktree add /tmp/earlier 574da31
    cd /tmp/earlier
    PYTHONPATH=$PWD:$PWD/plugins python …/tests/compatibility/record_state.py …/tests/compatibility/state

`state` was recorded with commit 574da31, the last one before the rooms were divided (`nightshift.approvals`, `nightshift.services` …):

* a night of `cancelled_orders` whose model became champion, then a YAML that asks people, so a second version of the DAG;
* a night whose candidate waits for approval: a request in the ledger, a deferred task `ask` with its trigger;
* a night under way, stopped behind `ingest`, with its deadline still to come.

Left out are logs, MLflow's files and the names of the machine and its user. The code version of the stages was pinned.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path("/tmp/nightshift-compat")
HOME: Final = ROOT / "home"
NAME: Final = "cancelled_orders"
CODE_VERSION: Final = "recorded"
"""Pinned, so that a later version with the same pin finds the work done."""
FERNET_KEY: Final = "nightshift-compatibility-tests-000000000000="
"""Of the stored triggers; a key of these tests alone."""
SOURCE_TIME: Final = 1_773_900_000
"""Modification time of the source file, which names its version."""
AUTOMATIC: Final = f"promote: {{model: {NAME}, approval: automatic}}"
ASKING: Final = f"promote: {{model: {NAME}, approval: required, approve_own: true, approve_within: 3650d}}"
LEFT_OUT: Final = ("data/shop", "logs", "cache", "airflow", "mlflow", "nightshift.db", "credentials")
SCRUBBED: Final = (
    "DELETE FROM log",
    "DELETE FROM job",
    "UPDATE task_instance SET hostname = '', unixname = ''",
    "DELETE FROM logged_model_tags WHERE tag_key LIKE 'mlflow.source.%'",
)
"""Statements for the databases that have such a table."""


def main(folder: Path) -> None:
    from tests.integration.installation import Installation

    shutil.rmtree(HOME, ignore_errors=True)
    installation = Installation.prepare(HOME, ORDERS_URI=(ROOT / "orders").as_uri(), NIGHTSHIFT_CODE_VERSION=CODE_VERSION)
    pipeline = prepare(installation)
    try:
        installation.services("start")
        nights(installation, pipeline)
    finally:
        installation.stop()
    write(folder)


def prepare(installation: Any) -> Path:
    """Leave one pipeline, whose nights start by hand only; return its YAML."""
    from tests.integration.installation import EXAMPLES

    for path in [*(HOME / "dags").glob("*.py"), *(HOME / "dags/pipelines").iterdir()]:
        path.unlink()
    shutil.rmtree(HOME / "expectations")
    (HOME / "expectations" / NAME).mkdir(parents=True)
    shutil.copy(EXAMPLES / NAME / "orders.json", HOME / "expectations" / NAME)
    shutil.copy(EXAMPLES / NAME / f"{NAME}.py", HOME / "dags")
    shutil.rmtree(ROOT / "orders", ignore_errors=True)
    shutil.copytree(EXAMPLES / NAME / "data", ROOT / "orders")
    os.utime(ROOT / "orders/orders.csv", (SOURCE_TIME, SOURCE_TIME))
    pipeline = HOME / "dags" / "pipelines" / f"{NAME}.yaml"
    shutil.copy(EXAMPLES / NAME / f"{NAME}.yaml", pipeline)
    change(pipeline, 'schedule: "0 3 * * *"', 'schedule: "0 3 1 1 *"\ndeadline: "06:30"')
    change(pipeline, "  slice_support: 50\n", "  slice_support: 50\n  severity: {improvement: warn, significance: warn}\n")
    credentials = HOME / "credentials.json"
    credentials.write_text(json.dumps({"fernet_key": FERNET_KEY}), encoding="utf-8")
    credentials.chmod(0o600)
    return pipeline


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text, old
    path.write_text(text.replace(old, new), encoding="utf-8")


def nights(installation: Any, pipeline: Path) -> None:
    """Bring the installation to where the next version finds it."""
    asking = f"{NAME}.approval"
    night(installation, "14")
    assert installation.wait(NAME, "night-2026-03-14") == "success", installation.why(NAME, "night-2026-03-14")
    assert installation.ledger.standing(NAME).champion is not None

    change(pipeline, AUTOMATIC, ASKING)
    installation.unpause(asking)
    night(installation, "15")
    assert installation.wait(NAME, "night-2026-03-15") == "success", installation.why(NAME, "night-2026-03-15")
    (run,) = installation.until(lambda: installation.api.get(f"/dags/{asking}/dagRuns")["dag_runs"], f"run of {asking}")
    installation.wait_task(asking, run["dag_run_id"], "ask", "deferred")

    night(installation, "16")
    installation.wait_task(NAME, "night-2026-03-16", "ingest", "success")
    installation.api.patch(f"/dags/{NAME}", {"is_paused": True})
    busy = ("running", "queued", "scheduled", "restarting")
    installation.until(
        lambda: not any(task["state"] in busy for task in installation.tasks(NAME, "night-2026-03-16").values()),
        "quiet",
        timeout_seconds=300,
    )
    assert installation.tasks(NAME, "night-2026-03-16")["promote"]["state"] is None


def night(installation: Any, day: str) -> None:
    installation.trigger(NAME, {"as_of": f"2026-03-{day}T02:00:00+00:00"}, run_id=f"night-2026-03-{day}")


def write(folder: Path) -> None:
    """Write databases as SQL and the rest as an archive, both compressed, without what the tests do not read."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in (
        ("ledger", HOME / "nightshift.db"),
        ("airflow", HOME / "airflow/airflow.db"),
        ("mlflow", HOME / "mlflow/mlflow.db"),
    ):
        text = "".join(f"{line}\n" for line in dump(path))
        (folder / f"{name}.sql.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    with tarfile.open(folder / "files.tar.xz", "w:xz") as archive:
        for path in sorted(kept_files()):
            archive.add(path, arcname=str(path.relative_to(ROOT)), filter=anonymous)


def dump(path: Path) -> Iterator[str]:
    with closing(sqlite3.connect(path)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        for statement in SCRUBBED:
            if tables.intersection(statement.split()):
                database.execute(statement)
        # What is not committed is lost with the connection: the files stay as they are.
        yield from database.iterdump()


def kept_files() -> Iterator[Path]:
    for path in ROOT.rglob("*"):
        place = path.relative_to(HOME).as_posix() if path.is_relative_to(HOME) else ""
        if path.is_file() and path.suffix != ".lock" and path.name != "log.txt" and not place.startswith(LEFT_OUT):
            yield path


def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
