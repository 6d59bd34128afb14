"""The code that a registered model carries, under a package name that contains its digest, with relative imports inside.

So models with different code load in one process, with any or no installed `training` package, and a model of trees imports no torch.
"""

from __future__ import annotations

import ast
import importlib.metadata
import io
import re
import tokenize
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from training.code.carried import carried_by, distributions_with
from training.code.closure import OURS, Sources
from training.contracts import canonical_json, sha256_hex
from training.errors import SpecError
from training.spec.descriptors.families import place_of

PREFIX: Final = "nightshift_model_"
NAME_DIGITS: Final = 16
SCORING: Final = "training.registry.model.scoring"
_ENCODING: Final = re.compile(r"^([ \t\f]*#.*?coding)[:=][ \t]*[-\w.]+", re.ASCII | re.MULTILINE)
ENTRY: Final = '''"""A registered model's code, as it was when the model was registered: its class, and what it takes to score with it."""

from .training.registry.model.scoring import load_checked
from .{module} import {name} as family


def _load_pyfunc(path):
    """Return the predictor of the model's data in the folder `path`. MLflow calls it by name."""
    return load_checked(path, family() if isinstance(family, type) else family, requirements={requirements})
'''


class ModelCode(NamedTuple):
    """What a model carries."""

    name: str
    """Of the package: MLflow's `loader_module`."""
    files: Mapping[str, str]
    """Name below the package to text."""
    requirements: list[str]
    """Distributions that it imports, pinned to the versions here."""


def model_code(family: str, more: Collection[str] = ()) -> ModelCode:
    """Return the code that models of a family (`boosted_trees`, or `package.module:Class`) carry.

    Args:
        more: requirements of one model (`training.models.base.FitResult`).

    Raises:
        SpecError: `model.not_isolated`, a user's class imports what cannot be carried; `model.unknown`.
    """
    module, _, name = place_of(family).partition(":")
    carried = carried_by([module, SCORING])
    if carried.problems:
        raise SpecError("train.model", carried.problems)
    found = {distribution for top in carried.libraries for distribution in distributions_with(top)}
    pinned = (f"{distribution}=={importlib.metadata.version(distribution).split('+')[0]}" for distribution in found)
    requirements = sorted({*pinned, *more})
    files = {"__init__.py": ENTRY.format(module=module, name=name, requirements=requirements)}
    files |= {found.file: _text_of(found.path, found.package, carried.sources) for found in carried.modules}
    # It checks the interpreter of the installation's commands.
    files[f"{OURS}/__init__.py"] = '"""The part of Nightshift that scores."""\n'
    digest = sha256_hex(canonical_json(files))
    return ModelCode(f"{PREFIX}{digest[:NAME_DIGITS]}", files, requirements)


def write_code(code: ModelCode, folder: Path) -> Path:
    """Write the package into `folder` as one zip archive, which Python imports from where it is on `sys.path`; return its path.

    Its name contains the code's digest, as that of the package: Python keeps what it has read of an archive by its path.
    """
    path = folder / f"{code.name}.zip"
    # A package without `__init__.py` is found by its folder's entry.
    folders = {f"{parent}/" for name in code.files for parent in PurePosixPath(code.name, name).parents if parent.name}
    files = {f"{code.name}/{name}": text for name, text in code.files.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in sorted({**dict.fromkeys(folders, ""), **files}.items()):
            # An entry without a time: equal code gives equal bytes.
            archive.writestr(zipfile.ZipInfo(name), text.encode(), zipfile.ZIP_DEFLATED)
    return path


def _text_of(path: Path, package: str, sources: Sources) -> str:
    """Return a module's text with relative imports of what is carried; `package` is what its relative imports begin at."""
    data = _source(path)
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    nodes = [node for node in ast.walk(ast.parse(data)) if isinstance(node, ast.Import | ast.ImportFrom)]
    # From the end, so that the positions of what comes before stay right.
    for node in sorted(nodes, key=lambda node: (-node.lineno, -node.col_offset)):
        text = _relative(node, "." * (package.count(".") + 2 if package else 1), sources)
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


def _relative(node: ast.Import | ast.ImportFrom, dots: str, sources: Sources) -> str | None:
    """Return an import statement with the carried packages named from `dots`, None where it names none, or does so already."""
    if isinstance(node, ast.ImportFrom):
        if node.level or sources.folder_of((node.module or "").partition(".")[0]) is None:
            return None
        return ast.unparse(ast.ImportFrom(module=f"{dots}{node.module}", names=node.names, level=0))
    parts = [_import(alias, dots, sources) for alias in node.names]
    return "; ".join(parts) if any(part.startswith("from ") for part in parts) else None


def _import(alias: ast.alias, dots: str, sources: Sources) -> str:
    top, _, rest = alias.name.partition(".")
    if sources.folder_of(top) is None:
        return ast.unparse(ast.Import(names=[alias]))
    parent, _, last = alias.name.rpartition(".")
    if alias.asname:
        return f"from {dots}{parent} import {last} as {alias.asname}"
    # `import a.b` binds `a`, and imports `a.b` besides.
    also = f"; from {dots}{parent} import {last} as _{alias.name.replace('.', '_')}" if rest else ""
    return f"from {dots} import {top}{also}"
