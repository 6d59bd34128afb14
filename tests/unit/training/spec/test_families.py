"""The registry of model families: names without an import, descriptors without the libraries of their modules."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from training.errors import SpecError
from training.runtime.provenance import CHECKOUT
from training.spec.families import (
    MODELS_FOLDER,
    built_in_families,
    descriptor_of,
    is_allowed,
    known_families,
    own_packages,
    package_of,
    place_of,
)
from training.spec.family import FamilyDescriptor
from training.spec.installed import installed_packages


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed distributions."""
    monkeypatch.syspath_prepend(tmp_path)
    for cached in (installed_packages, descriptor_of):
        cached.cache_clear()
    yield tmp_path
    for cached in (installed_packages, descriptor_of):
        cached.cache_clear()
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
    assert built_in_families(tmp_path) == ("tower",)


@pytest.mark.parametrize("name", built_in_families())
def test_each_family_of_training_models_has_a_descriptor_and_a_module(name: str) -> None:
    descriptor = descriptor_of(name)
    assert isinstance(descriptor, FamilyDescriptor)
    assert descriptor.libraries
    assert {path.name for path in (MODELS_FOLDER / name).glob("*.py")} == {"__init__.py", "family.py", "module.py"}
    assert place_of(name) == (f"training.models.{name}.module", "FAMILY")


def test_an_entry_point_adds_a_family_and_allows_its_package(site: Path) -> None:
    install(site, "acme_forest", {"forest": "acme.forest"})
    assert known_families() == ("boosted_trees", "forest", "ranker")
    assert package_of("forest") == "acme.forest"
    assert own_packages({"NIGHTSHIFT_MODEL_PACKAGES": "shop, acme"}) == ("shop", "acme")
    assert own_packages({}) == ("acme",)
    assert is_allowed("forest")
    assert "acme" not in sys.modules, "a name is looked up without an import"


def test_a_descriptor_whose_module_ends_the_interpreter_is_an_error_that_names_it(site: Path) -> None:
    install(site, "acme_forest", {"forest": "acme_exit"}, {"acme_exit/__init__.py": "", "acme_exit/family.py": "raise SystemExit(3)\n"})
    with pytest.raises(SpecError, match=r"forest has no descriptor in acme_exit\.family: SystemExit: 3") as caught:
        descriptor_of("forest")
    assert caught.value.code == "model.descriptor"


def test_a_descriptor_without_libraries_is_refused_when_a_spec_names_it(site: Path) -> None:
    text = (MODELS_FOLDER / "boosted_trees" / "family.py").read_text(encoding="utf-8")
    empty = re.sub(r"libraries=\([^)]*\)", "libraries=()", text)
    assert empty != text
    install(site, "acme_forest", {"forest": "acme_bare"}, {"acme_bare/__init__.py": "", "acme_bare/family.py": empty})
    with pytest.raises(SpecError, match="ValueError: libraries is empty") as caught:
        descriptor_of("forest")
    assert caught.value.code == "model.descriptor"


@pytest.mark.parametrize("points", [{"ranker": "acme.ranker"}, {"forest": "acme.forest"}])
def test_two_families_of_one_name_are_refused(site: Path, points: dict[str, str]) -> None:
    install(site, "acme_one", points)
    install(site, "acme_two", {"forest": "acme2.forest"})
    with pytest.raises(
        SpecError, match=r"'(ranker|forest)' of the group nightshift\.families is in (training|acme\.forest) and in"
    ) as caught:
        known_families()
    assert caught.value.code == "entry_point.ambiguous"


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
        descriptor_of("forest")
    assert caught.value.code == "model.descriptor"
    assert f"forest has no descriptor in acme.forest.family: {reason}" in str(caught.value)


def test_a_class_and_an_unknown_family_have_no_descriptor() -> None:
    assert descriptor_of("acme.rank:Model") is None
    assert descriptor_of("tower") is None
    with pytest.raises(SpecError, match=r"there is no model 'tower' \(known: boosted_trees, ranker\)"):
        place_of("tower")


PARSES = """
import sys
from pathlib import Path
from training.spec import load_spec
for path in sorted(Path("dags/pipelines").glob("*.yaml")):
    assert load_spec(path).train.model
from training.spec.families import descriptor_of, known_families
assert all(descriptor_of(name) for name in known_families())
print(sorted({"numpy", "torch", "pandas", "xgboost", "duckdb", "mlflow"} & set(sys.modules)))
print(sorted(name for name in sys.modules if name.startswith("training.models") and not name.endswith(".family")))
"""


def test_parsing_pipelines_imports_descriptors_and_no_library_of_a_family() -> None:
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run([sys.executable, "-c", PARSES], cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=True)
    libraries, packages = done.stdout.splitlines()
    assert libraries == "[]"
    assert packages == str(["training.models", "training.models.boosted_trees", "training.models.ranker"])


def test_an_entry_point_that_names_no_module_is_an_error_with_its_distribution(site: Path) -> None:
    install(site, "acme-odd", {"odd": "my-package"})
    with pytest.raises(SpecError, match=r"\[entry_point\.value\] .*odd.*acme-odd.*my-package"):
        known_families()
