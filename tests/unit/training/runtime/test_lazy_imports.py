"""Lean imports: what is deferred loads when it is used, what is left out is left out nowhere else."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from training.installation import MODEL_PACKAGES
from training.runtime.lazy_imports import lean_imports, may_omit
from training.runtime.provenance import CHECKOUT

OWN_PROGRAM = SimpleNamespace(name="training.stages.evaluate")
AS_OWN_PROGRAM = "import sys, types\nsys.modules['__main__'].__spec__ = types.SimpleNamespace(name='training.stages.validate')\n"

SUITE = """
import pandas as pd
from training.validation.suites.batches import judge_batches
from training.validation.suites.judging import SuiteJudge
frame = pd.DataFrame({"dice": [1, 2, 3, 4, 5, 6] * 50})
partition = {"values": [1, 2, 3, 4, 5, 6], "weights": [1 / 6] * 6}
kwargs = {"column": "dice", "partition_object": partition, "threshold": 0.1}
suite = {"expectations": [{"type": "expect_column_kl_divergence_to_be_less_than", "kwargs": kwargs},
                          {"type": "expect_column_mean_to_be_between", "kwargs": {"column": "dice", "min_value": 3, "max_value": 4}}]}
assert "sqlalchemy" not in sys.modules
judge = SuiteJudge(suite, name="dice", table="rolls", types={"dice": "int64"})
print([result.success for result in judge_batches(list(judge._expectations.values()), [frame])], "sqlalchemy" in sys.modules)
import sqlalchemy
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return what makes a module of a name: it notes in `sys.loaded_for_test` when it is loaded."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "loaded_for_test", [], raising=False)

    def make(name: str) -> str:
        (tmp_path / f"{name}.py").write_text(f"import sys\nsys.loaded_for_test.append({name!r})\nVALUE = 7\n", encoding="utf-8")
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return make


def loaded() -> list[str]:
    return list(sys.loaded_for_test)  # type: ignore[attr-defined]


def own_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", OWN_PROGRAM)
    monkeypatch.delenv(MODEL_PACKAGES.name, raising=False)


def python(program: str) -> str:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(CHECKOUT), "HOME": "/nonexistent", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def test_a_deferred_module_is_loaded_at_its_first_use(module: Callable[[str], str]) -> None:
    with lean_imports(deferred=[module("deferred_for_test")]):
        found = importlib.import_module("deferred_for_test")
    assert loaded() == []
    assert found.VALUE == 7
    assert loaded() == ["deferred_for_test"]


def test_a_deferred_package_whose_load_failed_is_loaded_in_full_at_its_next_use(
    tmp_path: Path, module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library, package = module("library_for_test"), tmp_path / "deferred_package_for_test"
    package.mkdir()
    (tmp_path / f"{library}.py").write_text(
        "try:\n    from deferred_package_for_test.part import VALUE\nexcept ImportError:\n    VALUE = 0\nREADY = True\n"
    )
    (package / "__init__.py").write_text(f"from {library} import READY\nORDER = 1\n")
    (package / "part.py").write_text("import deferred_package_for_test\nVALUE = deferred_package_for_test.ORDER\n")
    with lean_imports(deferred=[package.name]):
        assert importlib.import_module(library).VALUE == 0, "its package needs the library, whose import was not complete"
    try:
        assert importlib.import_module(f"{package.name}.part").VALUE == 1
        assert sys.modules[package.name].__loader__ is sys.modules[package.name].__spec__.loader  # type: ignore[union-attr]
    finally:
        for name in (package.name, f"{package.name}.part"):
            sys.modules.pop(name, None)


@pytest.mark.slow
def test_judges_of_mlflow_can_be_imported_after_its_lean_import() -> None:
    program = "from training.runtime.lazy_imports import MLFLOW_DEFERRED, MLFLOW_MODELS_OPTIONAL, lean_imports\n"
    program += "with lean_imports(deferred=MLFLOW_DEFERRED, absent=MLFLOW_MODELS_OPTIONAL):\n    import mlflow\n"
    assert python(AS_OWN_PROGRAM + program + "from mlflow.genai.scorers.base import Scorer\nprint(Scorer.__name__)") == "Scorer"


def test_an_absent_module_is_missing_in_the_block_and_there_after_it(module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    own_program(monkeypatch)
    name = module("absent_for_test")
    with lean_imports(absent=[name]), pytest.raises(ModuleNotFoundError, match="left out"):
        importlib.import_module(name)
    assert importlib.import_module(name).VALUE == 7


def test_other_threads_import_what_is_absent_here(module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    own_program(monkeypatch)
    name = module("absent_for_test")
    found = []
    with lean_imports(absent=[name]):
        other = threading.Thread(target=lambda: found.append(importlib.import_module(name).VALUE))
        other.start()
        other.join()
    assert found == [7]


def test_nothing_is_left_out_of_processes_that_are_not_ours(module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    with lean_imports(absent=[module("absent_for_test")]):
        assert importlib.import_module("absent_for_test").VALUE == 7


def test_nothing_is_left_out_where_users_packages_may_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    own_program(monkeypatch)
    assert may_omit()
    monkeypatch.setenv(MODEL_PACKAGES.name, "ours")
    assert not may_omit()


@pytest.mark.slow
def test_where_a_model_is_served_xgboost_keeps_its_classes_for_scikit_learn() -> None:
    assert python("import training.models.boosted_trees.module, xgboost; print(xgboost.XGBClassifier().get_params()['n_jobs'])") == "None"


@pytest.mark.slow
def test_expectations_that_need_a_deferred_module_are_judged_as_ever() -> None:
    assert python(AS_OWN_PROGRAM + SUITE) == "[True, True] False"


def test_garbage_is_not_collected_in_the_block_and_then_is_as_before() -> None:
    assert gc.isenabled()
    with lean_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with lean_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
