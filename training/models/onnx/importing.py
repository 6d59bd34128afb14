"""Takes in a model in ONNX: a graph in one file, whose input is the pipeline's cells. What it is of is asked of onnxruntime."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as states

from training.errors import DataError, shown
from training.models.base import FitResult, ImportedArtifact
from training.models.onnx.session import WEIGHTS, session_of

MAX_REASONS: Final = 10
FLOATS: Final = ("tensor(float)", "tensor(double)")
_SOURCE_LINE: Final = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (/onnxruntime_src/\S+ .*?\) )?")
"""What onnxruntime's messages begin with."""
_NEEDS_MORE: Final = re.compile(r"External data|No opset import for domain|not a registered function|an implementation for")
"""What they say of a graph that needs other files, or operators that there are not."""
_UNREADABLE: Final = (
    *(states.Fail, states.InvalidGraph, states.InvalidProtobuf, states.InvalidArgument, states.NotImplemented),
    *(RuntimeError, UnicodeDecodeError),
)


@dataclass(frozen=True, slots=True)
class _Port:
    """An input or output of a graph, as onnxruntime describes it."""

    name: str
    type: str
    shape: Sequence[Any]

    @property
    def words(self) -> str:
        return f"{shown(self.name)} {self.type} {list(self.shape)}"


def imported_graph(artifact: ImportedArtifact) -> FitResult:
    """Return the graph as `model.onnx`, unchanged.

    Raises:
        DataError: `artifact.malformed`; `artifact.operator`, it needs operators or files that are not in it; `artifact.mismatch`, its
            inputs or outputs are not those of the pipeline and the task.
    """
    data = artifact.path.read_bytes()
    try:
        architecture = _architecture(session_of(data), artifact)
    except _UNREADABLE as err:
        words = _SOURCE_LINE.sub("", str(err).splitlines()[0])[:300]
        if _NEEDS_MORE.search(words):
            hint = "export it with standard operators, and its weights in the file"
            raise DataError("artifact.operator", f"the graph needs what is not in it: {words}", hint=hint) from err
        message = f"the file is not a readable ONNX model: {words}"
        raise DataError("artifact.malformed", message, hint="export it again, and check it") from err
    return FitResult(weights_name=WEIGHTS, weights=data, architecture=architecture)


def _architecture(session: onnxruntime.InferenceSession, artifact: ImportedArtifact) -> dict[str, object]:
    """Return which input and output are what.

    Raises:
        DataError: `artifact.mismatch`, everything that does not fit.
    """
    inputs = [_Port(each.name, each.type, each.shape) for each in session.get_inputs()]
    outputs = [_Port(each.name, each.type, each.shape) for each in session.get_outputs() if each.type in FLOATS]
    num_ids = sum(entry["dtype"] == "int32" for entry in artifact.features)
    num_floats = len(artifact.features) - num_ids
    named, faults = _named_inputs(inputs, num_floats, num_ids)
    if len(outputs) != 1:
        seen = ", ".join(each.words for each in outputs) or "none"
        faults.append(f"one output of floating-point numbers is needed, it has {seen}; of a classifier, export no ZipMap")
    else:
        faults += _output_faults(outputs[0], artifact)
    if faults:
        message = f"the graph is not of this pipeline's input and task: {'; '.join(faults)}"
        raise DataError("artifact.mismatch", message, hint="export it for the cells of the transforms.json that it is to have")
    return {**named, "output": outputs[0].name, "is_multiclass": artifact.num_classes is not None}


def _named_inputs(inputs: Sequence[_Port], num_floats: int, num_ids: int) -> tuple[dict[str, object], list[str]]:
    """Return (input by what it is for, what is wrong with the inputs)."""
    floats = [each for each in inputs if each.type == "tensor(float)"]
    ids = [each for each in inputs if each.type == "tensor(int64)"]
    is_apart = bool(ids)
    needed = f"float32 [rows, {num_floats + num_ids}]" + (
        f", or float32 [rows, {num_floats}] and int64 [rows, {num_ids}]" if num_ids else ""
    )
    wanted = [(floats, num_floats if is_apart else num_floats + num_ids), (ids, num_ids if is_apart else 0)]
    fits = len(floats) + len(ids) == len(inputs) and all(
        (not width and not ports) or (len(ports) == 1 and _is_table(ports[0], width)) for ports, width in wanted
    )
    if not fits:
        return {}, [f"its inputs are {', '.join(each.words for each in inputs[:MAX_REASONS])}, needed: {needed}"]
    return {"floats": floats[0].name if floats else "", "ids": ids[0].name if ids else ""}, []


def _is_table(port: _Port, width: int) -> bool:
    """Return whether a port has any number of rows and so many columns; a name or nothing stands for any number."""
    if len(port.shape) != 2:
        return False
    rows, columns = port.shape
    return not isinstance(rows, int) and (not isinstance(columns, int) or columns == width)


def _output_faults(output: _Port, artifact: ImportedArtifact) -> list[str]:
    task, classes = artifact.spec.evaluate.task, artifact.num_classes
    widths = (classes,) if classes is not None else (1, 2) if task == "binary" else (1,)
    rows_only = len(output.shape) == 1 and classes is None
    if rows_only or (len(output.shape) == 2 and (not isinstance(output.shape[1], int) or output.shape[1] in widths)):
        return []
    needed = " or ".join(f"[rows, {width}]" for width in widths)
    return [f"its output is {output.words}, the task {task} needs {needed}"]
