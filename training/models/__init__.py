"""Model families, one folder each: `family.py` describes it and is light, `module.py` fits and scores.

`FAMILY` of `training/models/<name>/module.py` is the family that a YAML names. A distribution adds a family by an entry point of the group
`nightshift.families` whose value is a package with the same two files. A class of an allowed package (`package.module:Class`, see
`NIGHTSHIFT_MODEL_PACKAGES`) is a family too, without a descriptor. Most of these derive from `training.models.torch_family.TorchFamily`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.models.base import Family, FitContext, FitResult, Scorer, load_family

__all__ = ["Family", "FitContext", "FitResult", "Scorer", "load_family"]


def __getattr__(name: str) -> Any:
    """Return a name of `training.models.base`, which imports numpy: the spec imports descriptors from the folders of this package."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # By the package's own name: a registered model carries this file in a package with another name.
    return getattr(importlib.import_module(f"{__name__}.base"), name)
