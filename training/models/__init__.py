"""Users' classes of earlier versions import the names of `training.models.base` from here: they are imported at their first use.

Nothing is imported before: the spec imports descriptors from the folders of this package, and base imports numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from training.models.base import Family, FitContext, FitResult, Scorer, load_family

__all__ = ["Family", "FitContext", "FitResult", "Scorer", "load_family"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # By the package's own name: a registered model carries this file in a package with another name.
    return getattr(importlib.import_module(f"{__name__}.base"), name)
