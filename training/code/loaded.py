"""Whether this process runs the very files that its work is named after, and no others."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import ModuleType

from training.code.closure import Sources
from training.contracts import sha256_hex
from training.errors import spec_error
from training.installation import MODEL_PATH

MAX_NAMES = 5


class LoadedCode:
    """The files that a work is named after, compared with what this process has and imports."""

    def __init__(self, files: Mapping[str, str], sources: Sources | None = None) -> None:
        """Compare the files' content; call it when all that the stage's module imports is loaded.

        Args:
            files: as `Code.files`; empty: everything is allowed, an image's digest stands for all of it.

        Raises:
            SpecError: `code.mismatch`, a file is another one here.
        """
        self._files = files
        self._sources = sources or Sources()
        self._at_start = set(sys.modules)
        if different := self._different(files):
            message = f"this process has other code than its work is named after: {_listed(different)}"
            if absent := [name for name in different if self._sources.file_of(name) is None]:
                remedy = (
                    f"install {_listed(absent)} where stages run, or set {MODEL_PATH.name} to its folder: stages do not inherit PYTHONPATH"
                )
                raise spec_error("request", "code.mismatch", message, hint=remedy)
            hint = (
                "trigger the run again; in a cluster build Airflow's image and the stages' from the same commit, or pin the latter's digest"
            )
            raise spec_error("request", "code.mismatch", message, hint=hint)

    def check(self) -> None:
        """Check all modules that are loaded now; the work may be committed if this raises nothing.

        Raises:
            SpecError: `code.outside`, a module is loaded whose file is not among those that the work is named after: later changes of it
                would reuse this work; `code.mismatch`, a module was loaded from another folder; `code.changed`, a file was edited while
                the stage ran, and was read, or may have been, after that.
        """
        if not self._files:
            return
        # A copy: threads of libraries may import at the same time, also while a list of pairs is made.
        loaded = {name: file for name, module in sys.modules.copy().items() if (file := self._file_of(name, module)) is not None}
        if outside := sorted({file for file in loaded.values() if file not in self._files}):
            message = f"the stage imported what its name does not cover: {_listed(outside)}"
            hint = "write the import as a statement, in a function if it must be late; an import by a computed name is not found"
            raise spec_error("code", "code.outside", message, hint=hint)
        if elsewhere := sorted(path for name, file in loaded.items() if (path := self._elsewhere(file, sys.modules.get(name))) is not None):
            message = f"this process imported other files than its work is named after: {_listed(elsewhere)}"
            hint = f"rename or remove these: they come before {MODEL_PATH.name} on the path of imports"
            raise spec_error("request", "code.mismatch", message, hint=hint)
        early = {file for name, file in loaded.items() if name in self._at_start}
        if changed := self._different({name: digest for name, digest in self._files.items() if name not in early}):
            # What was loaded at the start is in memory as it was; the rest may be from before or after the edit.
            message = f"edited while the stage ran: {_listed(changed)}"
            raise spec_error("code", "code.changed", message, hint="trigger the run again")

    def _different(self, files: Mapping[str, str]) -> list[str]:
        return sorted(name for name, digest in files.items() if self._digest(name) != digest)

    def _digest(self, name: str) -> str | None:
        path = self._sources.file_of(name)
        try:
            return None if path is None else sha256_hex(path.read_bytes())
        except OSError:
            return None

    def _elsewhere(self, file: str, module: ModuleType | None) -> str | None:
        """Return the path that a module was loaded from where that is not the one that `file` means."""
        path, meant = str(getattr(module, "__file__", None) or ""), self._sources.file_of(file)
        if meant is None or path == str(meant) or not path.endswith(".py"):
            return None
        try:
            return None if os.path.samefile(path, meant) else path
        except OSError:
            # A deleted file: `_different` reports it.
            return None

    def _file_of(self, name: str, module: ModuleType) -> str | None:
        """Return a module's file as `Code.files` names it; None for libraries, and for namespace packages, which have no file."""
        if name == "__main__":
            name = getattr(getattr(module, "__spec__", None), "name", None) or name
        parts = name.split(".")
        # A library is not looked at: an attribute of one that is loaded lazily would load it.
        path = getattr(module, "__file__", None) if self._sources.folder_of(parts[0]) is not None else None
        if path is None:
            return None
        above = parts if hasattr(module, "__path__") else parts[:-1]
        return "/".join([*above, path.rpartition("/")[2].replace(".pyc", ".py")])


def _listed(names: list[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
