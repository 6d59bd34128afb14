"""What is there: versions, the card, packages, and whether what the other parts use can be imported."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import Final

MODULES: Final = (
    "training.engine.loop",
    "training.engine.tracking.tracker",
    "training.large.checkpoint.sharded_writer",
    "training.large.sharded",
    "training.large.pipeline",
    "training.large.tensor",
    "training.large.compression",
    "training.engine.activations",
    "training.large.planning.probe",
    "training.models.ranker.module",
    "training.data.join.engines.duckdb",
    "training.stages.prepare",
    "pynvml",
    "pytest",
)


def measure(_device: str) -> Iterator[dict[str, object]]:
    yield {"date": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()), "python": platform.python_version(), "kernel": platform.platform()}
    yield {"cores": os.cpu_count(), "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")}
    yield {"free_disk_bytes": shutil.disk_usage(tempfile.gettempdir()).free}
    # All of them: the next run can carry less.
    found = {each.name: each.version for each in importlib.metadata.distributions()}
    yield {"packages": [f"{name} {version}" for name, version in sorted(found.items())]}
    import torch

    yield {"torch": torch.__version__, "cuda": torch.version.cuda, "cuda_available": torch.cuda.is_available()}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        yield {"gpus": torch.cuda.device_count(), "gpu": properties.name, "gpu_memory_bytes": properties.total_memory}
        yield {"capability": list(torch.cuda.get_device_capability(0)), "bf16": torch.cuda.is_bf16_supported()}
        yield {"nccl": list(torch.cuda.nccl.version()), "cudnn": torch.backends.cudnn.version()}
    yield {"commit": commit()}
    yield {"imports": {name: importable(name) for name in MODULES}}


def commit() -> str:
    try:
        from training.runtime.provenance import git_state

        return str(git_state()["commit"])
    except Exception as err:
        return f"unknown: {type(err).__name__}: {err}"


def importable(name: str) -> float | str:
    """Return the seconds of an import, or why it fails."""
    started_at = time.perf_counter()
    try:
        importlib.import_module(name)
    except Exception as err:
        return f"{type(err).__name__}: {err}"
    return time.perf_counter() - started_at
