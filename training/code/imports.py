"""What one Python file imports and which files it may read, from its syntax tree. Nothing is imported to find out."""

from __future__ import annotations

import ast
import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from training.contracts import canonical_json, sha256_hex

FORMAT_VERSION: Final = 2
"""Of the cache; one of another version is made again."""
_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)
_FILE: Final = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*\.\w+", re.ASCII)
MAX_STRING_CHARS: Final = 200
MAX_CACHED_FILES: Final = 2_000
"""Each edit adds an entry; with more, only those in use are kept."""


class Statement(NamedTuple):
    """An import statement of a file; one of `import a, b` for each of the two."""

    level: int
    """Of a relative import: its dots."""
    module: str
    names: list[str]
    """Those of a `from`."""
    line: int
    is_late: bool
    """It is in a function."""
    is_optional: bool
    """It is in a `try` that has handlers."""


@dataclass(frozen=True, slots=True)
class Imports:
    """What is written in one file."""

    statements: list[Statement]
    """In the order of the file, those in functions included."""
    strings: list[str]
    """Constants that may name a module (`training.evaluation.latency`, for `python -m`) or a file (`evaluation.css`)."""

    @classmethod
    def from_json(cls, values: list[Any]) -> Imports:
        return cls([Statement(*value) for value in values[0]], values[1])


def imports_of(source: bytes) -> Imports:
    """Return the imports of a file: each statement outside `if TYPE_CHECKING:`, whether or not it is ever reached.

    Raises:
        SyntaxError: it is not Python.
    """
    visitor = _Visitor()
    visitor.visit(ast.parse(source))
    return Imports(visitor.statements, sorted(visitor.strings))


class _Visitor(ast.NodeVisitor):
    def __init__(self) -> None:
        self.statements: list[Statement] = []
        self.strings: set[str] = set()
        self._is_late = self._is_optional = False

    def visit_Import(self, node: ast.Import) -> None:
        self.statements += [Statement(0, alias.name, [], node.lineno, self._is_late, self._is_optional) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        names = [alias.name for alias in node.names]
        self.statements.append(Statement(node.level, node.module or "", names, node.lineno, self._is_late, self._is_optional))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outer, self._is_late = self._is_late, True
        self.generic_visit(node)
        self._is_late = outer

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Try(self, node: ast.Try) -> None:
        outer, self._is_optional = self._is_optional, self._is_optional or bool(node.handlers)
        for child in node.body:
            self.visit(child)
        self._is_optional = outer
        for after in (*node.handlers, *node.orelse, *node.finalbody):
            self.visit(after)

    def visit_If(self, node: ast.If) -> None:
        name = node.test.attr if isinstance(node.test, ast.Attribute) else getattr(node.test, "id", "")
        for child in node.orelse if name == "TYPE_CHECKING" else ast.iter_child_nodes(node):
            self.visit(child)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, str) and len(value) <= MAX_STRING_CHARS and (_NAME.fullmatch(value) or _FILE.fullmatch(value)):
            self.strings.add(value)


class ImportsCache:
    """The imports of files by the SHA-256 of their content, kept in a file: parsing all of training/ takes 0.3 s of CPU, for each task."""

    def __init__(self, path: Path | None = None) -> None:
        """Read the cache; without a path, or where it cannot be read, it is empty.

        Where the file is not there, as on a root file system that is read-only, that in the temporary folder is read.
        """
        self._path = path
        self._known = {} if path is None else _read(path) or _read(_temporary(path.name))
        self._used: dict[str, list[Any]] = {}
        self._has_new = False

    def imports_of(self, source: bytes, digest: str) -> Imports:
        """Return the imports of a file with this content and SHA-256.

        Raises:
            SyntaxError: it is not Python.
        """
        values = self._known.get(digest)
        if values is None:
            found = imports_of(source)
            values = [found.statements, found.strings]
            self._known[digest] = values
            self._has_new = True
        self._used[digest] = values
        return Imports.from_json(values)

    def save(self) -> None:
        """Write the cache if there is anything new: to the first of its places that can be written. Without one, only time is lost."""
        if self._path is None or not self._has_new:
            return
        kept = self._known if len(self._known) <= MAX_CACHED_FILES else self._used
        content = canonical_json([FORMAT_VERSION, kept])
        data = sha256_hex(content).encode() + b"\n" + content
        self._has_new = not (_write(self._path, data) or _write(_temporary(self._path.name, make=True), data))


def _temporary(name: str, *, make: bool = False) -> Path | None:
    """Return the file of this name in this user's temporary folder; None where there is none, or another user can write to it.

    Args:
        make: make the folder.
    """
    try:
        folder = Path(tempfile.gettempdir(), f"nightshift-{os.getuid()}")
        if make:
            folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder / name if is_own else None


def _write(path: Path | None, data: bytes) -> bool:
    """Replace a file at once; return whether that was possible."""
    if path is None:
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(data)
                file.flush()
                Path(file.name).replace(path)
            finally:
                Path(file.name).unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _read(path: Path | None) -> dict[str, list[Any]]:
    if path is None:
        return {}
    try:
        digest, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return {}
    # A damaged cache would make a wrong closure, so it has a digest.
    if sha256_hex(content).encode() != digest:
        return {}
    version, known = json.loads(content)
    return dict(known) if version == FORMAT_VERSION and isinstance(known, Mapping) else {}
