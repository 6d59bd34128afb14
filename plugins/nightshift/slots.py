"""How many tasks of a kind run at once on an installation: by the cores and the memory of its machine, or as `NIGHTSHIFT_SLOTS` states.

A slot of the pool `cpu` or `train` is a process that computes, so both together are as many as there are cores.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

from nightshift.pipeline_files import texts_of
from nightshift.settings import LOCAL, SLOTS, SOURCE, Settings
from training.command_line import exit_code_of
from training.errors import Problem, SpecError
from training.runtime.available_memory import memory_limit_bytes

CPU: Final = "cpu"
TRAIN: Final = "train"
GPU: Final = "gpu"
HOUSEKEEPING: Final = "housekeeping"
IN_A_CLUSTER: Final = {CPU: 4, TRAIN: 1}
"""Tasks that submit and read at the same time; what they wait for holds no slot."""
OF_ALL: Final = {GPU: 1, HOUSEKEEPING: 2}
"""Two for housekeeping: a collection may take hours, and `repair` does not wait for it."""
LEAST_CPU_SLOTS: Final = 2
CORES_PER_TRAINING: Final = 4
LEAST_STAGE_BYTES: Final = 2**30
"""With less, a stage has room for its imports and little else."""
UNPOOLED_SLOTS: Final = 2
"""Of the executor, for tasks that are in none of these pools: a rollback, the pools that pipelines name."""
CPU_LIMIT: Final = Path("/sys/fs/cgroup/cpu.max")
_NAMED: Final = re.compile(r"""\bpool["']?\s*:\s*["']?([A-Za-z0-9_.-]+)""")


def slots_by_pool(settings: Settings) -> dict[str, int]:
    """Return the slots of each pool; those of the variable take the place of the machine's."""
    found = machine_slots(num_cores(), memory_limit_bytes()) if settings.backend == LOCAL else IN_A_CLUSTER
    return {**found, **OF_ALL, **dict(settings.slots)}


def machine_slots(cores: int, memory_bytes: int) -> dict[str, int]:
    """Return how many stages without an accelerator a machine has room for, by pool."""
    most = max(2, memory_bytes // LEAST_STAGE_BYTES)
    train = max(1, min(cores, most) // CORES_PER_TRAINING)
    return {CPU: min(max(LEAST_CPU_SLOTS, cores - train), most - train), TRAIN: train}


def parallelism(settings: Settings) -> int:
    """Return how many tasks the executor of a laptop runs at once: as many as all pools have slots, so that none of them stays empty."""
    return sum(slots_by_pool(settings).values()) + UNPOOLED_SLOTS


def check_pools(settings: Settings) -> None:
    """Check the variable's pools before a start; a pipeline that is removed later ends no command and no task.

    Raises:
        SpecError: `settings.slots`, as `pool_problem`.
    """
    if (problem := pool_problem(settings)) is not None:
        raise SpecError(SOURCE, [problem])


def pool_problem(settings: Settings) -> Problem | None:
    """Return what is wrong with the variable's pools: slots of one that no task waits in would go unused without a word."""
    known = {CPU, TRAIN, *OF_ALL}.union(*map(_NAMED.findall, texts_of(settings.pipelines_path).values()))
    unknown = sorted(dict(settings.slots).keys() - known)
    if not unknown:
        return None
    message = f"gives slots to pools that no pipeline uses: {', '.join(unknown)}"
    hint = f"there are {', '.join(sorted(known))}; train.placement.pool of a YAML names others"
    return Problem(code="settings.slots", message=message, hint=hint, field=SLOTS.name)


def stage_share_bytes(settings: Settings) -> int:
    """Return what one stage of this machine plans with where `NIGHTSHIFT_STAGE_MEMORY` is not set: its share of the memory."""
    slots = slots_by_pool(settings)
    return memory_limit_bytes() // (slots[CPU] + slots[TRAIN])


def num_cores(limit: Path = CPU_LIMIT) -> int:
    """Return how many cores this process may use: of the machine, less where its affinity or its control group says so."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = limit.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return min(cores, max(1, round(int(quota) / int(period)))) if quota.isdigit() else cores


def main() -> int:
    """Print what a container's executor takes: `AIRFLOW__CORE__PARALLELISM=$(python -m nightshift.slots)`."""
    settings = Settings.from_environment()
    check_pools(settings)
    sys.stdout.write(f"{parallelism(settings)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
