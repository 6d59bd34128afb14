"""The code of each stage of this checkout: what an edit renames, and what it does not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from training.code.closure import FOLDERS_READ
from training.code.stages import code_roots, stage_code
from training.errors import SpecError
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, load_spec
from training.spec.descriptors.families import FAMILIES
from training.spec.descriptors.metrics import DESCRIPTORS
from training.stage_table import ALL_STAGES

PIPELINES = CHECKOUT / "dags" / "pipelines"
IMPORTS_BY_NAME = {"import_module", "__import__", "find_spec", "spec_from_file_location", "run_module", "run_path", "entry_points", "exec"}
"""Calls after which a syntax tree does not show what is imported."""
LOADERS = {"training.evaluation.metrics.registry", "training.sources.registry", "training.spec.registry"}
"""Modules that import by a name in the spec, or in a model's files: the roots of `training.code.stages` stand for them."""


@pytest.fixture(scope="module")
def ranking() -> PipelineSpec:
    return load_spec(PIPELINES / "search_ranking.yaml")


@pytest.fixture(scope="module")
def trees() -> PipelineSpec:
    return load_spec(PIPELINES / "flight_delay.yaml")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache") / "imports.json"


def stages_with(file: str, spec: PipelineSpec, cache: Path) -> set[str]:
    return {stage for stage in ALL_STAGES if file in stage_code(stage, spec, families=[spec.train.model], cache=cache).files}


SCORING = {"evaluate", "canary"}
TRAINING = {"train", "trial"}
EVERY = set(ALL_STAGES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "stages"),
    [
        ("training/models/ranker/module.py", TRAINING | SCORING),
        ("training/models/boosted_trees/module.py", set()),
        ("training/models/boosted_trees/family.py", EVERY),
        ("training/engine/loop.py", TRAINING | SCORING),
        ("training/pages/evaluation.css", SCORING),
        ("training/pages/evaluation.js", SCORING),
        ("training/pages/evaluation.html", SCORING),
        ("training/pages/validation.html", {"validate"}),
        ("training/pages/study.html", {"tune"}),
        ("training/evaluation/latency.py", {"evaluate"}),
        ("training/database/migrations/versions/0001_tables.py", {"ingest", "promote"}),
        ("training/data/join/contract.py", {"prepare", *SCORING}),
        ("training/runtime/runner.py", EVERY),
        ("training/spec/sections/data.py", EVERY),
    ],
)
def test_an_edit_renames_the_stages_that_use_the_file(ranking: PipelineSpec, cache: Path, file: str, stages: set[str]) -> None:
    found = stages_with(file, ranking, cache)
    # A stage may come to use more; what must not happen is named by the next test.
    assert stages <= found if stages else not found


@pytest.mark.parametrize("folder", ["training/registry/", "training/evaluation/"])
def test_an_edit_of_gates_or_reports_leaves_ingest_to_train_as_they_are(
    ranking: PipelineSpec, trees: PipelineSpec, cache: Path, folder: str
) -> None:
    for spec in (ranking, trees):
        for stage in ("ingest", "validate", "prepare", "train"):
            assert not [name for name in stage_code(stage, spec, cache=cache).files if name.startswith(folder)], stage


def test_each_family_has_its_own_code(ranking: PipelineSpec, trees: PipelineSpec, cache: Path) -> None:
    assert stage_code("prepare", ranking, cache=cache).version == stage_code("prepare", trees, cache=cache).version
    assert stage_code("train", ranking, cache=cache).version != stage_code("train", trees, cache=cache).version
    assert "training/models/torch_family.py" not in stage_code("train", trees, cache=cache).files


def test_an_evaluation_has_the_code_of_the_models_that_it_loads(ranking: PipelineSpec, cache: Path) -> None:
    files = stage_code("evaluate", ranking, families=["boosted_trees", "of_before", "gone.models:Model"], cache=cache).files
    assert {"training/models/ranker/module.py", "training/models/boosted_trees/module.py"} <= set(files)
    descriptors = [f"training.models.{family}.family" for family in FAMILIES.built_in]
    metrics = {f"training.evaluation.metrics.{descriptor.module}" for descriptor in DESCRIPTORS.values()}
    expected = sorted([*descriptors, *metrics, "training.models.boosted_trees.module", "training.stages.canary"])
    assert code_roots("canary", ranking, ["boosted_trees"]) == tuple(expected)


def test_a_users_class_and_metric_are_roots_where_they_are_loaded(
    ranking: PipelineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_MODEL_PACKAGES", "acme")
    monkeypatch.setenv("NIGHTSHIFT_MODEL_PATH", str(tmp_path))
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "models.py").write_text("import torch\n", encoding="utf-8")
    (tmp_path / "acme" / "metrics.py").write_text("", encoding="utf-8")
    train = ranking.train.model_copy(update={"model": "acme.models:Model"})
    evaluate = ranking.evaluate.model_copy(update={"metrics": {"margin": "acme.metrics:margin"}})
    spec = ranking.model_copy(update={"train": train, "evaluate": evaluate})
    model, metric = "acme/models.py", "acme/metrics.py"
    for stage, expected in {
        "train": {model},
        "trial": {model, metric},
        "evaluate": {model, metric},
        "canary": {metric},
        "prepare": set(),
    }.items():
        assert {name for name in stage_code(stage, spec).files if name.startswith("acme")} == expected, stage
    (tmp_path / "acme" / "models.py").unlink()
    with pytest.raises(SpecError, match=r"acme\.models is not found"):
        stage_code("train", spec)


def test_each_file_of_training_belongs_to_a_stage_or_is_listed_here(ranking: PipelineSpec, trees: PipelineSpec, cache: Path) -> None:
    used = {
        name
        for stage in ALL_STAGES
        for spec in (ranking, trees)
        for name in stage_code(stage, spec, families=[spec.train.model], cache=cache).files
    }
    files = (path for path in (CHECKOUT / "training").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    # What plugins and commands alone use; a template or style sheet is never among them.
    outside = {name for path in files if (name := path.relative_to(CHECKOUT).as_posix()) not in used}
    assert all(name.endswith(".py") for name in outside), outside


@pytest.mark.slow
def test_imports_by_a_computed_name_are_where_the_roots_stand_for_them() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted((CHECKOUT / "training").rglob("*.py")):
        module = path.relative_to(CHECKOUT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, ast.FunctionDef):
                continue
            for call in ast.walk(node):
                name = getattr(call.func, "attr", getattr(call.func, "id", "")) if isinstance(call, ast.Call) else ""
                if name in IMPORTS_BY_NAME:
                    found.setdefault(module, set()).add(node.name)
    # Not imports: they ask where a package is.
    asks = (
        ("training.runtime.provenance", "_model_package_paths"),
        ("training.code.closure", "_find"),
        ("training.code.carried", "_add_libraries"),
    )
    for module, function in asks:
        found[module].remove(function)
    # It looks up entry points, and imports none; what they name is a root.
    found["training.spec.registry"].remove("installed")
    # It imports the stage that is its argument, which is a root itself.
    assert found.pop("training.runtime.torchrun") == {"import_only", "run"}
    # It imports what each stage imports, and a fork runs the stage that it is given.
    assert found.pop("training.runtime.template") == {"_import", "run"}
    # Classes of libraries, which no code version covers.
    assert all(found.pop(f"training.models.sklearn.{name}") for name in ("estimators", "weights"))
    # It imports what a family's descriptor names in a string, which counts as an import.
    assert found.pop("training.spec.descriptors.families") == {"library_violations"}
    assert {module for module, functions in found.items() if functions} == LOADERS, found
    assert set(FOLDERS_READ) == {"training.database.connect"}
