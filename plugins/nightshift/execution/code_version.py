"""What stands for the code of a stage on this installation: the digest of its image, or of the files that it imports and reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from nightshift.execution.backend import backend_of
from nightshift.settings import Settings
from training.code.closure import Code
from training.code.stages import stage_code
from training.errors import DataError, DeniedError
from training.runtime.provenance import given_code_version
from training.spec import PipelineSpec
from training.store import Store


def code_of(spec: PipelineSpec, stage: str, settings: Settings, *, families: Iterable[str] = ()) -> Code:
    """Return what stands for the code of a stage: its image's digest where that is pinned, else the files that it imports and reads.

    Args:
        families: of champion and canary, where the stage loads them.

    Raises:
        SpecError: `code.missing`, `code.syntax`.
    """
    pinned = backend_of(settings).code_version(spec, stage) or given_code_version()
    return Code(version=pinned) if pinned else stage_code(stage, spec, families=families, cache=settings.home / "cache" / "imports.json")


def families_of(store: Store, parameters: Mapping[str, object]) -> set[str]:
    """Return the families of champion and canary, as their models say; one that cannot be read is the stage's to report."""
    found = set()
    for rival in (parameters.get(name) for name in ("champion", "canary")):
        if isinstance(rival, Mapping):
            with contextlib.suppress(DataError, DeniedError):
                found.add(str(store.manifests.get(rival["model_uri"], kind="model").meta["family"]))
    return found
