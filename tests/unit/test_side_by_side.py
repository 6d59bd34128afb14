"""Files that share an installation stay on one worker, and the quick files fill the end of the run."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_runtest_setup
from tests.side_by_side import INSTALLATIONS, TESTS, in_order, scope_of


def wants_the_installation(path: Path) -> bool:
    """Return whether a test or fixture of the file asks for the shared installation."""
    functions = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)]
    asked = [node for node in functions if node.name.startswith("test_") or any("fixture" in ast.dump(one) for one in node.decorator_list)]
    return any(one.arg == "installation" and "'Installation'" in ast.dump(one) for node in asked for one in node.args.args)


def test_every_file_that_wants_the_installation_shares_one() -> None:
    folders = [TESTS / part / folder for part in ("", "rest") for folder in ("integration", "chaos")]
    files = {path.relative_to(TESTS).as_posix() for folder in folders for path in folder.glob("test_*.py")}
    assert {name for name in files if wants_the_installation(TESTS / name)} == {name for names in INSTALLATIONS for name in names}


def test_files_of_one_installation_are_one_scope_and_others_are_their_own() -> None:
    scopes = [{scope_of(TESTS / name) for name in names} for names in INSTALLATIONS]
    assert [len(found) for found in scopes] == [1, 1, 1]
    assert len(set.union(*scopes)) == 3
    alone = TESTS / "rest" / "integration" / "test_commands.py"
    assert scope_of(alone) == str(alone)


def test_installations_come_first_and_files_without_a_slow_test_last() -> None:
    def item(name: str, *marks: str) -> Any:
        found = {mark: getattr(pytest.mark, mark) for mark in marks}
        return SimpleNamespace(path=TESTS / name, get_closest_marker=found.get, name=name)

    quick, slow = item("unit/test_quick.py"), item("unit/test_slow.py", "slow")
    commands = item("rest/integration/test_commands.py", "integration", "slow")
    installations = [item(names[0], "integration", "slow") for names in INSTALLATIONS]
    assert in_order([quick, slow, commands, *reversed(installations)]) == [*installations, commands, slow, quick]


def test_a_test_that_would_start_after_the_given_time_is_skipped_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTS_START_UNTIL_EPOCH_S", "1")
    with pytest.raises(pytest.skip.Exception, match="no time left"):
        pytest_runtest_setup(SimpleNamespace(path=TESTS / "unit/test_quick.py"))  # type: ignore[arg-type]
