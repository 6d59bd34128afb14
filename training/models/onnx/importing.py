"""Takes in a model in ONNX: one graph of standard operators in one file, whose input is the pipeline's cells.

A graph may name files beside it and functions of libraries: both are refused before onnxruntime reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as states

from training.errors import DataError, shown
from training.models.base import Artifact, FitResult
from training.models.onnx.module import WEIGHTS, session_of
from training.models.onnx.protobuf import fields

DOMAINS: Final = ("", "ai.onnx", "ai.onnx.ml")
"""Of operators that the standard defines."""
ENDLESS: Final = ("Loop",)
"""Operators that a graph may repeat for ever."""
MIN_OPSET: Final = 7
MAX_DEPTH: Final = 16
MAX_REASONS: Final = 10
FLOATS: Final = ("tensor(float)", "tensor(double)")
_SOURCE_LINE: Final = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (/onnxruntime_src/\S+ .*?\) )?")
"""What onnxruntime's messages begin with."""
_UNREADABLE: Final = (
    *(states.Fail, states.InvalidGraph, states.InvalidProtobuf, states.InvalidArgument, states.NotImplemented),
    *(RuntimeError, UnicodeDecodeError),
)
# Numbers of the fields in onnx.proto, which never change.
_MODEL_GRAPH, _MODEL_OPSET, _MODEL_FUNCTIONS = 7, 8, 25
_OPSET_DOMAIN, _OPSET_VERSION = 1, 2
_GRAPH_NODE, _GRAPH_TENSOR, _GRAPH_SPARSE = 1, 5, 15
_NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOMAIN = 4, 5, 7
_ATTRIBUTE_TENSORS, _ATTRIBUTE_GRAPHS, _ATTRIBUTE_SPARSE = (5, 10), (6, 11), (22, 23)
_TENSOR_EXTERNAL, _TENSOR_LOCATION = 13, 14
_SPARSE_TENSORS = (1, 2)


@dataclass(frozen=True, slots=True)
class _Port:
    """An input or output of a graph, as onnxruntime describes it."""

    name: str
    type: str
    shape: Sequence[Any]

    @property
    def words(self) -> str:
        return f"{shown(self.name)} {self.type} {list(self.shape)}"


def imported_graph(artifact: Artifact) -> FitResult:
    """Return the graph as `model.onnx`, unchanged.

    Raises:
        DataError: `artifact.malformed`; `artifact.operator`, it needs operators or files that are not in it; `artifact.mismatch`, its
            inputs or outputs are not those of the pipeline and the task.
    """
    data = artifact.path.read_bytes()
    try:
        reasons = sorted(set(_foreign(memoryview(data))))
    except (ValueError, TypeError, UnicodeDecodeError) as err:
        raise _malformed(str(err)) from err
    if reasons:
        more = f"; and {len(reasons) - MAX_REASONS} more" if len(reasons) > MAX_REASONS else ""
        message = f"the graph needs what is not in it: {'; '.join(reasons[:MAX_REASONS])}{more}"
        raise DataError("artifact.operator", message, hint="export it with standard operators, and its weights in the file")
    try:
        architecture = _architecture(session_of(data), artifact)
    except _UNREADABLE as err:
        raise _malformed(_SOURCE_LINE.sub("", str(err).splitlines()[0])[:300]) from err
    return FitResult(
        weights_name=WEIGHTS,
        weights=data,
        architecture=architecture,
        best_epoch=0,
        validation_loss=0.0,
        history=(),
        num_steps=0,
    )


def _foreign(model: memoryview) -> Iterator[str]:
    """Yield what a model needs besides its own file and the standard's operators.

    Raises:
        ValueError: it is no model.
    """
    graphs = 0
    for number, value in fields(model):
        if number == _MODEL_FUNCTIONS:
            yield "functions of its own"
        elif number == _MODEL_OPSET:
            yield from _opset(_bytes(value))
        elif number == _MODEL_GRAPH:
            graphs += 1
            yield from _of_graph(_bytes(value), 0)
    if graphs != 1:
        raise ValueError(f"it has {graphs} graphs")


def _opset(opset: memoryview) -> Iterator[str]:
    found = dict(fields(opset))
    domain = _text(found.get(_OPSET_DOMAIN, memoryview(b"")))
    version = found.get(_OPSET_VERSION, 0)
    if domain in ("", "ai.onnx") and isinstance(version, int) and version < MIN_OPSET:
        yield f"the operators of opset {version}: {MIN_OPSET} or later can be read"


def _of_graph(graph: memoryview, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise ValueError(f"its graphs are nested more than {MAX_DEPTH} deep")
    for number, value in fields(graph):
        if number == _GRAPH_NODE:
            yield from _of_node(_bytes(value), depth)
        elif number == _GRAPH_TENSOR:
            yield from _of_tensor(_bytes(value))
        elif number == _GRAPH_SPARSE:
            yield from _of_sparse(_bytes(value))


def _of_node(node: memoryview, depth: int) -> Iterator[str]:
    operator, domain = "", ""
    for number, value in fields(node):
        if number == _NODE_OPERATOR:
            operator = _text(value)
        elif number == _NODE_DOMAIN:
            domain = _text(value)
        elif number == _NODE_ATTRIBUTE:
            yield from _of_attribute(_bytes(value), depth)
    if operator in ENDLESS:
        yield f"the operator {shown(operator)}, which may never end"
    if domain not in DOMAINS:
        yield f"the operator {shown(operator)} of {shown(domain)}"


def _of_attribute(attribute: memoryview, depth: int) -> Iterator[str]:
    for number, value in fields(attribute):
        if number in _ATTRIBUTE_TENSORS:
            yield from _of_tensor(_bytes(value))
        elif number in _ATTRIBUTE_GRAPHS:
            yield from _of_graph(_bytes(value), depth + 1)
        elif number in _ATTRIBUTE_SPARSE:
            yield from _of_sparse(_bytes(value))


def _of_sparse(sparse: memoryview) -> Iterator[str]:
    for number, value in fields(sparse):
        if number in _SPARSE_TENSORS:
            yield from _of_tensor(_bytes(value))


def _of_tensor(tensor: memoryview) -> Iterator[str]:
    for number, value in fields(tensor):
        if number == _TENSOR_EXTERNAL or (number == _TENSOR_LOCATION and value != 0):
            yield "weights in another file"


def _architecture(session: onnxruntime.InferenceSession, artifact: Artifact) -> dict[str, object]:
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


def _output_faults(output: _Port, artifact: Artifact) -> list[str]:
    task, classes = artifact.spec.evaluate.task, artifact.num_classes
    widths = (classes,) if classes is not None else (1, 2) if task == "binary" else (1,)
    rows_only = len(output.shape) == 1 and classes is None
    if rows_only or (len(output.shape) == 2 and (not isinstance(output.shape[1], int) or output.shape[1] in widths)):
        return []
    needed = " or ".join(f"[rows, {width}]" for width in widths)
    return [f"its output is {output.words}, the task {task} needs {needed}"]


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise TypeError("a message is a number")
    return value


def _text(value: int | memoryview) -> str:
    return bytes(_bytes(value)).decode("utf-8")


def _malformed(reason: str) -> DataError:
    return DataError("artifact.malformed", f"the file is not a readable ONNX model: {reason}", hint="export it again, and check it")
