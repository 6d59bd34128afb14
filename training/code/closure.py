"""The closure of the imports of some modules: the files of training/ and users' packages that they import, and what those read.

Libraries are excluded: the content of site-packages changes with the environment, which the digest of an image identifies.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from training.code.imports import Imports, ImportsCache, Statement
from training.contracts import canonical_json, sha256_hex
from training.errors import Problem, SpecError, spec_error
from training.installation import MODEL_PATH
from training.spec.descriptors.families import own_packages

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
        self._listings: dict[str, frozenset[str]] = {}
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

    def name_of(self, module: str, path: Path) -> str:
        """Return the name in `Code.files` of a file of a module's package."""
        return path.relative_to(self.folder_of(module.partition(".")[0]) or ROOT).as_posix()

    def modules(self, module: str) -> Iterator[tuple[str, str]]:
        """Yield (name, file) of a module and of the packages above it, as far as there are such files; a namespace package has none."""
        # Texts: a closure asks for thousands of names, most of them of no module.
        parts = module.split(".")
        top = self.folder_of(parts[0])
        folder = "" if top is None else str(top)
        for number, part in enumerate(parts, 1):
            names = self._names_in(folder) if folder else frozenset()
            if not names:
                return
            name, inner = ".".join(parts[:number]), f"{folder}/{part}"
            if part in names and "__init__.py" in self._names_in(inner):
                yield name, f"{inner}/__init__.py"
            elif f"{part}.py" in names:
                yield name, f"{inner}.py"
            elif part not in names:
                yield from ((name, f"{folder}/{file}") for file in sorted(names) if file.startswith(f"{part}.") and file.endswith(".so"))
                return
            folder = inner

    def _names_in(self, folder: str) -> frozenset[str]:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    """A module of training/ or of users, and what its text says of others."""

    name: str
    path: Path
    file: str
    """The path as `Code.files` has it."""
    digest: str
    imports: Imports
    fault: SyntaxError | ValueError | None
    """Why it is not Python; it then has no imports."""

    @property
    def package(self) -> str:
        """What its relative imports begin at."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    @property
    def is_own(self) -> bool:
        """Whether it is a user's."""
        return self.name.partition(".")[0] != OURS

    def named_by(self, statement: Statement) -> list[str]:
        """Return what may be modules of an import statement: of `from a import b`, `a` and `a.b`."""
        parts = self.package.split(".")
        above = parts[: len(parts) - statement.level + 1] if statement.level else []
        base = ".".join([*above, *filter(None, [statement.module])])
        return [base, *(f"{base}.{name}" for name in statement.names)]


def walk(roots: Iterable[str], sources: Sources, cache: ImportsCache, leads: Callable[[Module], Iterable[str]]) -> Iterator[Module]:
    """Yield the modules of these names that are training's or users', the packages above them, and so on for what `leads` names of each."""
    waiting, asked, found = list(roots), set[str](), set[str]()
    while waiting:
        name = waiting.pop()
        if name in asked:
            continue
        asked.add(name)
        for each, path in sources.modules(name):
            if path not in found:
                found.add(path)
                module = _read(each, Path(path), sources, cache)
                yield module
                waiting += leads(module)


def _read(name: str, path: Path, sources: Sources, cache: ImportsCache) -> Module:
    data, fault, imports = path.read_bytes(), None, Imports([], [])
    digest = sha256_hex(data)
    try:
        imports = cache.imports_of(data, digest) if path.suffix == ".py" else imports
    except (SyntaxError, ValueError) as err:
        fault = err
    return Module(name=name, path=path, file=sources.name_of(name, path), digest=digest, imports=imports, fault=fault)


def closure(roots: Iterable[str], *, sources: Sources | None = None, cache: ImportsCache | None = None) -> Code:
    """Return the files that these modules use: by imports, in functions too, and by the names of files next to them.

    Of users' packages all files that are not Python (SQL, word lists) count: how they are read cannot be seen.

    Raises:
        SpecError: `code.missing`, a root is not found; `code.syntax`, a file is not Python.
    """
    sources, cache, roots = sources or Sources(), cache or ImportsCache(), list(roots)
    for root in roots:
        if not any(name == root for name, _ in sources.modules(root)):
            message = f"the module {root} is not found, so its code cannot be part of the work's name"
            hint = f"put its package into {MODEL_PATH.name} or install it, where Airflow's tasks run"
            raise spec_error("code", "code.missing", message, hint=hint)
    files: dict[str, str] = {}
    tops: set[str] = set()
    for module in walk(roots, sources, cache, _used):
        if module.fault is not None:
            problem = Problem(code="code.syntax", message=f"this is not Python: {module.fault}", line=getattr(module.fault, "lineno", None))
            raise SpecError(str(module.path), [problem])
        files[module.file] = module.digest
        read = _read_beside(module)
        if module.is_own and (top := module.name.partition(".")[0]) not in tops:
            # The first time: a namespace package has no `__init__.py` to ask.
            tops.add(top)
            read += [file for file in _files_below((sources.folder_of(top) or ROOT) / top) if file.suffix != ".py"]
        files |= {name: sha256_hex(file.read_bytes()) for file in read if (name := sources.name_of(module.name, file)) not in files}
    cache.save()
    return Code.of(files)


def _used(module: Module) -> Iterator[str]:
    yield from (string for string in module.imports.strings if "." in string and "/" not in string)
    for statement in module.imports.statements:
        yield from module.named_by(statement)


def _read_beside(module: Module) -> list[Path]:
    named = [module.path.parent / string for string in module.imports.strings if not string.endswith(".py")]
    folder = FOLDERS_READ.get(module.name)
    return [file for file in named if file.is_file()] + ([] if folder is None else _files_below(module.path.parent / folder))


def _files_below(folder: Path) -> list[Path]:
    """Return the files below a folder, without hidden and compiled ones."""
    files = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
        files += [Path(place, name) for name in names if not name.startswith(".") and not name.endswith(COMPILED)]
    return sorted(files)
