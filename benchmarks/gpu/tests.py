"""The tests that need a card and are quick (`pytest -m gpu`); the parts `twice` and `nccl` show what the others assert."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

from training.runtime.provenance import CHECKOUT

OPTIONS: Final = ("-m", "gpu and not slow", "--noconftest", "-q", "-rs", "--tb=short")
"""Without conftest.py, which needs an installation's libraries."""
MAX_CHARACTERS: Final = 1500


def measure(_device: str) -> Iterator[dict[str, Any]]:
    if importlib.util.find_spec("pytest") is None:
        yield {"skipped": "not installed: pytest"}
        return
    # Without plugins that the machine may have.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", *OPTIONS, "tests/gpu"]
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    summary = next((line for line in reversed(done.stdout.splitlines()) if line), "")
    yield {"summary": summary, "code": done.returncode}
    if done.returncode != 0:
        yield {"error": (done.stdout + done.stderr)[-MAX_CHARACTERS:]}
