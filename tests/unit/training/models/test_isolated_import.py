"""How the process ends that loads a model from outside, and what is said of it."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from training.errors import NightshiftError
from training.models.base import ImportedArtifact
from training.models.isolated_import import load_apart
from training.runtime.provenance import CHECKOUT
from training.spec import load_spec

SPEC = load_spec(CHECKOUT / "dags/pipelines/search_ranking.yaml")


def end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> NightshiftError:
    """Return the error of a process that does what a script says."""
    program, folder = tmp_path / "python", tmp_path / "folder"
    folder.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(NightshiftError) as caught:
        load_apart(ImportedArtifact(path=tmp_path, spec=SPEC, features=[], num_classes=None), np.zeros((1, 1), np.int32), folder, {})
    return caught.value


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("OSError: [Errno 28] No space left on device", "storage.full"),
        ("OSError: [Errno 24] Too many open files", "process.open_files"),
        ("MemoryError", "model.invalid"),
        ("ValueError: of the model", "model.invalid"),
    ],
)
def test_limit_of_the_machine_refuses_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, code: str) -> None:
    error = end(tmp_path, monkeypatch, f"echo 'Traceback'; echo '{words}' >&2; exit 1")
    assert (error.code, words in error.message) == (code, True)


def test_what_the_process_writes_takes_no_memory_of_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracemalloc.start()
    try:
        error = end(tmp_path, monkeypatch, "head -c 50000000 /dev/zero | tr '\\0' x >&2; echo >&2; echo last >&2; exit 3")
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (error.code, error.message.endswith("ended with code 3: last")) == ("model.invalid", True)
    assert peak_bytes < 10_000_000
