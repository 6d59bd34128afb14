"""The environment variables: their declarations (`training.installation.Variable`), with the modules that use each."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tools.reference.markdown import NOTICE, code, table
from training import installation
from training.installation import SetBy, Variable

SOURCES: Final = ("dags", "devstack", "plugins", "training")
CLASSES: Final = ("Variable", "WholeNumber", "Seconds")
SHARED: Final = "training/installation.py"
NAME: Final = re.compile(r"NIGHTSHIFT_[A-Z_]*[A-Z]")
HEADS: Final[Mapping[SetBy, str]] = {
    "user": "All of them are optional. An empty variable counts as not set. Paths are absolute.\n"
    "Docker compose reads further variables from `.env`; its template .env.example explains them.\n",
    "others": "\n## Of torchrun, Kubernetes and libraries\nNightshift reads them too, or leaves them to the library that does.\n",
    "Nightshift": "\n## Set by Nightshift itself\nA value of your own is overwritten.\n",
}


def page(root: Path) -> str:
    """Return the page.

    Raises:
        ValueError: a variable is declared twice, or with a value that is not a literal; or a file names a variable of Nightshift's that is
            declared nowhere.
    """
    trees = {
        path.relative_to(root).as_posix(): ast.parse(path.read_bytes())
        for folder in SOURCES
        for path in sorted((root / folder).rglob("*.py"))
    }
    declared = {place: variable for file, tree in trees.items() for place, variable in _declared(file, tree).items()}
    variables = {variable.name: variable for variable in declared.values()}
    for name in variables:
        places = [".".join(place) for place, variable in declared.items() if variable.name == name]
        if len(places) > 1:
            raise ValueError(f"{name} is declared in {' and in '.join(places)}")
    used: dict[str, set[str]] = {name: set() for name in variables}
    for file, tree in trees.items():
        for name in _used(file, tree, declared, variables):
            used[name].add(file)
    parts = [f"# Environment variables\n{NOTICE}\n"]
    for set_by, head in HEADS.items():
        # What is declared for several modules comes first, and is read by those, not where it is declared.
        rows = [
            (code(name), each.kind, each.default, each.meaning, "<br>".join(map(code, sorted(used[name] - {SHARED} or used[name]))))
            for (file, _), each in sorted(declared.items(), key=lambda item: item[0][0] != _module(SHARED))
            for name in [each.name]
            if each.set_by == set_by
        ]
        parts.append(f"{head}\n" + table(("variable", "type", "default", "meaning", "used in"), rows))
    return "".join(parts)


def _declared(file: str, tree: ast.Module) -> dict[tuple[str, str], Variable]:
    """Return (module, object) to each declaration at the top of a file."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in CLASSES:
            constant = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            try:
                given = {str(word.arg): ast.literal_eval(word.value) for word in node.value.keywords}
            except ValueError as err:
                raise ValueError(f"{file}: a value of {constant} is not a literal") from err
            found[_module(file), constant] = getattr(installation, ast.unparse(node.value.func))(**given)
    return found


def _used(file: str, tree: ast.Module, declared: Mapping[tuple[str, str], Variable], variables: Mapping[str, Variable]) -> set[str]:
    """Return the variables that a file reads by their declarations, or sets by their names."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {declared[place].name for alias in node.names if (place := (node.module or "", alias.name)) in declared}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and (node.value in variables or NAME.fullmatch(node.value)):
            if node.value not in variables:
                raise ValueError(f"{file} names {node.value}, which no Variable declares")
            found.add(node.value)
    return found


def _module(file: str) -> str:
    return file.removeprefix("plugins/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
