"""How much memory a stage may use for data, and how much of it an engine's queries get."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from pydantic_core import PydanticCustomError

from training.errors import spec_error
from training.installation import Variable
from training.runtime.available_memory import memory_limit_bytes
from training.spec.scalar_types import parse_size

STAGE_MEMORY: Final = Variable(
    name="NIGHTSHIFT_STAGE_MEMORY",
    kind="size",
    default="the memory divided by the slots; in a pod half of it",
    meaning="memory that a stage plans with: queries beyond their share of it spill to scratch: `4GiB` (docs/data.md)",
)
DEFAULT_SHARE: Final = 0.5
"""Of the machine's or the control group's memory, where the variable is not set."""
ENGINE_SHARE: Final = 0.4
"""Of the stage's memory, for queries; the rest is for imports (about 200 MB), single columns and batches."""
LEAST_ENGINE_BYTES: Final = 128 * 2**20
"""DuckDB needs about this to sort by spilling."""


def size_of(variable: Variable, default_bytes: int, environ: Mapping[str, str] = os.environ) -> int:
    """Return a variable's size in bytes, or `default_bytes` where it is not set.

    Raises:
        SpecError: `resources.memory`, it is set to something that is not a size.
    """
    text = variable.text(environ)
    if not text:
        return default_bytes
    try:
        return parse_size(text)
    except PydanticCustomError:
        hint = "write a number and a unit: 512MiB, 16GiB"
        message = "is not a size"
        # The cause quotes the value.
        raise spec_error("environment", "resources.memory", message, hint=hint, field=variable.name) from None


def stage_memory_bytes(environ: Mapping[str, str] = os.environ) -> int:
    """Return how much memory a stage plans with, in bytes; raises as `size_of`."""
    return size_of(STAGE_MEMORY, int(DEFAULT_SHARE * memory_limit_bytes()), environ)


def engine_memory_bytes(environ: Mapping[str, str] = os.environ) -> int:
    """Return how much of it an engine's queries may take, in bytes; raises as `size_of`."""
    return max(LEAST_ENGINE_BYTES, int(ENGINE_SHARE * stage_memory_bytes(environ)))
