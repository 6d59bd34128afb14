"""Every key of a pipeline's YAML is read by code that acts on it, or is listed here with the reason why not.

A reader is an attribute access in plugins/ or training/ outside of training/spec, on something that is, by its name or annotation, the
section that has the key: `placement.spot`, `context.spec.train.epochs`, `rules.minimum` where `rules: Evaluate`. Checks of the spec itself
are not readers. It is a test of names: it finds a key that nothing reads, not one that is read to no effect.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec

READ_BY_NAME = {
    "data.source.window": "training/spec/schedule/instants.py",
    "train.parallel.shard": "training/spec/sections/train.py",
    "train.parallel.tensor": "training/spec/sections/train.py",
    "train.parallel.pipeline": "training/spec/sections/train.py",
    "resources.cpus": "plugins/nightshift/execution/kubernetes/launch_request.py",
    "resources.memory": "plugins/nightshift/execution/kubernetes/launch_request.py",
    # By `smaller_sizes`, which launches call.
    "train.placement.min_nodes": "training/spec/rules/training.py",
    "tune.space.float": "training/spec/sections/tuning.py",
}
"""Keys that are read through a variable of another section's name, or by a function beside the section: the file that reads them."""

PARSE_TIME_ONLY = {
    "data.features.columns.known",
    "data.source.columns.known",
    "data.source.derive.because",
    "data.source.derive.known",
    "data.source.where.because",
    "prepare.derive.because",
    "prepare.derive.known",
    "train.parallel.data",
}
"""Keys that decide only whether a spec is accepted: when a column is known, and why; and what follows from the number of processes."""

WITHOUT_READER: dict[str, str] = {}
"""Keys that nothing reads, with the reason why they are still there. One that is read must leave this list."""


def keys() -> Iterator[tuple[str, str, type[BaseModel]]]:
    """Yield (dotted key, attribute, its section's class) of every key below PipelineSpec; of lists and mappings without index and name."""
    waiting: list[tuple[str, type[BaseModel]]] = [("", PipelineSpec)]
    while waiting:
        prefix, model = waiting.pop()
        for name, field in model.model_fields.items():
            key = f"{prefix}{field.alias or name}"
            inner = list(models_in(field.annotation))
            if not inner:
                yield key, name, model
            waiting += [(f"{key}.", found) for found in inner]


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


KEYS = sorted(keys(), key=lambda found: found[0])
SECTIONS = {model for _, _, model in KEYS}


@dataclass(frozen=True, eq=False)
class File:
    """What one file reads."""

    path: str
    accesses: dict[str, set[str]]
    """Attribute to the names that it is read from."""
    dynamic: set[str]
    """Names that an attribute is read from by `getattr`."""
    annotated: list[tuple[str, str]]
    """(name, annotation)."""
    bound: list[tuple[str, str]]
    """(name of the value, name that it is bound to)."""
    strings: set[str]


@functools.cache
def files() -> tuple[File, ...]:
    """Return the files outside of training/spec."""
    paths = [path for room in ("plugins", "training") for path in sorted((CHECKOUT / room).rglob("*.py"))]
    return tuple(file_of(path) for path in paths if CHECKOUT / "training" / "spec" not in path.parents)


def file_of(path: Path) -> File:
    found = File(str(path.relative_to(CHECKOUT)), {}, set(), [], [], set())
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.accesses.setdefault(node.attr, set()).add(last_name(node.value))
        elif isinstance(node, ast.Call) and last_name(node.func) == "getattr" and len(node.args) > 1:
            found.dynamic.add(last_name(node.args[0]))
        elif isinstance(node, ast.arg) and node.annotation is not None:
            found.annotated.append((node.arg, ast.unparse(node.annotation)))
        elif isinstance(node, ast.AnnAssign):
            found.annotated.append((last_name(node.target), ast.unparse(node.annotation)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.strings.add(node.value)
        found.bound.extend((last_name(value), name) for value, name in bindings(node))
    return found


def last_name(node: ast.AST) -> str:
    """Return the name that an expression ends in: `train` of `context.spec.train`, of `self._train` and of `spec.train.items()`."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name.strip("_")
        case ast.Call(func=ast.Attribute(value=value, attr="items" | "values")) | ast.Subscript(value=value):
            return last_name(value)
        case ast.Call(args=[first, *_], func=ast.Name(id="enumerate" | "sorted" | "list" | "getattr")):
            return last_name(first)
        case ast.Call(func=called):
            return last_name(called)
    return ""


@functools.cache
def own_names(model: type[BaseModel]) -> frozenset[str]:
    """Return the names that mean a section in any file: its class's and those of the keys that hold it."""
    found = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", model.__name__).lower(), *(["spec"] if model is PipelineSpec else [])}
    for owner in SECTIONS:
        for name, field in owner.model_fields.items():
            if model in models_in(field.annotation):
                found |= {name.strip("_"), field.alias or name}
    return frozenset(found)


@functools.cache
def names_of(model: type[BaseModel], file: File) -> frozenset[str]:
    """Return the names that mean a section in a file: also what is annotated as it, and what is bound to one of them."""
    word = re.compile(rf"\b{model.__name__}\b")
    found = {*own_names(model), *(name.strip("_") for name, annotation in file.annotated if word.search(annotation))}
    while more := {name for value, name in file.bound if value in found} - found:
        found |= more
    return frozenset(found)


def bindings(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield (value, name) of what a statement binds."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from bound(target, node.value)
    elif isinstance(node, ast.For | ast.comprehension):
        targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        yield from ((node.iter, last_name(target)) for target in targets)


def bound(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, other in zip(target.elts, value.elts, strict=False):
            yield from bound(one, other)
    elif not isinstance(target, ast.Tuple):
        yield value, last_name(target)


def readers(attribute: str, model: type[BaseModel]) -> list[str]:
    """Return the files that read a key."""
    return [
        file.path
        for file in files()
        if file.accesses.get(attribute, set()) & names_of(model, file)
        or (attribute in file.strings and file.dynamic & names_of(model, file))
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "attribute", "model"), KEYS, ids=[key for key, _, _ in KEYS])
def test_key_is_read_or_listed_with_its_reason(key: str, attribute: str, model: type[BaseModel]) -> None:
    found = readers(attribute, model)
    if key in READ_BY_NAME:
        assert attribute in file_of(CHECKOUT / READ_BY_NAME[key]).accesses
    elif key in PARSE_TIME_ONLY or key in WITHOUT_READER:
        assert not found, f"{key} is read by {found}: it must leave the list of keys without reader"
    else:
        assert found, f"nothing reads {key}: let it have an effect, refuse it, or list it with the reason"


def test_every_listed_key_exists() -> None:
    assert {*READ_BY_NAME, *PARSE_TIME_ONLY, *WITHOUT_READER} <= {key for key, _, _ in KEYS}


def test_key_that_nothing_reads_is_found() -> None:
    class Placement(BaseModel):
        tenant: str

    assert readers("tenant", Placement) == []
    assert readers("spot", Placement)
