"""What a stage's work is handed: its request, the store, a scratch folder, progress, and the wish to stop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from training.code.loaded import LoadedCode
from training.contracts import Scalar, StageRequest
from training.format import brief
from training.process import liveness
from training.spec import PipelineSpec
from training.store import Manifest, Store, WorkFolder, set_run_ref
from training.store.leases import Lease

logger = logging.getLogger("training.progress")

PROGRESS_INTERVAL_SECONDS = 2.0
END_SECONDS = 5.0
"""How long a process that is to be killed needs at most for its end, after it has committed."""
END_SHARE = 0.2
"""Of the notice, where that is less."""


class ReportProgress(Protocol):
    """Reports that `done` of `total` units are done, with more numbers for the log and the heartbeat (`StageContext.progress`)."""

    def __call__(self, done: int, total: int, unit: str, **more: Scalar) -> None: ...


class StopFlag:
    """Set once this process is to stop; the work decides when it can."""

    def __init__(self) -> None:
        self.requested = False
        self._commit_by = math.inf

    @property
    def seconds_left(self) -> float:
        """How long the work may take to commit what it has; infinite where nobody has said when the process is killed."""
        return max(0.0, self._commit_by - time.monotonic())

    def request(self, seconds: float = math.inf) -> None:
        """Ask the work to stop; it may be called again, also by a signal's handler and by other threads. The earliest end counts.

        Args:
            seconds: until the process is killed. A part of them is for what comes after the commit: the error, the log, the metrics.
        """
        if seconds < math.inf:
            self._commit_by = min(self._commit_by, time.monotonic() + seconds - min(END_SECONDS, END_SHARE * seconds))
        self.requested = True


@dataclass(frozen=True, kw_only=True, slots=True)
class StageOutput:
    """What a stage's work made."""

    artifact_uri: str
    digest: str
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    reports: Mapping[str, str] = field(default_factory=dict)
    """Name to URI of a page, as `publish_page` returned it."""


@dataclass(kw_only=True)
class StageContext:
    """One attempt's view of its work."""

    store: Store
    request: StageRequest
    spec: PipelineSpec
    folder: Path
    """Scratch on local disk, removed afterwards."""
    stop: StopFlag
    rank: int = 0
    world_size: int = 1
    lease: Lease | None = None
    """The right to commit; rank 0 only."""
    code: LoadedCode | None = None
    """What the work is named after; None: nothing is compared."""
    timings: dict[str, float] = field(default_factory=dict)
    last_progress: dict[str, Scalar] = field(default_factory=dict)
    """What the heartbeat carries."""
    _started: dict[str, tuple[float, int]] = field(default_factory=dict)
    _done: dict[str, int] = field(default_factory=dict)
    _logged_at: float = -PROGRESS_INTERVAL_SECONDS

    @property
    def work_folder(self) -> WorkFolder:
        """Of the work in the store."""
        return self.store.work_folder(self.request.pipeline, self.request.stage, self.request.work_id)

    def progress(self, done: int, total: int, unit: str, **more: Scalar) -> None:
        """Log done/total, rate and ETA at most every 2 s, and feed the heartbeat; rank 0 alone speaks.

        A number that changes is progress: see `training.process.liveness`.
        """
        if self._done.get(unit) != done:
            self._done[unit] = done
            liveness.moved()
        if self.rank != 0:
            return
        now = time.monotonic()
        started_at, done_before = self._started.setdefault(unit, (now, done))
        elapsed = now - started_at
        rate = (done - done_before) / elapsed if elapsed > 0 else 0.0
        eta_seconds = (total - done) / rate if rate > 0 else None
        self.last_progress = {"done": done, "total": total, "unit": unit, "per_second": round(rate, 2), "eta_seconds": eta_seconds, **more}
        if now - self._logged_at < PROGRESS_INTERVAL_SECONDS and done < total:
            return
        self._logged_at = now
        extras = "".join(f", {name} {brief(value)}" for name, value in more.items())
        eta = "" if eta_seconds is None or done >= total else f", {eta_seconds:.0f} s left"
        logger.info("%s of %s %s, %s/s%s%s", f"{done:,}", f"{total:,}", unit, f"{rate:,.0f}", eta, extras)

    @contextmanager
    def timed(self, name: str, *, kind: liveness.Kind = "part") -> Iterator[None]:
        """Add the block's seconds to the result's timings under `name`; `kind` says which limit it has where it reports no progress."""
        started_at = time.monotonic()
        try:
            with liveness.phase(kind, name):
                yield
        finally:
            self.timings[name] = round(self.timings.get(name, 0.0) + time.monotonic() - started_at, 3)

    def check_code(self) -> None:
        """Call it before anything is recorded under the work's name.

        Raises:
            SpecError: `code.outside`, `code.changed`: the name does not cover what this process has used.
        """
        if self.code is not None:
            self.code.check()

    def input(self, name: str) -> Manifest:
        """Return the artifact of kind `name` that the request has as its input of that name.

        Raises:
            DataError: it is missing, altered or damaged, or of another kind.
        """
        return self.store.manifests.get(self.request.inputs[name], kind=name)

    def store_artifact(
        self,
        kind: str,
        files: Mapping[str, Path | bytes],
        meta: Mapping[str, object],
        scalars: Mapping[str, Scalar],
        *,
        ref: str | None = None,
        pages: Mapping[str, bytes] = MappingProxyType({}),
    ) -> StageOutput:
        """Store an artifact, set the run's ref `ref` to it, publish its pages; return the output that names it.

        Args:
            kind: of the artifact's manifest.
            files: name to content, or to the path of a local file.
            meta: JSON of the manifest.
            scalars: of the stage's result.
            ref: None: none of the run's refs names this artifact.
            pages: name to HTML, see `publish_page`.
        """
        uri, manifest = self.store.manifests.put_files(kind, files, meta)
        if ref is not None:
            set_run_ref(self.store, self.request, ref, uri)
        reports = {name: self.publish_page(name, html) for name, html in pages.items()}
        return StageOutput(artifact_uri=uri, digest=manifest.digest, scalars=scalars, reports=reports)

    def publish_page(self, name: str, html: bytes) -> str:
        """Store a self-contained page, set the run's ref `reports/<name>` to it; return its URI."""
        uri = self.store.reports.put(self.request.pipeline, html)
        set_run_ref(self.store, self.request, f"reports/{name}", uri)
        return uri
