"""What an added stage takes: its module and its row, in a copy of the code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from training.runtime.provenance import CHECKOUT

STAGE = '''"""Counts the columns of a dataset."""

from training.runtime.runner import StageContext, StageOutput, main


def work(context: StageContext) -> StageOutput:
    return StageOutput(artifact_uri=context.request.inputs["dataset"], digest="d" * 64, scalars={"rows": 3, "columns": 7})


if __name__ == "__main__":
    main(work)
'''
ROW = '    Stage(name="profile", inputs={"dataset": "prepare"}, sections=("evaluate",), summary=("columns",)),\n'
AFTER = '    Stage(name="tune", '
NIGHT = """
import os
import sys
from pathlib import Path
from devstack.run_progress import TaskView
from devstack.run_summary import _stage_line
from nightshift.execution.backend import StageTask, backend_of
from nightshift.execution.kubernetes.config import Cluster
from nightshift.operators.stage_work import work_of
from nightshift.resolved_run import ResolvedRun
from nightshift.settings import Settings
from nightshift.wiring.pipeline import build_dag
from training.contracts import RunIdentity, StageResult
from training.spec import freeze, load_spec, resolve_uris
from training.store import Store

path, settings = Path("dags/pipelines/search_ranking.yaml").resolve(), Settings.from_environment()
spec, store = load_spec(path), Store(settings.store_uri)
dag = build_dag(spec, path)
added = dag.get_task("profile")
print("chain", sorted(added.upstream_task_ids), sorted(added.downstream_task_ids), added.pool)
frozen = store.put_json(freeze(resolve_uris(spec, os.environ)))
resolved = ResolvedRun({"spec_uri": frozen, "as_of": "2026-02-01T02:00:00+00:00", "force": False})
run = RunIdentity(dag_id=spec.name, run_id="r1", task_id="profile")
made = {"pipeline": spec.name, "work_id": "f" * 64, "run": run, "attempt_id": "a", "attempts": 1, "committed_at": ""}
dataset = StageResult(stage="prepare", artifact_uri="file:///dataset", digest="1", **made)
work = work_of("profile", resolved, {"dataset": dataset}, settings=settings)
print("code", "training/stages/profile.py" in work.code.files)
task = StageTask(run=run, resolved=resolved, work=work, operator=added, context={}, say=print, warn=print)
result = backend_of(settings).run(task)
print("summary", _stage_line(TaskView("profile", "success", 1, 2.0, "cpu"), result))
Cluster.model_validate({"namespace": "n", "image": "i", "resources": {"profile": {"cpus": 2}}})
"""


@pytest.mark.slow
def test_an_added_stage_takes_its_module_and_one_row(tmp_path: Path) -> None:
    for folder in ("training", "plugins", "devstack", "dags", "expectations"):
        shutil.copytree(CHECKOUT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    table = tmp_path / "training" / "stage_table.py"
    text = table.read_text(encoding="utf-8")
    assert text.count(AFTER) == 1
    table.write_text(text.replace(AFTER, ROW + AFTER), encoding="utf-8")
    (tmp_path / "training" / "stages" / "profile.py").write_text(STAGE, encoding="utf-8")
    places = {"PYTHONPATH": f"{tmp_path}:{tmp_path / 'plugins'}", "NIGHTSHIFT_HOME": str(tmp_path / "home"), "SHOP_URI": str(tmp_path)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NIGHTSHIFT_", "MLFLOW_"))}
    done = subprocess.run([sys.executable, "-c", NIGHT], cwd=tmp_path, env=kept | places, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "chain ['prepare'] ['train'] cpu" in done.stdout
    assert "code True" in done.stdout
    assert "columns 7" in done.stdout.partition("summary ")[2]
