"""Which files stand for the code of a module: by statements, by names of modules and files in strings, in training/ and users' packages."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from training.code.closure import ROOT, Code, Sources, closure
from training.code.imports import ImportsCache, imports_of
from training.code.stages import stage_code
from training.errors import SpecError
from training.spec import load_spec

PACKAGE = {
    "training/__init__.py": "",
    "training/stages/__init__.py": "",
    "training/stages/train.py": (
        "from typing import TYPE_CHECKING\n"
        "import torch\n"
        "from training import engine\n"
        "from training.engine.loop import Loop\n"
        "if TYPE_CHECKING:\n    from training.hints import Hint\n"
        "def late():\n    import training.late\n    return ['-m', 'training.child']\n"
    ),
    "training/engine/__init__.py": "",
    "training/engine/loop.py": "from . import divergence\nfrom ..late import step\nPAGE = 'page.html'\nABOVE = '../late.py'\n",
    "training/engine/divergence.py": "",
    "training/engine/page.html": "<p>",
    "training/engine/other.html": "<p>",
    "training/late.py": "",
    "training/child.py": "import training.engine.loop",
    "training/hints.py": "Hint = int",
    "training/unused.py": "import training.stages.train",
}
REACHED = {name for name in PACKAGE if name not in ("training/hints.py", "training/unused.py", "training/engine/other.html")}


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def code(folder: Path, *roots: str, cache: Path | None = None, **environ: str) -> Code:
    names = {name.replace("MODEL_", "NIGHTSHIFT_MODEL_"): value for name, value in environ.items()}
    return closure(roots, sources=Sources(folder, names), cache=ImportsCache(cache))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    write(tmp_path, PACKAGE)
    return tmp_path


def test_a_closure_has_what_is_imported_in_functions_started_by_name_or_read_beside_a_module_and_nothing_else(package: Path) -> None:
    assert set(code(package, "training.stages.train").files) == REACHED


@pytest.mark.parametrize("name", sorted(REACHED))
def test_a_change_of_any_file_of_the_closure_changes_the_version(package: Path, name: str) -> None:
    before = code(package, "training.stages.train").version
    with (package / name).open("a", encoding="utf-8") as file:
        file.write("\n")
    assert code(package, "training.stages.train").version != before


def test_a_change_outside_the_closure_changes_no_version(package: Path) -> None:
    before = code(package, "training.stages.train").version
    write(package, {"training/unused.py": "x = 1", "training/engine/other.html": "<b>", "training/new.py": ""})
    assert code(package, "training.stages.train").version == before


def test_a_module_that_appears_where_an_attribute_was_imported_is_in_the_closure(package: Path) -> None:
    write(
        package,
        {"training/engine/__init__.py": "from training.late import step", "training/late/__init__.py": "", "training/late/step.py": ""},
    )
    files = set(code(package, "training.stages.train").files)
    assert {"training/late/__init__.py", "training/late/step.py"} <= files
    assert "training/late.py" not in files, "a package goes before a module of its name, as in Python"


SHOP = {
    "shop/__init__.py": "",
    "shop/model.py": "import shop_tools\nfrom .layers import Layer\n",
    "shop/layers.py": "",
    "shop/unused.py": "",
    "shop/sql/features.sql": "SELECT 1",
    "shop/.git/HEAD": "",
    "shop_tools.py": "import numpy",
    "numpy_like.py": "",
}


def test_a_users_package_counts_with_its_imports_and_all_its_data_files(package: Path, tmp_path: Path) -> None:
    write(tmp_path / "users", SHOP)
    files = set(code(package, "shop.model", MODEL_PATH=str(tmp_path / "users"), MODEL_PACKAGES="shop").files)
    assert files == {"shop/__init__.py", "shop/model.py", "shop/layers.py", "shop/sql/features.sql", "shop_tools.py"}


def test_an_installed_package_counts_where_the_installation_lists_it(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "site-packages", SHOP)
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    files = set(code(package, "shop.model", MODEL_PACKAGES="shop").files)
    assert "shop/layers.py" in files
    assert "shop_tools.py" not in files, "a library beside it, which the environment stands for"


def test_a_root_that_is_not_found_is_an_error_that_says_where_to_put_it(package: Path) -> None:
    with pytest.raises(SpecError, match=r"\[code.missing\] the module shop.model is not found.*NIGHTSHIFT_MODEL_PATH") as caught:
        code(package, "shop.model", MODEL_PACKAGES="shop")
    assert caught.value.code == "code.missing"


def test_a_file_that_is_not_python_is_an_error_with_its_line(package: Path) -> None:
    write(package, {"training/late.py": "x = 1\ndef\n"})
    with pytest.raises(SpecError, match=r"late\.py:2: \[code\.syntax\]"):
        code(package, "training.stages.train")


def test_unchanged_files_are_parsed_once(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, parsed = tmp_path / "cache" / "imports.json", []
    monkeypatch.setattr("training.code.imports.imports_of", lambda source: (parsed.append(source), imports_of(source))[1])
    first = code(package, "training.stages.train", cache=cache)
    count = len(parsed)
    assert count == len({(package / name).read_bytes() for name in REACHED if name.endswith(".py")})
    assert code(package, "training.stages.train", cache=cache) == first
    assert len(parsed) == count
    write(package, {"training/late.py": "import training.unused"})
    assert "training/unused.py" in code(package, "training.stages.train", cache=cache).files
    assert len(parsed) == count + 2


@pytest.mark.parametrize("damage", [b"", b"no digest", b"{}", bytes(range(256))])
def test_a_damaged_cache_is_made_again(package: Path, tmp_path: Path, damage: bytes) -> None:
    cache = tmp_path / "imports.json"
    first = code(package, "training.stages.train", cache=cache)
    whole = cache.read_bytes()
    for content in (damage, whole[:-9], whole.replace(b"late", b"etal")):
        cache.write_bytes(content)
        assert code(package, "training.stages.train", cache=cache) == first
        assert cache.read_bytes() == whole


def test_a_cache_does_not_grow_with_each_edit(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "imports.json"
    monkeypatch.setattr("training.code.imports.MAX_CACHED_FILES", 10)
    code(package, "training.stages.train", cache=cache)
    size = cache.stat().st_size
    for number in range(20):
        write(package, {"training/late.py": f"import a_library_{number:03}"})
        code(package, "training.stages.train", cache=cache)
    assert cache.stat().st_size < 2 * size


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The files that were parsed and not found in a cache."""
    found: list[bytes] = []
    monkeypatch.setattr("training.code.imports.imports_of", lambda source: (found.append(source), imports_of(source))[1])
    return found


def test_cache_whose_folder_cannot_be_written_is_kept_in_the_temporary_folder(
    package: Path, tmp_path: Path, parsed: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "file").touch()
    cache = tmp_path / "file" / "imports.json"
    first = code(package, "training.stages.train", cache=cache)
    count = len(parsed)
    assert code(package, "training.stages.train", cache=cache) == first
    assert len(parsed) == count > 0
    (folder,) = (tmp_path / "tmp").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("fault", ["absent", "of others", "a link"])
def test_cache_is_in_memory_alone_where_the_temporary_folder_cannot_be_used(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "file").touch()
    own = tmp_path / "tmp" / f"nightshift-{os.getuid()}"
    if fault == "of others":
        own.mkdir(parents=True)
        own.chmod(0o777)
    if fault == "a link":
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "tmp").mkdir()
        own.symlink_to(tmp_path / "elsewhere")
    cache = tmp_path / "file" / "imports.json"
    assert code(package, "training.stages.train", cache=cache).files == code(package, "training.stages.train").files
    assert list(tmp_path.rglob("imports.json*")) == []


def test_code_version_is_computed_where_nothing_can_be_written(monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder) -> None:
    """As in a pod without NIGHTSHIFT_HOME and with a read-only root: /proc refuses every user a file."""
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    spec = load_spec(ROOT / "dags" / "pipelines" / "search_ranking.yaml")
    cache = Path("/proc/nightshift/cache/imports.json")
    assert stage_code("train", spec, cache=cache) == stage_code("train", spec)
    assert list(recwarn) == []


def test_data_of_a_package_without_init_counts(tmp_path: Path) -> None:
    write(tmp_path, {"acme/model.py": "import acme.parts", "acme/parts.py": "", "acme/words.txt": "a", "other/words.txt": "b"})
    files = code(tmp_path, "acme.model", MODEL_PATH=str(tmp_path)).files
    assert set(files) == {"acme/model.py", "acme/parts.py", "acme/words.txt"}
