"""The environment variables: their declarations (`training.installation.Variable`), with the modules that use each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.reference.markdown import code, notice, table
from training.installation import Kind, SetBy

SOURCES: Final = ("training", "plugins", "devstack", "dags")
CLASSES: Final = frozenset({"Variable", "WholeNumber", "Seconds"})
KINDS: Final = {"WholeNumber": "whole number", "Seconds": "seconds"}
SHARED: Final = "training/installation.py"
NAME: Final = re.compile(r"NIGHTSHIFT_[A-Z_]*[A-Z]")
HEADS: Final[dict[SetBy, str]] = {
    "user": "All of them are optional. An empty variable counts as not set. Paths are absolute.\n"
    "Docker compose reads further variables from `.env`; its template .env.example explains them.\n",
    "others": "\n## Of torchrun, Kubernetes and libraries\nNightshift reads them too, or leaves them to the library that does.\n",
    "Nightshift": "\n## Set by Nightshift itself\nA value of your own is overwritten.\n",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """One declaration."""

    constant: str
    """Name of the object that reads it."""
    file: str
    name: str
    meaning: str
    kind: Kind
    default: str
    set_by: SetBy


def declarations(root: Path) -> list[Declared]:
    """Return every declaration at the top of a module, in the order of the files, training/installation.py first.

    Raises:
        ValueError: a variable is declared twice, or with a value that is not a literal.
    """
    found: dict[str, Declared] = {}
    files = sorted(_files(root), key=lambda file: (file[0] != SHARED, file[0]))
    for file, tree in files:
        for constant, call in _declared_in(tree):
            try:
                given = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
            except ValueError as err:
                raise ValueError(f"{file}: a value of {constant} is not a literal") from err
            kind = given.get("kind", KINDS.get(ast.unparse(call.func), "text"))
            facts = {"default": "none", "set_by": "user", **given, "kind": kind}
            values = {key: facts[key] for key in ("name", "meaning", "kind", "default", "set_by")}
            declared = Declared(constant=constant, file=file, **values)
            if declared.name in found:
                raise ValueError(f"{declared.name} is declared in {found[declared.name].file} and in {file}")
            found[declared.name] = declared
    return list(found.values())


def users(root: Path, declared: list[Declared]) -> dict[str, list[str]]:
    """Return variable to the files that read it by its declaration, or set it by its name.

    Raises:
        ValueError: a file names a variable of Nightshift's that is declared nowhere.
    """
    by_place = {(_module(each.file), each.constant): each.name for each in declared}
    names = {each.name for each in declared}
    found: dict[str, set[str]] = {each.name: set() for each in declared}
    for file, tree in _files(root):
        for node in ast.walk(tree):
            used = set()
            if isinstance(node, ast.ImportFrom):
                used = {name for alias in node.names if (name := by_place.get((node.module or "", alias.name))) is not None}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and (node.value in names or NAME.fullmatch(node.value)):
                if node.value not in names:
                    raise ValueError(f"{file} names {node.value}, which no Variable declares")
                used = {node.value}
            for name in used:
                found[name].add(file)
    # What is declared for several modules is read by those, not where it is declared.
    return {name: sorted(files - {SHARED} or files) for name, files in found.items()}


def page(root: Path) -> str:
    """Return the page.

    Raises:
        ValueError: of `declarations` and `users`.
    """
    declared = declarations(root)
    used = users(root, declared)
    parts = [f"# Environment variables\n{notice()}\n"]
    for set_by, head in HEADS.items():
        rows = [
            (code(each.name), each.kind, each.default, each.meaning, "<br>".join(map(code, used[each.name])))
            for each in declared
            if each.set_by == set_by
        ]
        parts.append(f"{head}\n" + table(("variable", "type", "default", "meaning", "used in"), rows))
    return "".join(parts)


def _files(root: Path) -> Iterator[tuple[str, ast.Module]]:
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            yield path.relative_to(root).as_posix(), ast.parse(path.read_bytes())


def _declared_in(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for node in tree.body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets if isinstance(node, ast.Assign) else []
        value = node.value if isinstance(node, ast.AnnAssign | ast.Assign) else None
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in CLASSES:
            yield ast.unparse(targets[0]), value


def _module(file: str) -> str:
    return file.removeprefix("plugins/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
