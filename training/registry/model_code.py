"""The code that a registered model carries, under a package name that contains its digest, with relative imports inside.

So models with different code load in one process, with any or no installed `training` package, and a model of trees imports no torch.
"""

from __future__ import annotations

import ast
import importlib.metadata
import io
import re
import tokenize
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from training.contracts import canonical_json, sha256_hex
from training.errors import SpecError
from training.spec.carried_code import TRAINING, Closure, Module, absolute, carried_roots, closure_of, distributions
from training.spec.families import place_of

PREFIX: Final = "nightshift_model_"
NAME_DIGITS: Final = 16
SCORING: Final = "training.registry.scoring"
_ENCODING: Final = re.compile(r"^([ \t\f]*#.*?coding)[:=][ \t]*[-\w.]+", re.ASCII | re.MULTILINE)
ENTRY: Final = '''"""A registered model's code, as it was when the model was registered: its class, and what it takes to score with it."""

from .training.registry.scoring import load_checked
from .{module} import {name} as family


def _load_pyfunc(path):
    """Return the predictor of the model's data in the folder `path`. MLflow calls it by name."""
    return load_checked(path, family() if isinstance(family, type) else family)
'''


class ModelCode(NamedTuple):
    """What a model carries."""

    name: str
    """Of the package: MLflow's `loader_module`."""
    files: Mapping[str, str]
    """Name below the package to text."""
    requirements: list[str]
    """Distributions that it imports, pinned to the versions here."""


def model_code(family: str) -> ModelCode:
    """Return the code that models of a family (`boosted_trees`, or `package.module:Class`) carry.

    Raises:
        SpecError: `model.not_isolated`, a user's class imports what cannot be carried; `model.unknown`.
    """
    module, name = place_of(family)
    closure = closure_of([module, SCORING])
    if closure.problems:
        raise SpecError("train.model", closure.problems)
    files = {"__init__.py": ENTRY.format(module=module, name=name)}
    files |= {_file_of(found): _text_of(found) for found in closure.modules.values()}
    digest = sha256_hex(canonical_json(files))
    return ModelCode(f"{PREFIX}{digest[:NAME_DIGITS]}", files, _requirements(closure))


def write_code(code: ModelCode, folder: Path) -> Path:
    """Write the package below `folder`; return its folder."""
    for name, text in code.files.items():
        path = folder / code.name / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / code.name


def _file_of(module: Module) -> str:
    path = module.name.replace(".", "/")
    return f"{path}/__init__.py" if module.is_package else f"{path}.py"


def _text_of(module: Module) -> str:
    """Return a module's text with relative imports of what is carried."""
    if module.name == TRAINING:
        # It checks the interpreter of the installation's commands.
        return '"""The part of Nightshift that scores."""\n'
    data = _source(module.path)
    lines = data.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    # From the end, so that the positions of what comes before stay right.
    for found in sorted(module.imports, key=lambda found: (-found.node.lineno, -found.node.col_offset)):
        node = found.node
        if found.is_in_function and not module.is_own:
            continue
        text = _relative(module, node)
        if text is not None:
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
            data = data[:start] + text.encode() + data[end:]
    return data.decode("utf-8")


def _source(path: Path) -> bytes:
    """Return a file in UTF-8, as the positions of its syntax tree count: no mark of byte order, and no other encoding's name."""
    data = path.read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    text = io.TextIOWrapper(io.BytesIO(data), encoding).read()
    if encoding not in ("utf-8", "utf-8-sig"):
        text = _ENCODING.sub(r"\1", text, count=1)
    return text.encode("utf-8")


def _relative(module: Module, node: ast.Import | ast.ImportFrom) -> str | None:
    """Return an import statement with the carried packages named relatively, None where it names none, or does so already."""
    roots, dots = carried_roots(), "." * (len(module.package.split(".")) + 1 if module.package else 1)
    if isinstance(node, ast.ImportFrom):
        if node.level or absolute(module, node).partition(".")[0] not in roots:
            return None
        return ast.unparse(ast.ImportFrom(module=f"{dots}{node.module}", names=node.names, level=0))
    if not any(alias.name.partition(".")[0] in roots for alias in node.names):
        return None
    return "; ".join(part for alias in node.names for part in _import(alias, dots, roots))


def _import(alias: ast.alias, dots: str, roots: frozenset[str]) -> list[str]:
    top, _, rest = alias.name.partition(".")
    if top not in roots:
        return [f"import {alias.name} as {alias.asname}" if alias.asname else f"import {alias.name}"]
    parent, _, last = alias.name.rpartition(".")
    if alias.asname:
        return [f"from {dots}{parent} import {last} as {alias.asname}"]
    # `import a.b` binds `a`, and imports `a.b` besides.
    named = [f"from {dots} import {top}"]
    return [*named, f"from {dots}{parent} import {last} as _{alias.name.replace('.', '_')}"] if rest else named


def _requirements(closure: Closure) -> list[str]:
    found = {name for top in closure.libraries for name in distributions().get(top, ())}
    return sorted(f"{name}=={importlib.metadata.version(name).split('+')[0]}" for name in found)
