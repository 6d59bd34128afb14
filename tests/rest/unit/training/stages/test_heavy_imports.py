"""Which heavy modules each stage's process imports where it is not forked from the template, as in pods.

A stage runs as it ships, in a process of its own; a `sitecustomize` notes what it and its children had imported when they ended, and
which files of training/ they had opened: those must be in the code that the stage's work is named after.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests import training_bench
from tests.training_bench import Bench
from tests.unit.training.code.named_work import code_of_request, named
from tests.unit.training.stages import evaluate_bench
from tests.unit.training.stages.evaluate_bench import SPEC, EvaluateBench
from training.contracts import ExitCode, StageResult
from training.runtime.provenance import CHECKOUT

pytestmark = pytest.mark.slow

HEAVY: Final = frozenset(
    "altair botocore duckdb fastapi great_expectations lightgbm matplotlib mlflow optuna pandas pyarrow scipy scipy.stats sklearn "
    "sqlalchemy torch torch._dynamo torch._inductor sympy training.large xgboost".split()
)
TABLES: Final = frozenset({"duckdb", "pyarrow"})
FRAMES: Final = TABLES | {"pandas"}
SKLEARN: Final = frozenset({"sklearn", "scipy", "scipy.stats", "pandas", "pyarrow"})
"""Trees of both libraries import it for classes that look like its own."""
MLFLOW: Final = frozenset({"mlflow", "fastapi", "scipy", "pandas", "pyarrow"})
SUITES: Final = frozenset({"great_expectations", "altair", "botocore", "scipy", "scipy.stats", "sqlalchemy"})
LATENCY: Final = "training.evaluation.latency"
LAUNCHER: Final = "training.runtime.torchrun"
"""It imports what its ranks do before their work; they are forked from it."""

ALLOWED: Final = {
    "ranker": {
        "ingest": TABLES | {"sqlalchemy"},
        "validate": FRAMES | SUITES,
        "prepare": FRAMES,
        # Without torch's compiler (`training.engine.uncompiled_torch`); in two ranks, which are compared.
        "train": FRAMES | MLFLOW | {"torch", "training.large"},
        LAUNCHER: FRAMES | {"torch"},
        "evaluate": FRAMES | MLFLOW | {"torch", "scipy"},
        # It is forked from the evaluation before that begins.
        LATENCY: FRAMES | {"torch", "scipy"},
        "promote": MLFLOW | {"sqlalchemy"},
    },
    "boosted_trees": {
        # PyArrow imports pandas where it converts a Python value: none is, also not for the bounds of the window of a CSV file.
        "ingest": TABLES | {"sqlalchemy"},
        "validate": TABLES,
        "prepare": FRAMES,
        "train": FRAMES | MLFLOW | SKLEARN | {"xgboost"},
        "evaluate": FRAMES | MLFLOW | SKLEARN | {"xgboost"},
        LATENCY: FRAMES | SKLEARN | {"xgboost"},
        "promote": MLFLOW | {"sqlalchemy"},
    },
    "lightgbm": {
        "train": FRAMES | MLFLOW | SKLEARN | {"lightgbm"},
        "evaluate": FRAMES | MLFLOW | SKLEARN | {"lightgbm"},
        LATENCY: FRAMES | SKLEARN | {"lightgbm"},
    },
    "sklearn": {
        "prepare": FRAMES,
        "train": FRAMES | MLFLOW | SKLEARN,
        "evaluate": FRAMES | MLFLOW | SKLEARN,
        LATENCY: FRAMES | SKLEARN,
        "promote": MLFLOW | {"sqlalchemy"},
    },
    # Scoring is NumPy's.
    "linear": {
        "train": FRAMES | MLFLOW | {"scipy"},
        "evaluate": FRAMES | MLFLOW | {"scipy"},
        LATENCY: FRAMES | {"scipy"},
    },
}
"""Family to stage to what its process may have imported when it ends; the orders have no suite of Great Expectations."""

TRAINS: Final = {
    "boosted_trees": "model: boosted_trees, seed: 3, epochs: 20, learning_rate: 0.3, settings: {max_depth: 3}",
    "lightgbm": "model: lightgbm, epochs: 20, learning_rate: 0.3, settings: {num_leaves: 7}",
    "linear": "model: linear, epochs: 50",
    "sklearn": "model: sklearn, settings: {estimator: sklearn.linear_model.LogisticRegression}",
}

NOTES_IMPORTS = """
import atexit, gc, json, os, sys
HEAVY, CODE = {heavy!r}, {code!r}
OPENED = set()
AT_START = []
def collected(phase, info):
    # `main` freezes what the imports have made.
    if phase == "stop" and "training.stages" in sys.modules and not gc.get_freeze_count():
        AT_START.append(info["generation"])
gc.callbacks.append(collected)
def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(CODE) and not arguments[0].endswith((".py", ".pyc")):
        OPENED.add(arguments[0])
sys.addaudithook(watch)
def note():
    name = " ".join(sys.orig_argv)
    with open(os.path.join({folder!r}, f"{{os.getpid()}}.json"), "w") as file:
        # A deferred module is not imported while nobody has used it.
        found = [module for module in HEAVY & set(sys.modules) if type(sys.modules[module]).__name__ != "_LazyModule"]
        ours = [module for name, module in sys.modules.copy().items() if name == "__main__" or name.startswith("training")]
        files = OPENED | {{getattr(module, "__file__", None) or "" for module in ours}}
        collections = [gc.isenabled(), len(AT_START)]
        json.dump([name, sorted(found), sorted(file for file in files if file.startswith(CODE)), collections], file)
atexit.register(note)
leave = os._exit
def leave_noted(code):
    note()
    leave(code)
os._exit = leave_noted
"""


class Imports:
    """Runs stages as processes; `found` has the heavy modules of each process by stage."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._notes = folder / "notes"
        self._notes.mkdir(parents=True)
        self.code: dict[str, set[str]] = {}
        """Stage to the files that its work is named after."""
        code = NOTES_IMPORTS.format(heavy=set(HEAVY), code=f"{CHECKOUT}/training/", folder=str(self._notes))
        (folder / "sitecustomize.py").write_text(code, encoding="utf-8")

    def run(self, work: Any, uri: str, **_options: Any) -> ExitCode:
        """Run an attempt as the runner's `run` does, in a new process."""
        environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "PYTHONPATH": os.pathsep.join([str(self._folder), str(CHECKOUT)]),
            "NIGHTSHIFT_DATABASE": f"sqlite:///{self._folder}/nightshift.db",
            # Files, as quickly made as thrown away: a server's client imports no more than theirs.
            "MLFLOW_TRACKING_URI": (self._folder / "mlruns").as_uri(),
            "MLFLOW_ALLOW_FILE_STORE": "true",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            # As the launcher sets it for evaluations.
            "NIGHTSHIFT_MODEL_FAMILY": self._folder.name,
        }
        stage = work.__module__.rpartition(".")[2]
        self.code[stage] = set(code_of_request(uri).files)
        is_gang = stage == "train" and self._folder.name == "ranker"
        launcher = ["-m", LAUNCHER, "--standalone", "--nproc-per-node=2", "--max-restarts=0"] if is_gang else []
        command = [sys.executable, *launcher, "-m", work.__module__, named(uri)]
        done = subprocess.run(command, env=environment, cwd=self._folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return ExitCode(done.returncode)

    def found(self) -> dict[str, set[str]]:
        """Return stage (or module) to the heavy modules that its processes had imported."""
        found: dict[str, set[str]] = {}
        for name, modules, _, _ in self._noted():
            found.setdefault(name, set()).update(modules)
        return found

    def uncovered(self) -> dict[str, set[str]]:
        """Return stage (or module) to the files of training/ that its processes used and its work is not named after."""
        found: dict[str, set[str]] = {}
        for name, _, files, _ in self._noted():
            # Registration copies all of training/ into the model, data files too; git is asked for files that are not there.
            read = [file for file in files if Path(file).is_file() and (name != "evaluate" or file.endswith(".py"))]
            used = {Path(file).relative_to(CHECKOUT).as_posix() for file in read}
            assert used
            # Code that acts on the world has no name: it is asked for each time.
            stage = {LATENCY: "evaluate", LAUNCHER: "train"}.get(name, name)
            covered = used if name == "promote" else self.code[stage]
            # The launcher trains nothing: its ranks run the stage.
            covered = covered | {"training/runtime/torchrun.py"} if name == LAUNCHER else covered
            found.setdefault(name, set()).update(used - covered)
        return found

    def collections(self) -> dict[str, tuple[bool, int]]:
        """Return stage to whether its process collected garbage at its end, and how often before its work began."""
        return {name: (is_enabled, at_start) for name, _, _, (is_enabled, at_start) in self._noted()}

    def _noted(self) -> Iterator[tuple[str, list[str], list[str], tuple[bool, int]]]:
        for note in self._notes.glob("*.json"):
            command, modules, files, collections = json.loads(note.read_text(encoding="utf-8"))
            for name in ALLOWED["ranker"]:
                is_launched = LAUNCHER in command and name != LAUNCHER
                if not is_launched and (f"-m {name} " in command or f"-m training.stages.{name} " in command):
                    yield name, modules, files, collections


def night(bench: Any, dataset: StageResult, snapshot_uri: str, train: StageResult, **more: Any) -> None:
    """Evaluate and decide, with what a first night's tasks hand over."""
    inputs = {"model": train.artifact_uri, "dataset": dataset.artifact_uri}
    evaluation = bench.stage("evaluate", inputs, {"champion": None, "canary": None, **more})
    bench.stage("promote", {**inputs, "snapshot": snapshot_uri, "evaluation": evaluation.artifact_uri}, {})


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Imports]:
    """Family to what the processes of a night imported and opened."""
    folder = tmp_path_factory.mktemp("imports")
    by_family = {}
    with pytest.MonkeyPatch.context() as patch:
        imports = Imports(folder / "ranker")
        patch.setattr(training_bench, "run", imports.run)
        shop = Bench(folder / "shop", processes=2)
        ingest = shop.stage("ingest", {}, {})
        shop.stage("validate", {"snapshot": ingest.artifact_uri}, {})
        train = shop.stage("train", {"dataset": shop.dataset_uri}, {"world_size": 2})
        night(shop, shop.stage("prepare", {}, {}), ingest.artifact_uri, train)
        by_family["ranker"] = imports
        for family, train_keys in TRAINS.items():
            imports = Imports(folder / family)
            patch.setattr(evaluate_bench, "run", imports.run)
            orders = EvaluateBench(folder / f"orders-{family}", "binary", text=SPEC.replace(TRAINS["boosted_trees"], train_keys))
            orders.stage("validate", {"snapshot": orders.snapshot_uri}, {})
            train = orders.stage("train", {"dataset": orders.dataset_uri}, {"world_size": 1})
            night(orders, orders.stage("prepare", {}, {}), orders.snapshot_uri, train)
            by_family[family] = imports
    return by_family


@pytest.mark.parametrize(("family", "stage"), [(family, stage) for family, stages in ALLOWED.items() for stage in stages])
def test_a_stage_imports_no_heavy_module_but_those_of_its_list(nights: dict[str, Imports], family: str, stage: str) -> None:
    assert nights[family].found()[stage] <= ALLOWED[family][stage]


@pytest.mark.parametrize(("family", "stage"), [(family, stage) for family, stages in ALLOWED.items() for stage in stages])
def test_a_stage_uses_no_file_that_its_work_is_not_named_after(nights: dict[str, Imports], family: str, stage: str) -> None:
    assert nights[family].uncovered()[stage] == set()


@pytest.mark.parametrize(
    ("family", "stage"), [(family, stage) for family, stages in ALLOWED.items() for stage in stages if stage not in (LATENCY, LAUNCHER)]
)
def test_a_stage_collects_garbage_from_the_begin_of_its_work_on(nights: dict[str, Imports], family: str, stage: str) -> None:
    assert tuple(nights[family].collections()[stage]) == (True, 0)
