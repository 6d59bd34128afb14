"""Attempts of stages as operators start them: each in its own process and named after its code, which the runner compares."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nightshift.execution.code_version import families_of
from training.code.closure import Code
from training.code.stages import stage_code
from training.contracts import ExitCode
from training.runtime.provenance import CHECKOUT
from training.runtime.runner import REQUEST_PATTERN
from training.spec import PipelineSpec
from training.store import Store


def code_of_request(uri: str) -> Code:
    """Return the code of a request's work."""
    match = REQUEST_PATTERN.fullmatch(uri)
    assert match is not None
    store = Store(match["root"])
    request = store.read_request(uri)
    spec = PipelineSpec.thaw(store.get_json(request.spec_uri))
    return stage_code(request.stage, spec, families=families_of(store, request.parameters))


def named(uri: str) -> str:
    """Write a copy of a request with the code that its work is named after; return its URI."""
    match = REQUEST_PATTERN.fullmatch(uri)
    assert match is not None
    store, code = Store(match["root"]), code_of_request(uri)
    request = replace(store.read_request(uri), code_version=code.version, code_files=code.files)
    request = replace(request, attempt_id=f"{request.attempt_id}-named")
    return store.work_folder(request.pipeline, request.stage, request.work_id).write_request(request)


def run_process(work: Any, uri: str, environment: Mapping[str, str], folder: Path) -> ExitCode:
    """Run an attempt in a process with `work`'s module as its program; anything but a success is shown."""
    command = [sys.executable, "-m", work.__module__, named(uri)]
    own = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    path = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), str(CHECKOUT)]))
    given = {**own, **environment, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=given, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return ExitCode(done.returncode)
