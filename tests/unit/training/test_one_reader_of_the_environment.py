"""Environment variables are read by their declarations alone (training/installation.py): a test of the syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.reference.environment import page
from training.runtime.provenance import CHECKOUT

READER = "training/installation.py"
FOLDERS = ("training", "plugins", "devstack", "dags")
EXCEPTIONS = {
    ("training/spec/uris.py", "environ.get(name, '')"): "the name is that of a placeholder in a YAML",
    ("training/spec/uris.py", "os.environ.get(name, '')"): "as above",
    ("plugins/nightshift/source_uris.py", "environ.get(name, '')"): "the name is noted, or one of NIGHTSHIFT_PLACES",
    ("plugins/nightshift/airflow_ext/alerts.py", "os.environ.get(name, '')"): "the name is that of a placeholder in a YAML",
    ("training/engine/tracking/mlflow_delivery.py", "name not in os.environ"): "sets MLflow's variables for a block, but not the user's",
    ("training/engine/tracking/mlflow_delivery.py", "os.environ.pop(name, None)"): "as above",
    ("training/runtime/template.py", "os.environ.get('PYTHONPATH', '')"): "Python's own",
    ("devstack/sources_file.py", "os.environ.get(name, before.get(name, ''))"): "the names are those of webhooks in YAML files",
    ("devstack/environment.py", "os.environ.get(name)"): "compares all that a shell has with all that it needs",
}
"""(File, expression) to the reason why it reads a variable that has no declaration."""


def reads(tree: ast.AST) -> Iterator[str]:
    """Yield each expression that reads one variable of an environment: `os.environ`, or a name that ends in `environ`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.endswith("getenv") or (name.endswith(("environ.get", "environ.pop")) and node.args):
                yield ast.unparse(node)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and ast.unparse(node.value).endswith("environ"):
            yield ast.unparse(node)
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            if ast.unparse(node.comparators[0]).endswith("environ"):
                yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and node.module == "os" and {alias.name for alias in node.names} & {"environ", "getenv"}:
            yield ast.unparse(node)


def found() -> set[tuple[str, str]]:
    files = [path for folder in FOLDERS for path in sorted((CHECKOUT / folder).rglob("*.py"))]
    named = ((path.relative_to(CHECKOUT).as_posix(), path) for path in files)
    return {(name, text) for name, path in named if name != READER for text in reads(ast.parse(path.read_bytes()))}


def test_each_variable_is_read_by_its_declaration() -> None:
    undeclared = found() - EXCEPTIONS.keys()
    assert undeclared == set(), "declare a Variable in training/installation.py, or in the module that reads it"


def test_each_exception_is_still_needed() -> None:
    assert EXCEPTIONS.keys() - found() == set()


@pytest.mark.parametrize(
    "code",
    [
        "os.environ.get('A', '')",
        "os.environ['A']",
        "'A' in os.environ",
        "'A' not in environ",
        "os.getenv('A')",
        "self._environ.get(NAME)",
        "from os import environ",
    ],
)
def test_each_way_to_read_a_variable_is_seen(code: str) -> None:
    assert list(reads(ast.parse(code)))


@pytest.mark.parametrize("code", ["os.environ['A'] = 'b'", "os.environ.setdefault('A', 'b')", "dict(os.environ)", "HOME.text(environ)"])
def test_what_sets_or_passes_on_variables_is_allowed(code: str) -> None:
    assert not list(reads(ast.parse(code)))


def test_each_declaration_is_used_where_it_is_not_declared_for_several() -> None:
    rows = [line for line in page(CHECKOUT).splitlines() if line.startswith("| `")]
    assert len(rows) > 50
    assert [row for row in rows if row.endswith(f"| `{READER}` |")] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A = Variable(name='X_A', meaning='a')\nB = Variable(name='X_A', meaning='b')\n", "X_A is declared in"),
        ("A = Variable(name='X_A', meaning=f'{1}')\n", "a value of A is not a literal"),
        ("print('NIGHTSHIFT_NEW')\n", "NIGHTSHIFT_NEW, which no Variable declares"),
    ],
)
def test_a_wrong_declaration_is_refused_by_the_reference(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "module.py").write_text(text)
    with pytest.raises(ValueError, match=message):
        page(tmp_path)
