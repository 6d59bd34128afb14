"""The closure of the imports of some modules: the files of training/ and users' packages that they import, and what those read.

Libraries are excluded: the content of site-packages changes with the environment, which the digest of an image identifies.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from training.code.imports import Imports, ImportsCache
from training.contracts import canonical_json, sha256_hex
from training.errors import Problem, SpecError
from training.installation import MODEL_PATH
from training.spec.families import own_packages

ROOT: Final = Path(__file__).resolve().parent.parent.parent
"""The folder that holds training/."""
OURS: Final = "training"
FOLDERS_READ: Final[Mapping[str, str]] = {"training.database.connect": "migrations"}
"""Module to a folder next to it that it reads by other means than an import: Alembic lists and loads the migrations."""
COMPILED: Final = (".pyc", ".pyo")


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """What stands for the code of a stage's work."""

    version: str
    """SHA-256 over `files`, or what `NIGHTSHIFT_CODE_VERSION` or the digest of an image gives."""
    files: Mapping[str, str] = field(default_factory=dict)
    """File (`training/engine/loop.py`, as seen from the folder of its package) to SHA-256; empty: the version stands for everything."""

    @classmethod
    def of(cls, files: Mapping[str, str]) -> Code:
        return cls(version=sha256_hex(canonical_json(dict(files))), files=files)


class Sources:
    """Finds modules in training/ and in the users' packages, without an import of any."""

    def __init__(self, root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> None:
        self._folders: dict[str, Path | None] = {OURS: root}
        self._packages = own_packages(environ)
        self._listings: dict[Path, frozenset[str]] = {}
        self._path = [folder for folder in MODEL_PATH.value(environ).split(os.pathsep) if folder]

    def folder_of(self, top: str) -> Path | None:
        """Return the folder that holds a top-level package of training or of users, None for a library.

        Users' packages are those that `NIGHTSHIFT_MODEL_PACKAGES` lists, at any place, and all in `NIGHTSHIFT_MODEL_PATH`.
        """
        if top not in self._folders:
            self._folders[top] = self._find(top)
        return self._folders[top]

    def file_of(self, name: str) -> Path | None:
        """Return the path of a file by its name in `Code.files`."""
        folder = self.folder_of(name.partition("/")[0].removesuffix(".py"))
        return None if folder is None else folder / name

    def modules(self, module: str) -> Iterator[tuple[str, Path]]:
        """Yield (name, file) of a module and of the packages above it, as far as there are such files; a namespace package has none."""
        parts = module.split(".")
        folder = self.folder_of(parts[0])
        for number, part in enumerate(parts, 1):
            names = self._names_in(folder) if folder is not None else frozenset()
            if folder is None or not names:
                return
            name, inner = ".".join(parts[:number]), folder / part
            if part in names and "__init__.py" in self._names_in(inner):
                yield name, inner / "__init__.py"
            elif f"{part}.py" in names:
                yield name, folder / f"{part}.py"
            elif part not in names:
                yield from ((name, folder / file) for file in sorted(names) if file.startswith(f"{part}.") and file.endswith(".so"))
                return
            folder = inner

    def _names_in(self, folder: Path) -> frozenset[str]:
        if folder not in self._listings:
            try:
                self._listings[folder] = frozenset(os.listdir(folder))
            except OSError:
                self._listings[folder] = frozenset()
        return self._listings[folder]

    def _find(self, top: str) -> Path | None:
        folders = [Path(folder) for folder in self._path] if top.isidentifier() else []
        for folder in folders:
            if (folder / top / "__init__.py").is_file() or (folder / f"{top}.py").is_file():
                return folder
        # A folder without `__init__.py` (`mlflow/` of a user's own files) is what Python imports only where no library has that name.
        spaces = [folder for folder in folders if (folder / top).is_dir()]
        found = PathFinder.find_spec(top) if spaces or top in self._packages else None
        if spaces and (found is None or found.origin is None):
            return spaces[0]
        if found is None or top not in self._packages:
            return None
        if found.submodule_search_locations:
            return Path(next(iter(found.submodule_search_locations))).parent
        return Path(found.origin).parent if found.origin else None


def closure(roots: Iterable[str], *, sources: Sources | None = None, cache: ImportsCache | None = None) -> Code:
    """Return the files that these modules use: by imports, in functions too, and by the names of files next to them.

    Of users' packages all files that are not Python (SQL, word lists) count: how they are read cannot be seen.

    Raises:
        SpecError: `code.missing`, a root is not found; `code.syntax`, a file is not Python.
    """
    search = _Search(sources or Sources(), cache or ImportsCache())
    for root in roots:
        search.add_root(root)
    search.cache.save()
    return Code.of(search.files)


class _Search:
    def __init__(self, sources: Sources, cache: ImportsCache) -> None:
        self.files: dict[str, str] = {}
        self.cache = cache
        self._sources = sources
        self._seen: set[str] = set()
        self._packages: set[str] = set()
        """Of users, whose data is in."""

    def add_root(self, root: str) -> None:
        if not any(name == root for name, _ in self._sources.modules(root)):
            message = f"the module {root} is not found, so its code cannot be part of the work's name"
            hint = f"put its package into {MODEL_PATH.name} or install it, where Airflow's tasks run"
            raise SpecError("code", [Problem(code="code.missing", message=message, hint=hint)])
        waiting = [root]
        while waiting:
            waiting += self._add(waiting.pop())

    def _add(self, module: str) -> list[str]:
        """Add a module and its parent packages; return what they import."""
        if module in self._seen:
            return []
        self._seen.add(module)
        leads: list[str] = []
        for name, path in self._sources.modules(module):
            data = self._add_file(name, path)
            if data is not None and path.suffix == ".py":
                found = self._imports(path, data)
                leads += self._modules_of(name, path, found)
                self._add_read(name, path, found)
        return leads

    def _add_file(self, module: str, path: Path) -> bytes | None:
        """Add a file of a module's package; return its content, None where it is in already."""
        folder = self._sources.folder_of(module.partition(".")[0])
        name = path.relative_to(folder or ROOT).as_posix()
        if name in self.files:
            return None
        data = path.read_bytes()
        self.files[name] = sha256_hex(data)
        return data

    def _imports(self, path: Path, data: bytes) -> Imports:
        try:
            return self.cache.imports_of(data, sha256_hex(data))
        except (SyntaxError, ValueError) as err:
            line = getattr(err, "lineno", None)
            raise SpecError(str(path), [Problem(code="code.syntax", message=f"this is not Python: {err}", line=line)]) from err

    @staticmethod
    def _modules_of(name: str, path: Path, found: Imports) -> list[str]:
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        modules = [string for string in found.strings if "." in string and "/" not in string]
        for level, module, names in found.statements:
            above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
            base = ".".join([*above, *filter(None, [module])])
            modules += [base, *(f"{base}.{one}" for one in names)]
        return modules

    def _add_read(self, name: str, path: Path, found: Imports) -> None:
        read = [path.parent / string for string in found.strings if not string.endswith(".py")]
        read = [file for file in read if file.is_file()]
        if name in FOLDERS_READ:
            read += _files_below(path.parent / FOLDERS_READ[name])
        read += self._data_of(name.partition(".")[0])
        for file in read:
            self._add_file(name, file)

    def _data_of(self, top: str) -> list[Path]:
        """Return the files of a users' package that are not Python, the first time: a namespace package has no `__init__.py` to ask."""
        folder = self._sources.folder_of(top)
        if top == OURS or top in self._packages or folder is None:
            return []
        self._packages.add(top)
        return [file for file in _files_below(folder / top) if file.suffix != ".py"]


def _files_below(folder: Path) -> list[Path]:
    """Return the files below a folder, without hidden and compiled ones."""
    files = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
        files += [Path(place, name) for name in names if not name.startswith(".") and not name.endswith(COMPILED)]
    return sorted(files)
