"""Files in ONNX, written field by field: the tests need no library for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FLOAT, INT64, BOOL = 1, 7, 9
Shape = Sequence[int | str]


def varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def field(number: int, value: int | bytes | str) -> bytes:
    """Return a field of a message: a whole number, or bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], *attributes: bytes, domain: str = "") -> bytes:
    ports = b"".join(field(1, name) for name in inputs) + b"".join(field(2, name) for name in outputs)
    return ports + field(4, operator) + b"".join(field(5, each) for each in attributes) + (field(7, domain) if domain else b"")


def whole_number(name: str, value: int) -> bytes:
    """Return an attribute."""
    return field(1, name) + field(3, value) + field(20, 2)


ELSEWHERE = field(13, field(1, "location") + field(2, "weights.bin")) + field(14, 1)
"""Fields of a tensor that is in another file."""


def tensor(name: str, values: NDArray[np.float32], *, is_outside: bool = False) -> bytes:
    dims = b"".join(field(1, size) for size in values.shape)
    return dims + field(2, FLOAT) + field(8, name) + (ELSEWHERE if is_outside else field(9, values.astype("<f4").tobytes()))


def port(name: str, kind: int, shape: Shape) -> bytes:
    dims = b"".join(field(1, field(1, size) if isinstance(size, int) else field(2, size)) for size in shape)
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, dims)))


def model(
    nodes: Sequence[bytes],
    tensors: Sequence[bytes],
    inputs: Sequence[bytes],
    outputs: Sequence[bytes],
    *,
    opset: int = 17,
    more: bytes = b"",
) -> bytes:
    graph = b"".join(field(1, each) for each in nodes) + field(2, "graph") + b"".join(field(5, each) for each in tensors)
    graph += b"".join(field(11, each) for each in inputs) + b"".join(field(12, each) for each in outputs)
    return field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, opset)) + more


def logistic(
    weights: NDArray[np.float32],
    *,
    rows: int | str = "rows",
    columns: int | str = 0,
    link: str = "Sigmoid",
    is_outside: bool = False,
    domain: str = "",
    opset: int = 17,
    more: bytes = b"",
) -> bytes:
    """Return a model of one input: its cells times weights [features, outputs], through a link."""
    product = node("MatMul", ["cells", "weights"], ["logits"])
    linked = node(link, ["logits"], ["scores"], domain=domain)
    inputs = [port("cells", FLOAT, [rows, columns or len(weights)])]
    outputs = [port("scores", FLOAT, ["rows", weights.shape[1]])]
    return model([product, linked], [tensor("weights", weights, is_outside=is_outside)], inputs, outputs, opset=opset, more=more)


def of_two_inputs(floats: NDArray[np.float32], ids: NDArray[np.float32]) -> bytes:
    """Return a model whose ids come apart, as int64."""
    cast = node("Cast", ["ids"], ["numbers"], whole_number("to", FLOAT))
    first, second = node("MatMul", ["floats", "a"], ["left"]), node("MatMul", ["numbers", "b"], ["right"])
    added, linked = node("Add", ["left", "right"], ["logits"]), node("Sigmoid", ["logits"], ["scores"])
    inputs = [port("floats", FLOAT, ["rows", len(floats)]), port("ids", INT64, ["rows", len(ids)])]
    return model(
        [cast, first, second, added, linked], [tensor("a", floats), tensor("b", ids)], inputs, [port("scores", FLOAT, ["rows", 1])]
    )
