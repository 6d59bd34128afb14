"""Cheaper imports of large libraries: parts that are rarely used load at their first use, optional parts not at all.

A library may import, at its own start, modules that a stage never touches: Great Expectations charts and statistics, XGBoost the
classes of scikit-learn. `lean_imports` surrounds the import of such a library. The modules that are named as `deferred` are loaded by
the standard library's `LazyLoader` when an attribute of theirs is read for the first time, so nothing is missing. Those named as `absent`
seem not to be installed, for the libraries that can do without them. An import makes many objects and next to no garbage, so the garbage
collector, which would scan all of them repeatedly, is paused: a sixth of the CPU of the imports of an evaluation.
Without this a run of search_ranking takes 14 % more CPU (docs/performance.md).
"""

from __future__ import annotations

import gc
import importlib.util
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

MLFLOW_DEFERRED: Final = ("mlflow.genai",)
"""MLflow's judges of language models, a third of its import."""
MLFLOW_MODELS_OPTIONAL: Final = ("fastapi", "scipy", "sklearn")
"""What MLflow does without when it saves and registers a model: its gateway and judges need FastAPI, examples of inputs the others."""
MLFLOW_OPTIONAL: Final = (*MLFLOW_MODELS_OPTIONAL, "numpy", "pandas", "pyarrow")
"""What MLflow's client does without, as in the package mlflow-skinny; its models and data sets need it."""


def may_omit() -> bool:
    """Return whether a library may be imported without its optional parts, which it lacks for the rest of the process then.

    So it is where the program is one of Nightshift's own (`python -m training.…`) and runs no code of users', which may need these parts.
    Elsewhere, as where a registered model is served, the process is not ours.
    """
    program = getattr(sys.modules.get("__main__"), "__spec__", None)
    is_own = program is not None and program.name.partition(".")[0] == __name__.partition(".")[0]
    if not is_own:
        return False
    # Imported here: a registered model carries this file, and neither spec nor pydantic.
    from training.spec.descriptors.families import own_packages

    return not own_packages()


@contextmanager
def lean_imports(*, deferred: Collection[str] = (), absent: Collection[str] = ()) -> Iterator[None]:
    """Import in this block, and in this thread, without these modules, as far as they are not imported yet, and without garbage collection.

    Args:
        deferred: full names of modules that are loaded at their first use, in this block or later.
        absent: full names of modules whose import fails in this block with ModuleNotFoundError, where `may_omit` allows it.
    """
    finder = _DeferringFinder(frozenset(deferred), frozenset(absent) if may_omit() else frozenset())
    is_collecting = gc.isenabled()
    sys.meta_path.insert(0, finder)
    gc.disable()
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        if is_collecting:
            gc.enable()


class _Repeatable(Loader):
    """The loader of a deferred module, whose failed load leaves nothing behind, as that of an import does.

    A library may import from a deferred package while its own import is not complete, ignore that this fails, and need the package later.
    Otherwise an empty package would remain, whose modules cannot import each other in their order ("circular import").
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Readers of sources and data files ask the package's own loader.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        try:
            self._loader.exec_module(module)
        except BaseException:
            name = module.__name__
            sys.modules.pop(name, None)
            package, _, last = name.rpartition(".")
            if getattr(sys.modules.get(package), last, None) is module:
                delattr(sys.modules[package], last)
            raise


class _DeferringFinder(MetaPathFinder):
    """Answers for the named modules, in the thread that made it."""

    def __init__(self, deferred: frozenset[str], absent: frozenset[str]) -> None:
        self._deferred = deferred
        self._absent = absent
        self._thread = threading.get_ident()

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if threading.get_ident() != self._thread:
            return None
        if fullname in self._absent:
            raise ModuleNotFoundError(f"{fullname} is left out here (training.runtime.lazy_imports)", name=fullname)
        if fullname not in self._deferred:
            return None
        spec = self._found(fullname, path, target)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = importlib.util.LazyLoader(_Repeatable(spec.loader))
        return spec

    def _found(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(fullname, path, target)) is not None:
                return spec
        return None
