"""Loads a model from outside once, in a process of its own: what ends that process ends no other, and the model is refused for good.

Libraries trust much of their files: the wrong number of a node makes XGBoost read memory that is not its own, and a graph may never end.
So the process has limits of memory, of files and of CPU time, and the model must score some rows in it before it is one.

python -m training.models.isolated_import FOLDER PARENT_PID
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from training.code.loaded import LoadedCode
from training.contracts import canonical_json
from training.data.features.transforms import LayoutEntry, Matrix
from training.errors import DataError, NightshiftError, OutOfMemoryError, Problem, SpecError, UnavailableError
from training.format import figure
from training.installation import PYTHON_PATH
from training.models.base import FitResult, ImportedArtifact, Scorer, load_family
from training.process.child import bind_to_parent
from training.runtime.exhausted_resources import machine_limit
from training.runtime.stage_memory import STAGE_MEMORY, stage_memory_bytes
from training.spec import PipelineSpec
from training.spec.pipeline_spec import freeze

logger = logging.getLogger(__name__)

LEAST_MEMORY_BYTES: Final = 2**30
"""With less, torch may not be imported."""
MAX_CPU_SECONDS: Final = 600
ASKED, ANSWER, CELLS, ERRORS = "asked.json", "answer.json", "cells.npy", "errors.txt"
MAX_ERROR_BYTES: Final = 2000
SUM_TOLERANCE: Final = 1e-3
DEPENDENCE_TOLERANCE: Final = 1e-3
"""Share of a score. Products of matrices of other sizes round otherwise, by less than a thousandth of this."""


def load_apart(artifact: ImportedArtifact, cells: NDArray[np.int32], folder: Path, code_files: Mapping[str, str]) -> FitResult:
    """Return the model, which has scored the cells [rows, features] of some rows in a process of its own.

    Args:
        folder: an empty one, for files that both processes read.
        code_files: what the work is named after, as `StageRequest.code_files`.

    Raises:
        DataError: `model.invalid`, the model ended that process; `artifact.*`, `weights.*`: it is damaged, or no model of these
            cells and this task.
        SpecError: `artifact.family`, `model.unknown`, `code.outside`.
        OutOfMemoryError: `memory.exhausted`, that process was killed.
        UnavailableError: `storage.full`, `process.open_files`: that says nothing of the model.
    """
    asked: dict[str, object] = {"path": str(artifact.path), "spec": freeze(artifact.spec), "features": list(artifact.features)}
    asked |= {"num_classes": artifact.num_classes, "code_files": dict(code_files), "cpu_seconds": MAX_CPU_SECONDS}
    (folder / ASKED).write_bytes(canonical_json(asked))
    np.save(folder / CELLS, cells)
    environment = {**os.environ, PYTHON_PATH.name: os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "training.models.isolated_import", str(folder), str(os.getpid())]
    # A file: what it writes may be more than this process can hold.
    with (folder / ERRORS).open("w+b") as errors:
        code = subprocess.run(command, env=environment, stderr=errors, check=False).returncode
        errors.seek(max(0, errors.tell() - MAX_ERROR_BYTES))
        wrote = errors.read().decode("utf-8", "replace")
    if not (folder / ANSWER).exists():
        logger.warning("the process that loaded the model wrote: %s", wrote)
        raise _end(code, wrote)
    answer = json.loads((folder / ANSWER).read_bytes())
    if "problems" in answer:
        raise SpecError("train.model", [Problem(**problem) for problem in answer["problems"]])
    if "code" in answer:
        raise DataError(**answer)
    return FitResult(weights=(folder / answer["weights_name"]).read_bytes(), **answer)


def _end(code: int, errors: str) -> NightshiftError:
    """Return the error of a process that gave no answer."""
    if code == -signal.SIGKILL:
        return OutOfMemoryError(
            "memory.exhausted", "the process that loaded the model was killed from outside, as the kernel does for want of memory"
        )
    end = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    last = (errors.strip().splitlines() or ["it wrote nothing"])[-1][:300]
    if isinstance(found := machine_limit(OSError(last)), UnavailableError):
        return found
    message = f"the process that loaded the model and scored rows with it {end}: {last}"
    hint = f"score rows with it where it was made, within {MAX_CPU_SECONDS} s of CPU and the memory of {STAGE_MEMORY.name}; write it again"
    return DataError("model.invalid", message, hint=hint)


def main() -> None:
    """Be that process: what is asked is in files of the folder, and so is the answer."""
    folder = Path(sys.argv[1])
    bind_to_parent(int(sys.argv[2]))
    # Of a graph whose weights are in another file, onnxruntime reads files below the working folder.
    os.chdir(folder)
    memory_bytes = max(LEAST_MEMORY_BYTES, stage_memory_bytes())
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (memory_bytes, memory_bytes))
    asked = json.loads((folder / ASKED).read_bytes())
    # At the second limit the kernel would send SIGKILL.
    resource.setrlimit(resource.RLIMIT_CPU, (asked["cpu_seconds"], asked["cpu_seconds"] + 60))
    answer: dict[str, Any]
    try:
        code = LoadedCode(asked["code_files"])
        artifact = ImportedArtifact(
            path=Path(asked["path"]), spec=PipelineSpec.thaw(asked["spec"]), features=asked["features"], num_classes=asked["num_classes"]
        )
        result = load_and_score(artifact, np.load(folder / CELLS), folder)
        code.check()
        answer = {"weights_name": result.weights_name, "architecture": result.architecture, "best_epoch": result.best_epoch}
    except SpecError as err:
        answer = {"problems": [asdict(problem) for problem in err.problems]}
    except DataError as err:
        answer = {"code": err.code, "message": err.message, "hint": err.hint}
    (folder / ANSWER).write_bytes(canonical_json(answer))


def load_and_score(artifact: ImportedArtifact, cells: NDArray[np.int32], folder: Path) -> FitResult:
    """Return the model, which has scored the cells [rows, features]; its weights are in `folder`. Raises as `load_apart`."""
    family = load_family(artifact.spec.train.model)
    result = family.imported(artifact)
    (folder / result.weights_name).write_bytes(result.weights)
    _check_scores(family.load(folder, result.architecture), cells, artifact)
    return result


def _check_scores(scorer: Scorer, cells: NDArray[np.int32], artifact: ImportedArtifact) -> None:
    """Find now what the evaluation would stumble over in an hour."""
    layout = tuple(LayoutEntry(**entry) for entry in artifact.features)
    # Every second row in the reverse order: other rows beside each, and another number of them.
    parts = [np.ascontiguousarray(part) for part in (cells, cells[1::2][::-1])]
    try:
        scores, others = (scorer(Matrix(cells=part, layout=layout)) for part in parts)
    except NightshiftError:
        raise
    except Exception as err:  # There is no list of what libraries raise for a file from outside.
        raise unscored(len(cells), err) from err
    fault = _fault(scores, len(cells), artifact) or _dependence(scores[1::2], others[::-1])
    if fault:
        raise DataError(
            "artifact.scores", f"on {len(cells)} rows of the validation split, {fault}", hint="its output does not fit the task"
        )


def unscored(num_rows: int, cause: Exception) -> DataError:
    """Return the error of rows that cannot be scored."""
    words = f"{type(cause).__name__}: {next(iter(str(cause).splitlines()), '')[:300]}"
    hint = "score some rows of the pipeline with it, more than one at a time, where it was made"
    return DataError("artifact.scores", f"{num_rows} rows of the validation split cannot be scored: {words}", hint=hint)


def _fault(scores: NDArray[np.float64], num_rows: int, artifact: ImportedArtifact) -> str:
    """Return what is wrong with the scores, or nothing."""
    num_classes = artifact.num_classes
    wanted = (num_rows,) if num_classes is None else (num_rows, num_classes)
    if scores.shape != wanted:
        return f"its scores have the shape {list(scores.shape)}, needed: {list(wanted)}"
    if not np.isfinite(scores).all():
        return f"{int((~np.isfinite(scores)).sum())} scores are not finite"
    if artifact.spec.evaluate.task in ("binary", "multiclass") and (scores.min(initial=0) < 0 or scores.max(initial=0) > 1):
        return f"its scores are from {figure(scores.min())} to {figure(scores.max())}, and probabilities from 0 to 1"
    if num_classes is not None and len(scores) and np.abs(scores.sum(axis=1) - 1).max() > SUM_TOLERANCE:
        return "the probabilities of a row do not add up to 1"
    return ""


def _dependence(scores: NDArray[np.float64], others: NDArray[np.float64]) -> str:
    """Return what is wrong where the scores of the same rows differ beside other rows, or nothing."""
    if np.allclose(scores, others, rtol=DEPENDENCE_TOLERANCE, atol=DEPENDENCE_TOLERANCE * np.abs(scores).max(initial=0)):
        return ""
    return "the score of a row is another one beside other rows, or each time: no evaluation says what it would be in service"


if __name__ == "__main__":
    main()
