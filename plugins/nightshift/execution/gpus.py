"""Whether a training will run on GPUs: known before it starts, because the device is in its work id."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from training.installation import GPUS
from training.runtime.provenance import version_of
from training.spec import PipelineSpec
from training.spec.descriptors.families import FAMILIES

CUDA: Final = "cuda"
CPU_BUILD: Final = "+cpu"
DEVICES: Final = Path("/dev")


def device_of(spec: PipelineSpec, *, has_gpus: bool) -> dict[str, str]:
    """Return `{"device": "cuda"}` for a training that uses GPUs where it has some, else `{}`: its family may want them to be asked for."""
    facts = FAMILIES.get(spec.train.model)
    uses_gpus = facts is None or (facts.uses_gpus and (spec.train.placement.gpus > 0 or not facts.gpus_on_request))
    return {"device": CUDA} if has_gpus and uses_gpus else {}


def local_gpus(*, folder: Path = DEVICES, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether torch finds a GPU on this machine: by device files, CUDA_VISIBLE_DEVICES and torch's build, without importing it."""
    if GPUS.is_set(environ) and GPUS.text(environ) in ("", "-1"):
        return False
    build = version_of("torch")
    return (
        build is not None
        and not build.endswith(CPU_BUILD)
        and any(path.name.removeprefix("nvidia").isdigit() for path in folder.glob("nvidia*"))
    )
