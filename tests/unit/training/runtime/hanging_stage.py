"""A stage that hangs, or is slow and moves, as a program: `python -m tests.unit.training.runtime.hanging_stage REQUEST_URI`.

The request's parameter `how` says which: `with_gil`, `without_gil` (C code that never returns), `in_re`, `slow` for `seconds`. What hangs
does so once a heartbeat has said that it is at its query.
"""

from __future__ import annotations

import ctypes
import re
import time

from training.runtime.runner import StageContext, StageOutput, main

MUTEX_BYTES = 64


def hang_in_c(library: ctypes.CDLL) -> None:
    """Lock a mutex twice: no signal ends that wait. `PyDLL` keeps the GIL meanwhile, `CDLL` does not."""
    mutex = ctypes.create_string_buffer(MUTEX_BYTES)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def work(context: StageContext) -> StageOutput:
    parameters = context.request.parameters
    with context.timed("query"):
        if parameters["how"] == "slow":
            ends_at, done = time.monotonic() + parameters["seconds"], 0
            while time.monotonic() < ends_at:
                done += 1
                context.progress(done, done + 1, "rows")
                time.sleep(0.02)
        else:
            request = context.request
            work_folder = context.store.work_folder(request.pipeline, request.stage, request.work_id)
            while b"query" not in (work_folder.heartbeat(request.attempt_id) or b""):
                time.sleep(0.02)
            if parameters["how"] == "in_re":
                re.match("(a+)+$", "a" * 64 + "b")
            hang_in_c(ctypes.PyDLL(None) if parameters["how"] == "with_gil" else ctypes.CDLL(None))
    uri, manifest = context.store.manifests.put_files("dataset", {"file": b"data"}, {})
    return StageOutput(artifact_uri=uri, digest=manifest.digest)


if __name__ == "__main__":
    main(work)
