"""One part, in a process of its own: python -m benchmarks.gpu.part NAME cuda|cpu

Figures go to standard output as soon as they are known, one JSON object a line; what libraries print goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from benchmarks.gpu.runner import MAX_ERROR_CHARACTERS


def main() -> int:
    name, device = sys.argv[1:]
    # A copy of the descriptor, which processes that this one starts do not inherit.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as output:
        os.dup2(2, 1)
        print(f"\n== {name}", file=sys.stderr, flush=True)
        try:
            for figures in importlib.import_module(f"benchmarks.gpu.{name}").measure(device):
                print(json.dumps(rounded(figures), default=str), file=output, flush=True)
        except BaseException as err:
            # Whatever it is: its line says so, and the other parts count.
            traceback.print_exc()
            error = f"{type(err).__name__}: {err}"[:MAX_ERROR_CHARACTERS]
            print(json.dumps({"error": error}), file=output, flush=True)
            return 1
    return 0


def rounded(value: Any) -> Any:
    """Return numbers with five digits, at any depth; what is no finite number as text."""
    if isinstance(value, Mapping):
        return {str(key): rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if value - value == 0 else str(value)
    return value


if __name__ == "__main__":
    sys.exit(main())
