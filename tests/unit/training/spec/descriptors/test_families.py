"""The registry of model families: names without an import, descriptors without the libraries of their modules."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from training.errors import Problem, SpecError
from training.runtime.provenance import CHECKOUT
from training.spec.check import report
from training.spec.descriptors.families import (
    FAMILIES,
    MODELS_FOLDER,
    FamilyDescriptor,
    families_in,
    is_allowed,
    own_packages,
    place_of,
    trained_families,
)
from training.spec.reader.loader import parse_spec
from training.spec.registry import installed
from training.spec.schema import pipeline_schema


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed distributions."""
    monkeypatch.syspath_prepend(tmp_path)
    installed.cache_clear()
    yield tmp_path
    installed.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0].startswith("acme")]:
        del sys.modules[name]


def install(site: Path, distribution: str, entry_points: dict[str, str], files: dict[str, str] | None = None) -> None:
    info = site / f"{distribution}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    lines = [f"{name} = {package}" for name, package in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[nightshift.families]", *lines, ""]))
    for name, text in (files or {}).items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_folder_with_a_descriptor_is_a_family_and_nothing_is_imported(tmp_path: Path) -> None:
    for folder in ("tower", "_private"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "family.py").write_text("DESCRIPTOR = 1 / 0\n")
    (tmp_path / "notes").mkdir()
    (tmp_path / "predictor.py").write_text("class Predictor: ...\n")
    assert families_in(tmp_path) == {"tower": "training.models.tower"}


@pytest.mark.parametrize("name", FAMILIES.built_in)
def test_each_family_of_training_models_has_a_descriptor_and_a_module(name: str) -> None:
    descriptor = FAMILIES.get(name)
    assert isinstance(descriptor, FamilyDescriptor)
    assert descriptor.libraries
    assert {path.name for path in (MODELS_FOLDER / name).glob("*.py")} >= {"__init__.py", "family.py", "module.py"}
    assert place_of(name) == f"training.models.{name}.module:FAMILY"


def test_an_entry_point_adds_a_family_and_allows_its_package(site: Path) -> None:
    install(site, "acme_forest", {"forest": "acme.forest"})
    assert FAMILIES.names() == tuple(sorted({*FAMILIES.built_in, "forest"}))
    assert FAMILIES.package_of("forest") == "acme.forest"
    assert own_packages({"NIGHTSHIFT_MODEL_PACKAGES": "shop, acme"}) == ("shop", "acme")
    assert own_packages({}) == ("acme",)
    assert is_allowed("forest")
    assert "acme" not in sys.modules, "a name is looked up without an import"


def test_an_entry_point_that_names_an_object_too_adds_the_family_of_its_package(site: Path) -> None:
    family = (MODELS_FOLDER / "linear" / "family.py").read_text(encoding="utf-8")
    install(site, "acme_forest", {"forest": "acme_named:FAMILY"}, {"acme_named/__init__.py": "", "acme_named/family.py": family})
    assert isinstance(FAMILIES.get("forest"), FamilyDescriptor)
    assert place_of("forest") == "acme_named.module:FAMILY"
    assert FAMILIES.modules_of("forest") == {"acme_named.family", "acme_named.module"}
    assert own_packages({}) == ("acme_named",)


def test_a_descriptor_whose_module_ends_the_interpreter_is_an_error_that_names_it(site: Path) -> None:
    install(site, "acme_forest", {"forest": "acme_exit"}, {"acme_exit/__init__.py": "", "acme_exit/family.py": "raise SystemExit(3)\n"})
    with pytest.raises(SpecError, match=r"forest has no DESCRIPTOR in acme_exit\.family: SystemExit: 3") as caught:
        FAMILIES.get("forest")
    assert caught.value.code == "model.descriptor"


def test_a_descriptor_without_libraries_is_refused_when_a_spec_names_it(site: Path) -> None:
    text = (MODELS_FOLDER / "boosted_trees" / "family.py").read_text(encoding="utf-8")
    empty = re.sub(r"libraries=\([^)]*\)", "libraries=()", text)
    assert empty != text
    install(site, "acme_forest", {"forest": "acme_bare"}, {"acme_bare/__init__.py": "", "acme_bare/family.py": empty})
    with pytest.raises(SpecError, match="ValueError: libraries is empty") as caught:
        FAMILIES.get("forest")
    assert caught.value.code == "model.descriptor"


def test_a_family_that_two_distributions_have_is_refused_where_a_spec_names_it(site: Path) -> None:
    install(site, "acme_one", {"forest": "acme.forest", "tower": "acme.tower"})
    install(site, "acme_two", {"forest": "acme2.forest"})
    with pytest.raises(SpecError, match=r"'forest' of the group nightshift\.families is in acme\.forest and in acme2\.forest") as caught:
        is_allowed("forest")
    assert caught.value.code == "entry_point.ambiguous"
    assert FAMILIES.names() == tuple(sorted({*FAMILIES.built_in, "tower"}))
    assert FAMILIES.package_of("tower") == "acme.tower"


def test_an_entry_point_with_the_name_of_a_family_of_ours_is_left_out_with_a_warning(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = trained_families()
    install(site, "acme_one", {"ranker": "acme.ranker"})
    installed.cache_clear()
    assert trained_families() == before
    assert FAMILIES.package_of("ranker") == "training.models.ranker"
    caplog.clear()
    installed.cache_clear()
    assert report({}, []) == 0
    words = "left out: 'ranker' of the group nightshift.families is in training and in acme.ranker (rename the entry point: "
    assert words in caplog.text, "`nightshift check` prints warnings"


BROKEN = {"forest": "acme_gone", "odd": "my-package", "tower": "acme.tower"}
"""Entry points of a distribution of which not one can be used."""


def test_a_broken_entry_point_leaves_the_check_of_other_pipelines_as_it_is(site: Path) -> None:
    pipelines = CHECKOUT / "dags" / "pipelines"
    text = (pipelines / "flight_delay.yaml").read_text(encoding="utf-8")
    wrong = text.replace("task: binary", "task: language")
    assert wrong != text
    unknown = text.replace("model: boosted_trees", "model: forst")
    expected = [problems(wrong), problems(unknown)]
    install(site, "acme_forest", BROKEN)
    install(site, "acme_two", {"tower": "acme2.tower"})
    installed.cache_clear()
    assert problems(text) == []
    assert problems(wrong) == expected[0]
    assert [problem.code for problem in problems(unknown)] == [problem.code for problem in expected[1]] == ["model.unknown"]


def problems(text: str) -> list[Problem]:
    try:
        parse_spec(text.encode())
    except SpecError as err:
        return list(err.problems)
    return []


def test_a_broken_entry_point_is_left_out_of_the_schema(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = pipeline_schema()
    install(site, "acme_forest", BROKEN)
    installed.cache_clear()
    assert pipeline_schema() == expected
    assert "forest has no DESCRIPTOR in acme_gone.family" in caplog.text


def test_settings_of_an_installed_family_have_their_own_place_in_the_schema(site: Path) -> None:
    ours = pipeline_schema()
    text = (MODELS_FOLDER / "boosted_trees" / "family.py").read_text(encoding="utf-8")
    bark = "class Bark(Section):\n    rough: bool = False\n\n\n"
    settings = "class BoostedTreesSettings(Section):\n"
    theirs = text.replace(settings, f"{bark}{settings}    bark: Bark = Bark()\n")
    install(site, "acme_forest", {"forest": "acme_own"}, {"acme_own/__init__.py": "", "acme_own/family.py": theirs})
    installed.cache_clear()
    found = pipeline_schema()["$defs"]
    assert {name: found[name] for name in ours["$defs"] if name != "Train"} == {
        name: schema for name, schema in ours["$defs"].items() if name != "Train"
    }
    assert found["forest.BoostedTreesSettings"]["properties"]["bark"]["$ref"] == "#/$defs/forest.Bark"
    assert "rough" in found["forest.Bark"]["properties"]
    (rule,) = [rule for rule in found["Train"]["allOf"] if rule["if"]["properties"]["model"]["const"] == "forest"]
    assert rule["then"]["properties"]["settings"]["$ref"] == "#/$defs/forest.BoostedTreesSettings"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import gone_library\n", "ModuleNotFoundError: No module named 'gone_library'"),
        ("DESCRIPTOR = 3\n", "its DESCRIPTOR is a int"),
        ("", "its DESCRIPTOR is a NoneType"),
    ],
)
def test_a_descriptor_that_cannot_be_used_is_an_error_with_its_module_and_the_reason(site: Path, text: str, reason: str) -> None:
    install(site, "acme_forest", {"forest": "acme.forest"}, {"acme/forest/family.py": text})
    with pytest.raises(SpecError) as caught:
        FAMILIES.get("forest")
    assert caught.value.code == "model.descriptor"
    assert f"forest has no DESCRIPTOR in acme.forest.family: {reason}" in str(caught.value)


def test_a_class_and_an_unknown_family_have_no_descriptor() -> None:
    assert FAMILIES.get("acme.rank:Model") is None
    assert FAMILIES.get("tower") is None
    with pytest.raises(SpecError, match=rf"there is no model 'tower' \(known: {', '.join(trained_families())}\)"):
        place_of("tower")


PARSES = """
import sys
from pathlib import Path
from training.spec import load_spec
for path in sorted(Path("dags/pipelines").glob("*.yaml")):
    assert load_spec(path).train.model
from training.spec.descriptors.families import FAMILIES
assert len(FAMILIES.usable()) == len(FAMILIES.built_in)
print(sorted({"numpy", "torch", "pandas", "xgboost", "duckdb", "mlflow"} & set(sys.modules)))
print(sorted(name for name in sys.modules if name.startswith("training.models") and not name.endswith(".family")))
"""


def test_parsing_pipelines_imports_descriptors_and_no_library_of_a_family() -> None:
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run([sys.executable, "-c", PARSES], cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=True)
    libraries, packages = done.stdout.splitlines()
    assert libraries == "[]"
    assert packages == str(["training.models", *(f"training.models.{name}" for name in FAMILIES.built_in)])


def test_an_entry_point_that_names_no_module_is_an_error_with_its_distribution(site: Path) -> None:
    before = trained_families()
    install(site, "acme-odd", {"odd": "my-package"})
    installed.cache_clear()
    with pytest.raises(SpecError, match=r"\[entry_point\.value\] .*odd.*acme-odd.*my-package"):
        is_allowed("odd")
    assert trained_families() == before


def test_a_pipeline_of_built_in_names_reads_no_entry_points() -> None:
    # Each parse of a DAG file is a new process: reading the metadata of all installed distributions costs a third of it.
    code = (
        "import importlib.metadata, sys\n"
        "read = importlib.metadata.entry_points\n"
        "def refuse(group, **names):\n"
        "    assert not group.startswith('nightshift'), group\n"
        "    return read(group=group, **names)\n"
        "importlib.metadata.entry_points = refuse\n"
        "from training.spec.reader.loader import load_spec\n"
        "load_spec(sys.argv[1])\n"
    )
    for name in ("search_ranking", "flight_delay"):
        command = [sys.executable, "-c", code, str(CHECKOUT / "dags" / "pipelines" / f"{name}.yaml")]
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
