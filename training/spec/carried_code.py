"""Which modules a model's class needs, read from their text without importing them, and what of them a registered model cannot carry.

A registered model carries the modules that its class imports, of `training` and of the packages of `NIGHTSHIFT_MODEL_PACKAGES`; all else
has to be in the standard library or in an installed distribution. Of `training`, what functions import serves training alone and is not
carried; of users' modules it is.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Final

from training.errors import Problem, SpecError
from training.spec.families import built_in_families, is_allowed, own_packages, place_of

TRAINING: Final = "training"
TRAINING_FOLDER: Final = Path(__file__).resolve().parent.parent
NOT_ISOLATED: Final = "model.not_isolated"
IMPORTERS: Final = ("import_module", "__import__")
READERS: Final = ("importlib.resources", "pkgutil")
"""Modules that read files next to a package's code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """An import statement that runs when its module is imported, or a function of it is called."""

    node: ast.Import | ast.ImportFrom
    is_optional: bool
    """An exception handler catches that the module is missing."""
    is_in_function: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    """A module that a model carries."""

    name: str
    path: Path
    tree: ast.Module
    imports: tuple[Found, ...]

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def package(self) -> str:
        """What relative imports begin at."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def is_own(self) -> bool:
        """Whether it is a user's."""
        return self.name.partition(".")[0] != TRAINING


@dataclass(kw_only=True)
class Closure:
    """Everything that was found from a model's class."""

    modules: dict[str, Module] = field(default_factory=dict)
    libraries: set[str] = field(default_factory=set)
    """Top-level names of installed modules that are imported."""
    problems: list[Problem] = field(default_factory=list)


def own_class_problems(model: str) -> list[Problem]:
    """Return why models of a class `package.module:Class`, or of an installed family, could not be registered; nothing for others."""
    if model in built_in_families() or not is_allowed(model):
        return []
    module, _ = place_of(model)
    return [] if _path_of(module) is None else closure_of([module]).problems


def check_own_class(model: str) -> None:
    """Refuse a class of which no model could be registered.

    Raises:
        SpecError: `model.not_isolated`, with every import that cannot be carried.
    """
    problems = own_class_problems(model)
    if problems:
        raise SpecError("train.model", problems)


def closure_of(names: list[str]) -> Closure:
    """Return the modules of these names and all that they need, with what cannot be carried."""
    closure = Closure()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in closure.modules:
            continue
        module = _read(name, closure)
        if module is None:
            continue
        closure.modules[name] = module
        # To import a module is to import its packages first.
        if "." in name:
            waiting.append(name.rpartition(".")[0])
        if module.is_own:
            closure.problems += _unsupported(module)
        for found in module.imports:
            waiting += _needs(module, found, closure)
    closure.problems.sort(key=lambda problem: problem.message)
    return closure


def carried_roots() -> frozenset[str]:
    """Return the top-level packages whose modules a model carries."""
    return frozenset({TRAINING, *own_packages()})


def absolute(module: Module, node: ast.ImportFrom) -> str:
    """Return the name of the module that a `from` statement names."""
    if not node.level:
        return node.module or ""
    parts = module.package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def _needs(module: Module, found: Found, closure: Closure) -> Iterator[str]:
    """Yield the modules to carry that an import names."""
    if found.is_in_function and not module.is_own:
        return
    node = found.node
    named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [absolute(module, node)]
    for name in named:
        top = name.partition(".")[0]
        if top in carried_roots():
            yield name
            if isinstance(node, ast.ImportFrom):
                yield from (inner for alias in node.names if _path_of(inner := f"{name}.{alias.name}") is not None)
        elif name in READERS or (top == "importlib" and isinstance(node, ast.ImportFrom) and "resources" in {a.name for a in node.names}):
            if module.is_own:
                closure.problems.append(_reads_files(module, node.lineno))
        elif top not in sys.stdlib_module_names and (_spec_of(top) is not None or not found.is_optional):
            closure.libraries.add(top)
            if module.is_own and not _distributions(top):
                message = f"{module.path}:{node.lineno} imports {name}, which a registered model does not carry"
                hint = f"add {top} to NIGHTSHIFT_MODEL_PACKAGES, or install it as a distribution from a package index"
                closure.problems.append(Problem(code=NOT_ISOLATED, message=message, hint=hint, field="train.model"))


def _unsupported(module: Module) -> Iterator[Problem]:
    """Yield what a carried module does that works under its own name alone."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name) and node.id == "__file__":
            yield _reads_files(module, node.lineno)
        if isinstance(node, ast.Call) and _called(node) in IMPORTERS:
            message = f"{module.path}:{node.lineno} imports a module by a name that is computed, which a registered model cannot carry"
            yield Problem(code=NOT_ISOLATED, message=message, hint="write an import statement", field="train.model")


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""


def _reads_files(module: Module, line: int) -> Problem:
    message = f"{module.path}:{line} reads files next to its code, which a registered model does not carry"
    hint = "return the values in the `architecture` of FitResult, or write them into the module"
    return Problem(code=NOT_ISOLATED, message=message, hint=hint, field="train.model")


def _read(name: str, closure: Closure) -> Module | None:
    path = _path_of(name)
    if path is None:
        # A namespace package has no text; a module that is not found is reported by Python when the class is loaded.
        return None
    if path.suffix != ".py":
        message = f"{path} is compiled code, which a registered model does not carry"
        hint = "install it as a distribution from a package index"
        closure.problems.append(Problem(code=NOT_ISOLATED, message=message, hint=hint, field="train.model"))
        return None
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as err:
        line = getattr(err, "lineno", None)
        message = f"{path}{f':{line}' if line else ''} is not valid Python: {err.args[0]}"
        closure.problems.append(Problem(code=NOT_ISOLATED, message=message, hint="correct it", field="train.model"))
        return None
    return Module(name=name, path=path, tree=tree, imports=tuple(_imports(tree)))


def _imports(tree: ast.AST, *, is_optional: bool = False, is_in_function: bool = False) -> Iterator[Found]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield Found(node=node, is_optional=is_optional, is_in_function=is_in_function)
            continue
        inside = is_in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for part, may_fail in _parts(node):
            yield from _imports(part, is_optional=is_optional or may_fail, is_in_function=inside)


def _parts(node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Yield (what of a statement may run, whether a missing module is caught there)."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        yield ast.Module(node.orelse, []), False
    elif isinstance(node, ast.Try):
        caught = {"" if handler.type is None else ast.unparse(handler.type) for handler in node.handlers}
        yield (
            ast.Module(node.body, []),
            any(not name or "ImportError" in name or "NotFound" in name or "Exception" in name for name in caught),
        )
        for handler in node.handlers:
            yield handler, False
        yield ast.Module([*node.orelse, *node.finalbody], []), False
    else:
        yield node, False


def _path_of(name: str) -> Path | None:
    """Return the file of a module to carry, None where there is none, or it is a namespace package."""
    top, *rest = name.split(".")
    folders = _folders_of(top)
    if not folders:
        return _file_of(top)
    for folder in folders:
        path = folder.joinpath(*rest)
        if (path / "__init__.py").is_file():
            return path / "__init__.py"
        if rest and path.with_suffix(".py").is_file():
            return path.with_suffix(".py")
        compiled = sorted(path.parent.glob(f"{path.name}.*.so")) if rest else []
        if compiled:
            return compiled[0]
    return None


def _folders_of(top: str) -> list[Path]:
    if top == TRAINING:
        return [TRAINING_FOLDER]
    spec = _spec_of(top)
    return [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]


def _file_of(top: str) -> Path | None:
    spec = _spec_of(top)
    return None if spec is None or spec.origin is None else Path(spec.origin)


def _spec_of(top: str) -> ModuleSpec | None:
    """Return where a top-level module is, without importing it."""
    return importlib.util.find_spec(top)


def _distributions(top: str) -> list[str]:
    """Return the installed distributions that have a top-level module, but for those that are a folder of this machine."""
    return [name for name in distributions().get(top, ()) if not _is_folder(name)]


@functools.cache
def distributions() -> dict[str, list[str]]:
    """Return top-level module to the distributions that have it, sorted."""
    return {top: sorted(set(names)) for top, names in importlib.metadata.packages_distributions().items()}


def _is_folder(distribution: str) -> bool:
    """Return whether it is installed from a folder, as `pip install --editable` does: no other machine can install it by its name."""
    text = importlib.metadata.distribution(distribution).read_text("direct_url.json")
    return text is not None and "dir_info" in json.loads(text)
