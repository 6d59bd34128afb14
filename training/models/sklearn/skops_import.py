"""skops, imported without torch.

skops lists all estimators, for which scikit-learn imports each of its packages. One of them imports torch: 1.8 s of CPU, and memory.
"""

from __future__ import annotations

import sys
from typing import Any, Final

__all__ = ["UnsupportedTypeException", "skops_io"]

TORCH: Final = "sklearn.externals.array_api_compat.torch"

_modules: dict[str, Any] = sys.modules
_is_left_out = TORCH not in _modules
if _is_left_out:
    # Python refuses to import a module that is None, and scikit-learn goes on without it.
    _modules[TORCH] = None
import skops.io as skops_io  # noqa: E402
from skops.io.exceptions import UnsupportedTypeException  # noqa: E402

if _is_left_out:
    del _modules[TORCH]
