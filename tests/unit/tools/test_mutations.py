"""The mutation test's own parts: which mutations a source has, and that a fork sees one and the checkout none."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import mutants
from tools.mutants import KILLED, SURVIVED, TIMEOUT, Mutant, is_known, run_tests
from tools.mutations import mutations_of
from training.runtime.provenance import CHECKOUT


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", {"x = a <= b", "x = a >= b"}),
        ("x = (a) == (b)", {"x = (a) != (b)"}),
        ("x = a is not b", {"x = a is b"}),
        ("x = a + b * c", {"x = a - b * c", "x = a + b / c"}),
        ("x = a and b or c", {"x = a or b or c", "x = a and b and c"}),
        ("x = not a", {"x = a"}),
        ("x = -a", {"x = a"}),
        ("x = 3", {"x = 4"}),
        ("x = 0.0", {"x = 1.0"}),
        ("x = True", {"x = False"}),
        ("x = max(a, b)", {"x = min(a, b)"}),
        ("x = a if b else c", {"x = a if not (b) else c"}),
        ("if a:\n    b()", {"if not (a):\n    b()", "if a:\n    pass"}),
        ("while a:\n    break", {"while not (a):\n    break", "while a:\n    continue"}),
        ("a.b = c", {"pass"}),
        ("a += b", {"pass"}),
        ("def f():\n    return a", {"def f():\n    return None"}),
        ("def f():\n    raise a", {"def f():\n    pass"}),
        ("ä = 'ü' if a in b else 'ö'", {"ä = 'ü' if a not in b else 'ö'"}),
        ("x = ('a' + b, f'{c + 1}')", set()),
        ("'a text'\nlogger.info('%d', 1)\nx: int", set()),
        ("def f(a: 'int | None') -> 'int | None':\n    return", set()),
    ],
)
def test_mutations_of_a_source_are_those_of_its_operators_numbers_and_statements(source: str, expected: set[str]) -> None:
    assert {mutation.apply(source.encode()).decode() for mutation in mutations_of(source.encode())} == expected


@pytest.mark.slow
@pytest.mark.parametrize("file", list(mutants.TESTS))
def test_every_mutant_is_a_source_that_can_be_read_on_the_line_that_it_names(file: str) -> None:
    source = (CHECKOUT / file).read_bytes()
    found = mutations_of(source)
    assert found
    for mutation in found:
        ast.parse(mutation.apply(source))
        assert mutation.line - 1 == source[: mutation.start].count(b"\n"), mutation.diff(source)


@pytest.mark.parametrize("file", list(mutants.TESTS))
def test_tests_that_concern_a_file_exist(file: str) -> None:
    assert [test for test in mutants.TESTS[file] if not (CHECKOUT / test).is_file()] == []


def test_only_survivors_run_again_when_their_tests_change() -> None:
    assert not is_known(None, "now")
    assert is_known({"outcome": KILLED, "tests": "before"}, "now")
    assert not is_known({"outcome": SURVIVED, "tests": "before"}, "now")
    assert is_known({"outcome": SURVIVED, "tests": "now"}, "now")


def test_mutants_of_a_file_differ_in_their_keys() -> None:
    source = (CHECKOUT / "training/engine/divergence.py").read_bytes()
    keys = {Mutant("training/engine/divergence.py", source, mutation).key for mutation in mutations_of(source)}
    assert len(keys) == len(mutations_of(source))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "outcome", "limit_seconds"),
    [("LIMIT = 3\n", SURVIVED, 60), ("LIMIT = 4\n", KILLED, 60), ("while True: pass\n", TIMEOUT, 1)],
)
def test_tests_in_a_fork_see_the_mutant_and_the_checkout_keeps_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, outcome: str, limit_seconds: int
) -> None:
    (tmp_path / "limited.py").write_text("LIMIT = 3\n", encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (tmp_path / "test_limited.py").write_text("def test_limit():\n    import limited\n    assert limited.LIMIT == 3\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setitem(mutants.TESTS, "limited.py", (f"{tmp_path}/test_limited.py",))

    assert run_tests("limited.py", source.encode(), limit_seconds=limit_seconds)[0] == outcome

    assert (tmp_path / "limited.py").read_text(encoding="utf-8") == "LIMIT = 3\n"
