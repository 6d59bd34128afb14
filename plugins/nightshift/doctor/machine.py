"""What a machine has: free space, GPUs, files that only their user may read."""

from __future__ import annotations

import importlib.metadata
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from nightshift.doctor.findings import Finding, Installation, bad, good
from nightshift.execution.gpus import CPU_BUILD, DEVICES, local_gpus
from nightshift.mlflow_account import CREDENTIALS_FILE
from nightshift.settings import LOCAL
from training.installation import GPUS

MIN_FREE_BYTES: Final = 5 * 2**30
"""A run of the largest example writes less; a store that is full fails every run."""
GIB: Final = 2**30


def disk(place: Installation) -> Iterator[Finding]:
    """Look at the free space of each disk that the installation writes to."""
    store = urlsplit(place.settings.store_uri)
    folders = {"NIGHTSHIFT_HOME": place.settings.home, "temporary files": Path(tempfile.gettempdir())}
    if store.scheme == "file":
        folders["store"] = Path(unquote(store.path))
    seen: set[int] = set()
    for name, folder in folders.items():
        existing = next(each for each in (folder, *folder.parents) if each.is_dir())
        if existing.stat().st_dev in seen:
            continue
        seen.add(existing.stat().st_dev)
        free = shutil.disk_usage(existing).free
        message = f"{free / GIB:,.1f} GiB are free for {name} ({existing})"
        if free >= MIN_FREE_BYTES:
            yield good("disk", message)
        else:
            hint = "free space; `nightshift gc` shows what retention would delete (docs/retention.md)"
            yield bad("disk", f"{message}, recommended >= {MIN_FREE_BYTES // GIB} GiB", hint=hint)


def files(place: Installation) -> Iterator[Finding]:
    """Look whether other users can read the passwords of a laptop installation."""
    path = place.settings.home / CREDENTIALS_FILE
    if not path.is_file():
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        yield bad("files", f"{path} can be read by other users (mode {mode:o})", hint=f"chmod 600 {path}")
    else:
        yield good("files", f"{path} can be read by its user alone")


def gpu(place: Installation) -> Iterator[Finding]:
    """Look whether trainings of this machine would use its GPUs; in a cluster they run elsewhere."""
    if place.settings.backend != LOCAL:
        return
    devices = sum(path.name.removeprefix("nvidia").isdigit() for path in DEVICES.glob("nvidia*"))
    build = importlib.metadata.version("torch")
    if not devices:
        yield good("gpu", "this machine has no NVIDIA GPU: trainings use the CPU")
    elif local_gpus(folder=DEVICES, environ=place.environ):
        yield good("gpu", f"trainings use the GPUs of this machine ({devices}), torch {build}")
    elif build.endswith(CPU_BUILD):
        hint = "install a build of torch with CUDA: leave TORCH_INDEX unset, or set it to an index with CUDA builds"
        yield bad("gpu", f"this machine has {devices} GPUs, but torch {build} is a build without CUDA", hint=hint)
    else:
        yield good("gpu", f"{GPUS.name} hides the GPUs of this machine ({devices}): trainings use the CPU")
