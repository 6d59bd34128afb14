"""Whether a training would need more memory than it may plan with, by its rows: known before it begins.

A family whose library keeps something of every row in memory, whatever the limit, says so in its descriptor: `kept_row_bytes`,
`kept_start_bytes`.
"""

from __future__ import annotations

from typing import Final

from training.runtime.stage_memory import DEFAULT_SHARE, STAGE_MEMORY, stage_memory_bytes
from training.spec import PipelineSpec
from training.spec.descriptors.families import FAMILIES

MIB: Final = 2**20


def shortage(spec: PipelineSpec, rows: int, limit_bytes: int) -> str | None:
    """Return in words that a training needs more memory than its limit, and what to do; None where it does not, as far as is known.

    Args:
        rows: of training and validation, of the processes that share the limit.
        limit_bytes: of these.
    """
    family = spec.train.model
    facts = FAMILIES.get(family)
    if facts is None or not facts.kept_row_bytes:
        return None
    need = facts.kept_start_bytes + facts.kept_row_bytes * rows
    if need <= limit_bytes:
        return None
    other = "ranker" if spec.evaluate.task == "ranking" else "linear"
    return (
        f"{family} needs about {need / MIB:,.0f} MiB for {rows:,} training and validation rows ({facts.kept_row_bytes} bytes a row, "
        f"also with its matrix on disk), and the stage plans with {limit_bytes / MIB:,.0f} MiB: take part of the rows "
        f"(data.source.sample), raise {STAGE_MEMORY.name} or the pod's memory (train.placement.memory), or set train.model: {other}"
    )


def planned_limit_bytes(spec: PipelineSpec) -> int:
    """Return what the training of a spec plans with, as far as this process can know: its own setting, or a share of the pod's memory."""
    placed = spec.train.placement.memory
    return stage_memory_bytes() if STAGE_MEMORY.is_set() or placed is None else int(placed * DEFAULT_SHARE)
