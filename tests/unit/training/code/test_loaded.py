"""A process commits its work only if it used the files that the work is named after, as they were, and no others."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.unit.training.code.test_closure import write
from training.runtime.provenance import CHECKOUT

FILES = {
    "acme/__init__.py": "",
    "acme/model.py": "import acme.early\ndef fit():\n    import acme.late\n    return 'words.txt'\n",
    "acme/early.py": "",
    "acme/late.py": "",
    "acme/words.txt": "a b c",
    "acme/plugins/__init__.py": "",
    "acme/plugins/one.py": "",
}


def run(folder: Path, steps: str) -> str:
    """Run steps in a process that has imported `acme.model`, with `code` of it; return `done` or the error's code and text."""
    program = f"""
    import importlib, pathlib, sys
    folder = pathlib.Path({str(folder)!r})
    from training.code.closure import closure
    from training.code.loaded import LoadedCode
    from training.errors import SpecError
    files = closure(["acme.model", "training.code.loaded"]).files
    import acme.model
    try:
        {steps}
    except SpecError as err:
        print(err)
    else:
        print("done")
    """
    environment = {"PYTHONPATH": f"{CHECKOUT}:{folder}", "NIGHTSHIFT_MODEL_PATH": str(folder), "NIGHTSHIFT_MODEL_PACKAGES": "acme"}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, FILES)
    return tmp_path


def test_work_with_its_own_code_may_be_committed(folder: Path) -> None:
    assert run(folder, "code = LoadedCode(files); acme.model.fit(); code.check()") == "done"


def test_a_module_that_was_imported_by_a_computed_name_is_refused_with_the_remedy(folder: Path) -> None:
    answer = run(folder, "code = LoadedCode(files); importlib.import_module('acme.plugins.' + 'one'); code.check()")
    assert "[code.outside] the stage imported what its name does not cover: acme/plugins/__init__.py, acme/plugins/one.py" in answer
    assert "write the import as a statement" in answer


def test_a_file_that_differs_at_the_start_is_refused(folder: Path) -> None:
    answer = run(folder, "(folder / 'acme/words.txt').write_text('d'); LoadedCode(files)")
    assert "[code.mismatch] this process has other code than its work is named after: acme/words.txt" in answer
    assert "acme/late.py" in run(folder, "(folder / 'acme/late.py').unlink(); LoadedCode(files)")


def test_a_package_that_this_process_does_not_find_is_refused_with_the_way_to_install_it(folder: Path) -> None:
    answer = run(folder, "LoadedCode({**files, 'acme_source.py': 'f' * 64})")
    assert "[code.mismatch]" in answer
    assert "install acme_source.py where stages run, or set NIGHTSHIFT_MODEL_PATH to its folder" in answer


@pytest.mark.parametrize("name", ["acme/late.py", "acme/words.txt"])
def test_an_edit_of_what_is_read_later_is_refused_at_the_end(folder: Path, name: str) -> None:
    answer = run(folder, f"code = LoadedCode(files); (folder / '{name}').write_text('x = 1'); acme.model.fit(); code.check()")
    assert f"[code.changed] edited while the stage ran: {name}" in answer


def test_an_edit_of_what_was_loaded_at_the_start_spoils_nothing(folder: Path) -> None:
    assert run(folder, "code = LoadedCode(files); (folder / 'acme/early.py').write_text('x = 1'); code.check()") == "done"


def test_without_files_an_image_stands_for_everything(folder: Path) -> None:
    assert run(folder, "code = LoadedCode({}); importlib.import_module('acme.plugins.one'); code.check()") == "done"


def test_a_package_of_the_same_name_that_comes_first_is_refused_with_its_path(folder: Path) -> None:
    write(folder / "first", FILES | {"acme/late.py": "x = 2"})
    steps = f"acme.__path__.insert(0, {str(folder / 'first/acme')!r}); code = LoadedCode(files); acme.model.fit(); code.check()"
    answer = run(folder, steps)
    assert f"[code.mismatch] this process imported other files than its work is named after: {folder}/first/acme/late.py" in answer


def test_a_folder_of_files_with_the_name_of_a_library_is_no_code(folder: Path) -> None:
    write(folder, {"yaml/notes.txt": "", "acme/model.py": "import yaml"})
    assert run(folder, "code = LoadedCode(files); code.check(); assert 'site-packages' in sys.modules['yaml'].__file__") == "done"


IMPORTS_MEANWHILE = """
        import gc, types
        def another_thread(phase, info):
            gc.callbacks.clear()
            sys.modules["library.part"] = types.ModuleType("part")
        code = LoadedCode(files)
        gc.collect()
        gc.callbacks.append(another_thread)
        gc.set_threshold(100)
        code.check()
"""


def test_a_library_that_imports_while_the_modules_are_looked_at_is_no_error(folder: Path) -> None:
    assert run(folder, IMPORTS_MEANWHILE.strip()) == "done"
