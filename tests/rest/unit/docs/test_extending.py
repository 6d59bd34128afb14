"""Each addition of docs/extending.md, made in a copy of the code from the page's blocks: it takes as many files as its table says.

Each runs in processes of its own: this one has imported the modules that an addition replaces.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from training.runtime.provenance import CHECKOUT

PAGE = (CHECKOUT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NEW_FILE = re.compile(r"(?:# |<!-- )([\w/]+\.(?:py|html))(?: -->)?\n")
ROWS = dict(re.findall(r"^\| \[([^\]]+)\]\(#[^)]*\) \| (\d+)", PAGE, re.MULTILINE))
FAMILIES = "training/models/"

CHECKS = {
    "model family": """
import types
import numpy as np
from training.data.dataset.shard_writer import describe_layout
from training.data.features.transforms import LayoutEntry, Matrix
from training.engine.parallel.single_process import Alone
from training.models.base import load_family
from training.spec.descriptors.families import FAMILIES, trained_families
layout = (LayoutEntry(name="age", dtype="float32", cardinality=0), LayoutEntry(name="shop", dtype="int32", cardinality=3))
number = np.arange(90, dtype=np.int32)
age, shop = (number % 7).astype(np.float32), number % 3
labels = 2 * age + np.array([1, 5, 9], dtype=np.float32)[shop]
cells = np.stack([age.view(np.int32), shop, labels.astype(np.float32).view(np.int32)], axis=1)
folder = pathlib.Path("rows")
(folder / "shards").mkdir(parents=True)
for split in ("train", "validation"):
    cells.tofile(folder / "shards" / f"{split}-00000.bin")
described = describe_layout(layout, has_group=False)
meta = {"layout": described, "group": None, "shards": {"train": [90], "validation": [90]}}
settings = FAMILIES.get("ridge").settings(penalty=1e-6).model_dump()
train = types.SimpleNamespace(model="ridge", settings=settings, class_weight=None, epochs=1, early_stopping=None)
context = types.SimpleNamespace(
    spec=types.SimpleNamespace(train=train), dataset_path=folder, dataset_meta=meta, gang=Alone(), judge=None, refit_epochs=None,
    stop=types.SimpleNamespace(requested=False), tracker=types.SimpleNamespace(log=lambda *a, **k: None), progress=lambda *a, **k: None,
)
family = load_family("ridge")
result = family.fit(context)
(folder / result.weights_name).write_bytes(result.weights)
scores = family.load(folder, result.architecture)(Matrix(cells=cells[:, :2], layout=layout))
assert np.allclose(scores, labels, atol=1e-4) and result.validation_loss < 1e-4
assert "ridge" in trained_families() and "## train.settings of ridge" in spec.page(root)
""",
    "metric": """
import numpy as np
from training.evaluation.metrics.metric import ScoredRows
from training.evaluation.metrics.registry import metric_of
from training.spec.descriptors.metrics import is_lower_better, is_metric
assert is_metric("binary", "squared_hinge") and is_lower_better("squared_hinge")
rows = type("Rows", (), {"labels": np.array([0.0, 1.0]), "scores": np.array([0.0, 0.5])})()
assert metric_of("squared_hinge").value(rows) == 0.5
""",
    "gate": """
from training.evaluation.record import EvaluationRecord
from training.registry.gates.judging import decide
from training.spec.sections.evaluation import Evaluate
rules = Evaluate.model_validate({"task": "binary", "primary": "auc", "checks": {"test_rows": 100}})
(found,) = [each for each in decide(EvaluationRecord(num_rows=99), rules, approval="automatic").reasons if each.gate == "test_rows"]
assert not found.passed and found.words == "99 test rows, required >= 100"
assert "| `test_rows` | every candidate | `fail` | evaluate.checks.test_rows |" in spec.page(root)
""",
    "source": """
import datetime, pyarrow as pa
from training.sources.interface import SourceWindow
from training.sources.kinds.arrow import SOURCE
from training.spec.descriptors.sources import SOURCES
assert "arrow" in SOURCES.names() and '"arrow"' in schema_text()
table = pa.table({"id": [1, 2]})
with pa.ipc.new_file("part.arrow", table.schema) as out:
    out.write_table(table)
source = SOURCE(type("Contract", (), {"place": root.as_uri(), "partition": None})())
source.copied = lambda part, folder: pathlib.Path("part.arrow")
assert source.read(None, root, limit_bytes=2**20).rows.to_pydict() == {"id": [1, 2]}
""",
    "stage": """
from nightshift.wiring.pipeline import build_dag
from training.code.stages import stage_code
from training.spec import load_spec
path = root / "dags/pipelines/search_ranking.yaml"
pipeline = load_spec(path)
task = build_dag(pipeline, path).get_task("profile")
assert (task.upstream_task_ids, task.downstream_task_ids) == ({"prepare"}, {"train"})
assert "training/stages/profile.py" in stage_code("profile", pipeline).files
""",
    "REST route": """
from nightshift.api.application import openapi
from nightshift.client.client import Client
answer = openapi()["paths"]["/api/v1/families"]["get"]["responses"]["200"]
assert answer["content"]["application/json"]["schema"]["$ref"].endswith("Page_FamilySummary_")
page = {"items": [{"name": "linear", "tasks": ["binary"]}], "next": None}
client = Client("http://127.0.0.1:1", lambda: "token")
import httpx
client._once = lambda method, path, options: httpx.Response(200, json=page)
assert [found.name for found in client.families()] == ["linear"]
""",
    "command": """
from nightshift.console import run
from tools.reference import commands
assert run(["families"]) == 0
assert "## nightshift families" in commands.page(root)
""",
    "YAML key": """
from training.spec.sections.tuning import Tune
assert Tune.model_validate({"trials": 3, "charts": 5, "space": {"learning_rate": {"float": [0.1, 0.2]}}}).charts == 5
assert "| `charts` | integer, >= 1 and <= 64 | `12` | settings |" in spec.page(root)
assert '"charts"' in schema_text()
from training.pages.study import render_study
from training.tuning.records import TrialRecord
space = {name: {"float": [0.1, 0.2]} for name in ("learning_rate", "weight_decay")}
tune = Tune.model_validate({"trials": 1, "charts": 1, "space": space})
trial = TrialRecord(slot=0, state="complete", value=0.5, settings=dict.fromkeys(space, 0.1), epochs=1, steps=1, losses=())
assert render_study(tune, [trial], trial, {}, pipeline="shop", as_of="2026-02-01").count(b'aria-label="By ') == 1
""",
    "page": """
from training.stages.ingest import _page
assert b"<tr><th>&lt;clicks</th><td>3</td></tr>" in _page("shop", {"<clicks": {"rows": 3}})
""",
}
"""Addition to a program that uses it; it ends with exit code 0 where the addition works."""
HEAD = """
import pathlib
from tools.reference import spec
from training.spec.schema import schema_text
root = pathlib.Path.cwd()
"""


def blocks_of(addition: str) -> list[tuple[str, str]]:
    """Return file and block of the section of an addition: a block that makes the file, or that changes it."""
    (section,) = re.findall(rf"^## An? {addition}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    found = []
    for language, text in BLOCK.findall(section):
        if language == "diff":
            found.append((text.partition("\n")[0].removeprefix("--- "), text))
        elif named := NEW_FILE.match(text):
            found.append((named[1], text))
    return found


def changed(text: str, block: str) -> str:
    """Return the text of a file with the places of a `diff` block replaced, each of which it has once."""
    for place in block.partition("\n")[2].split("@@\n"):
        lines = [(line[:1], line[1:]) for line in place.splitlines()]
        before, after = ("".join(f"{line}\n" for sign, line in lines if sign in (" ", kept)) for kept in "-+")
        assert text.count(before) == 1, f"the file has {text.count(before)} times:\n{before}"
        text = text.replace(before, after)
    return text


def apply(addition: str, root: Path) -> None:
    for name, block in blocks_of(addition):
        path = root / name
        if block.startswith("--- "):
            path.write_text(changed(path.read_text(encoding="utf-8"), block), encoding="utf-8")
            continue
        assert not path.exists(), name
        path.parent.mkdir(exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(block if path.suffix == ".py" else block.partition("\n")[2], encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the code with all additions."""
    root = tmp_path_factory.mktemp("extended")
    for folder in ("training", "plugins", "devstack", "tools", "dags", "docs", "docker"):
        shutil.copytree(CHECKOUT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(CHECKOUT / name, root)
    for addition in CHECKS:
        apply(addition, root)
    return root


def test_each_addition_of_the_table_but_a_backend_has_an_example_that_is_used() -> None:
    assert ROWS.keys() - CHECKS.keys() == {"backend"}
    assert CHECKS.keys() <= ROWS.keys()


@pytest.mark.parametrize("addition", CHECKS)
def test_addition_takes_as_many_files_as_the_table_says(addition: str) -> None:
    files = {name for name, _ in blocks_of(addition)}
    # A family is counted by its folder.
    places = {name.rpartition("/")[0] if name.startswith(FAMILIES) else name for name in files}
    assert len(places) == int(ROWS[addition]), sorted(files)


@pytest.mark.slow
@pytest.mark.parametrize("addition", CHECKS)
def test_added_example_works(copy: Path, addition: str) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NIGHTSHIFT_", "MLFLOW_"))}
    environment = kept | {"PYTHONPATH": f"{copy}:{copy / 'plugins'}", "NIGHTSHIFT_HOME": str(copy / "home")}
    program = [sys.executable, "-c", HEAD + CHECKS[addition]]
    done = subprocess.run(program, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
