"""The carried wheels: a folder that lacks one, or holds one for another Python, is named before it is needed."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from benchmarks.gpu import wheels


def write_wheel(folder: Path, name: str, *, tags: str = "py3-none-any", requires: str = "") -> None:
    stem = f"{canonicalize_name(name).replace('-', '_')}-1.5"
    with zipfile.ZipFile(folder / f"{stem}-{tags}.whl", "w") as archive:
        lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.5", *([f"Requires-Dist: {requires}"] if requires else [])]
        archive.writestr(f"{stem}.dist-info/METADATA", "\n".join(lines) + "\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in wheels.NAMES:
        write_wheel(tmp_path, name)
    return tmp_path


def test_whole_folder_has_no_problem(folder: Path) -> None:
    assert wheels.problems_of(folder, "3.12") == []


def test_wheel_that_is_missing_is_named(folder: Path) -> None:
    next(folder.glob("numpy-*")).unlink()
    assert wheels.problems_of(folder, "3.12") == ["numpy is missing"]


@pytest.mark.parametrize(
    ("requires", "problem"),
    [
        ("iniconfig>=2", ["requires iniconfig>=2, found 1.5"]),
        ("numexpr", ["requires numexpr, which is missing"]),
        ("colorama; sys_platform == 'win32'", []),
        ("tomli>=1; python_version < '3.11'", []),
        ("pyarrow; extra == 'all'", []),
        ("typing-extensions>=4.14", []),
    ],
)
def test_requirement_of_a_wheel_that_nothing_meets_is_named(folder: Path, requires: str, problem: list[str]) -> None:
    write_wheel(folder, "duckdb", requires=requires)
    assert [found.partition(" ")[2] for found in wheels.problems_of(folder, "3.12")] == problem


@pytest.mark.parametrize(
    ("tags", "fits"),
    [
        ("cp312-cp312-manylinux_2_28_x86_64", True),
        ("cp311-abi3-manylinux2014_x86_64", True),
        ("cp313-abi3-manylinux2014_x86_64", False),
        ("cp311-cp311-manylinux_2_28_x86_64", False),
        ("cp312-cp312-macosx_11_0_arm64", False),
    ],
)
def test_wheel_for_another_python_or_platform_is_named(folder: Path, tags: str, fits: bool) -> None:
    next(folder.glob("obstore-*")).unlink()
    write_wheel(folder, "obstore", tags=tags)
    assert wheels.problems_of(folder, "3.12") == ([] if fits else [f"obstore-1.5-{tags}.whl does not fit Python 3.12"])


def test_wheels_that_are_too_large_together_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "MAX_BYTES", 100)
    assert [problem.partition(" bytes")[2] for problem in wheels.problems_of(folder, "3.12")] == [" are more than 100"]
