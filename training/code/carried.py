"""Which modules a model's class needs, read from their text without importing them, and what of them a registered model cannot carry.

A registered model carries the modules that its class imports, of `training` and of users' packages (`Sources`); all else has to be in the
standard library or in an installed distribution. Of `training`, what functions import serves training alone and is not carried; of users'
modules it is.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from training.code.closure import Module, Sources, walk
from training.code.imports import ImportsCache, Statement
from training.errors import Problem, SpecError
from training.spec.descriptors.families import FAMILIES, is_allowed, place_of

NOT_ISOLATED: Final = "model.not_isolated"
IMPORTERS: Final = ("import_module", "__import__")
TOP_LEVEL: Final = re.compile(r"^(\w+)(?:/|\.py,|\.[^/,]*so,)", re.MULTILINE)
"""The module that a line of a distribution's list of files is of."""
READERS: Final = {"importlib.resources", "pkgutil"}
"""Modules that read files next to a package's code."""


@dataclass(kw_only=True)
class Carried:
    """Everything that was found from a model's class."""

    sources: Sources = field(default_factory=Sources)
    modules: list[Module] = field(default_factory=list)
    libraries: set[str] = field(default_factory=set)
    """Top-level names of installed modules that are imported."""
    problems: list[Problem] = field(default_factory=list)


def own_class_problems(model: str) -> list[Problem]:
    """Return why models of a class `package.module:Class`, or of an installed family, could not be registered; nothing for others."""
    if model in FAMILIES.built_in or not is_allowed(model):
        return []
    return carried_by([place_of(model).partition(":")[0]]).problems


def check_own_class(model: str) -> None:
    """Refuse a class of which no model could be registered.

    Raises:
        SpecError: `model.not_isolated`, with every import that cannot be carried.
    """
    problems = own_class_problems(model)
    if problems:
        raise SpecError("train.model", problems)


def carried_by(names: list[str]) -> Carried:
    """Return the modules of these names and all that they need, with what cannot be carried. A name that is not found needs nothing."""
    carried = Carried()
    for module in walk(names, carried.sources, ImportsCache(), _needs):
        if module.path.suffix != ".py":
            message, hint = (
                f"{module.path} is compiled code, which a registered model does not carry",
                "install it as a distribution from a package index",
            )
            carried.problems.append(_not_isolated(message, hint))
            continue
        if module.fault is not None:
            line = getattr(module.fault, "lineno", None)
            message = f"{module.path}{f':{line}' if line else ''} is not valid Python: {module.fault.args[0]}"
            carried.problems.append(_not_isolated(message, "correct it"))
            continue
        carried.modules.append(module)
        for statement in _followed(module):
            _add_libraries(carried, module, statement)
        if module.is_own:
            carried.problems += _unsupported(module)
    carried.problems.sort(key=lambda problem: problem.message)
    return carried


def _followed(module: Module) -> list[Statement]:
    return [statement for statement in module.imports.statements if module.is_own or not statement.is_late]


def _needs(module: Module) -> Iterator[str]:
    for statement in _followed(module):
        yield from module.named_by(statement)


def _add_libraries(carried: Carried, module: Module, statement: Statement) -> None:
    """Note what an import needs besides modules that are carried."""
    named = module.named_by(statement)
    top = named[0].partition(".")[0]
    if module.is_own and READERS.intersection(named):
        carried.problems.append(_reads_files(module, statement.line))
    if carried.sources.folder_of(top) is not None or top in sys.stdlib_module_names:
        return
    if statement.is_optional and importlib.util.find_spec(top) is None:
        return
    carried.libraries.add(top)
    if module.is_own and all(_is_folder(name) for name in distributions_with(top)):
        message = f"{module.path}:{statement.line} imports {named[0]}, which a registered model does not carry"
        hint = f"add {top} to NIGHTSHIFT_MODEL_PACKAGES, or install it as a distribution from a package index"
        carried.problems.append(_not_isolated(message, hint))


def _unsupported(module: Module) -> Iterator[Problem]:
    """Yield what a carried module does that works under its own name alone."""
    for node in ast.walk(ast.parse(module.path.read_bytes())):
        if isinstance(node, ast.Name) and node.id == "__file__":
            yield _reads_files(module, node.lineno)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in IMPORTERS:
            message = f"{module.path}:{node.lineno} imports a module by a name that is computed, which a registered model cannot carry"
            yield _not_isolated(message, "write an import statement")


def _reads_files(module: Module, line: int) -> Problem:
    message = f"{module.path}:{line} reads files next to its code, which a registered model does not carry"
    return _not_isolated(message, "return the values in the `architecture` of FitResult, or write them into the module")


def _not_isolated(message: str, hint: str) -> Problem:
    return Problem(code=NOT_ISOLATED, message=message, hint=hint, field="train.model")


def distributions_with(top: str) -> list[str]:
    """Return the names of the installed distributions that have a top-level module, sorted.

    `importlib.metadata.packages_distributions` says the same; it takes 0.5 s, as it looks for each installed file on disk.
    """
    return sorted({distribution.name for distribution in _by_module().get(top, ())})


@functools.cache
def _by_module() -> dict[str, list[importlib.metadata.Distribution]]:
    found: dict[str, list[importlib.metadata.Distribution]] = {}
    for distribution in importlib.metadata.distributions():
        declared = (distribution.read_text("top_level.txt") or "").split()
        for top in set(declared or TOP_LEVEL.findall(distribution.read_text("RECORD") or "")):
            found.setdefault(top, []).append(distribution)
    return found


def _is_folder(distribution: str) -> bool:
    """Return whether it is installed from a folder, as `pip install --editable` does: no other machine can install it by its name."""
    text = importlib.metadata.distribution(distribution).read_text("direct_url.json")
    return text is not None and "dir_info" in json.loads(text)
