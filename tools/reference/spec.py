"""The keys of a pipeline's YAML, from the models: type, default, unit, an example."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, TypedDict, Union, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from tools.reference.examples import EXAMPLES, UNITS
from tools.reference.markdown import code, notice, table
from training.retention.settings import Retention
from training.spec.families import trained_families
from training.spec.gate import GateDescriptor
from training.spec.models import PipelineSpec
from training.spec.sections.evaluation import BUILT_IN_GATES
from training.spec.types import Bytes, ColumnName, Day, Duration, Name, Section, Suite, TimeOfDay
from training.spec.yaml_reader import read_document

SHIPPED: Final = (
    "dags/pipelines/flight_delay.yaml",
    "dags/pipelines/search_ranking.yaml",
    "docs/examples/cancelled_orders/cancelled_orders.yaml",
)
"""Where examples are looked for, before EXAMPLES."""
MAX_EXAMPLE_CHARS: Final = 60
HEAD: Final = ("key", "type", "default", "unit", "meaning", "example")
DURATION_UNIT: Final = "in the value: d, h, m, s"
SIZE_UNIT: Final = "in the value: KiB, MiB, GiB"


Document = Mapping[str, object]
"""A pipeline's YAML, or a part of it."""


class JsonSchema(TypedDict, total=False):
    """What is read of pydantic's schema of a key."""

    type: str | list[str]
    anyOf: list[JsonSchema]
    enum: list[str | int]
    const: str | int
    items: JsonSchema
    prefixItems: list[JsonSchema]
    additionalProperties: bool | JsonSchema
    patternProperties: dict[str, JsonSchema]
    minimum: float
    maximum: float
    exclusiveMinimum: float
    exclusiveMaximum: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One key of a section."""

    section: type[Section]
    attribute: str
    field: FieldInfo

    @property
    def name(self) -> str:
        return self.field.alias or self.attribute

    @property
    def place(self) -> str:
        """`Train.epochs`, by which UNITS and EXAMPLES name it."""
        return f"{self.section.__name__}.{self.name}"


def sections(model: type[Section], path: str = "") -> Iterator[tuple[str, type[Section]]]:
    """Yield (dotted path, section) of a model and of all below it, in the order of their keys; `NAME` stands for a name of the user's."""
    yield path, model
    for key in keys_of(model):
        for inner, suffix in _sections_in(key.field.annotation):
            yield from sections(inner, f"{path}.{key.name}{suffix}".lstrip("."))


def keys_of(section: type[Section]) -> list[Key]:
    return [Key(section=section, attribute=name, field=field) for name, field in section.model_fields.items()]


def page(root: Path) -> str:
    """Return the page.

    Raises:
        ValueError: a key without a unit, a meaning or an example.
    """
    documents = [read_document((root / name).read_bytes(), name).value for name in SHIPPED]
    parts = [
        f"# Keys of a pipeline's YAML\n{notice()}\n"
        "A file of `dags/pipelines/`, named after its pipeline. Unknown keys are refused. "
        "`python -m training.spec.check FILE` reports every problem with its line, "
        "and `dags/pipelines/pipeline.schema.json` lets editors complete keys. What the keys do is explained in [data](../data.md), "
        "[promotion](../promotion.md), [tuning](../tuning.md) and [time-outs](../timeouts.md).\n\n"
        "A default of *required* means that the key has none. *none* means that it is absent unless you write it.\n"
    ]
    for path, section in sections(PipelineSpec):
        parts.append(section_text(path or "top level", section, path, documents))
    for name, descriptor in trained_families().items():
        parts.append(section_text(f"train.settings of {name}", descriptor.settings, "train.settings", _of_family(documents, name)))
    parts.append(section_text("the file of NIGHTSHIFT_RETENTION", Retention, "", []))
    return "".join([*parts, _gates()])


_APPLIES: Final = {"always": "every candidate", "champion": "a candidate beside a champion", "canary": "a candidate beside a canary"}


def _gates() -> str:
    """Return the table of gates, in the order of a decision's reasons."""
    head = "\n## Gates\nThe reasons of a decision have this order. Gates of other distributions follow (docs/extending.md).\n\n"
    head += "| gate | judges | not passed, unless `evaluate.severity` has it | turned on by |\n| --- | --- | --- | --- |\n"
    rows = [
        f"| `{name}` | {_APPLIES[gate.applies]} | {_severity(gate)} | {gate.switch.removeprefix('set ') or 'always on'} |\n"
        for name, gate in BUILT_IN_GATES.items()
    ]
    return head + "".join(rows)


def _severity(gate: GateDescriptor) -> str:
    if not gate.has_severity:
        return "`fail`, always"
    return f"as `{gate.inherits}`" if gate.inherits else f"`{gate.severity}`"


def section_text(title: str, section: type[Section], path: str, documents: Sequence[Document]) -> str:
    """Return heading, words and table of a section; `path`: where it is in the documents, in which examples are looked for."""
    words = _docstring(section)
    rows = [_row(key, path, documents) for key in keys_of(section)]
    return f"\n## {title}\n{words + chr(10) if words else ''}\n{table(HEAD, rows)}"


def _row(key: Key, path: str, documents: Sequence[Document]) -> tuple[str, ...]:
    schema = _schema(key)
    nested = list(_sections_in(key.field.annotation))
    target = f"{path}.{key.name}{nested[0][1]}".lstrip(".") if nested else ""
    type_text = f"section [{target}](#{anchor(target)})" if nested else type_of(key.field.annotation, schema)
    meaning = _meanings(key.section).get(key.attribute) or (_docstring(nested[0][0]) if nested else "")
    if not meaning:
        raise ValueError(f"{key.place} has no meaning: add a docstring below it")
    unit = "" if nested else unit_of(key, type_text)
    return (
        code(key.name),
        type_text,
        default_of(key, nested=bool(nested)),
        unit,
        meaning,
        "" if nested else code(example_of(key, path, documents)),
    )


def anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub and Python-Markdown's toc make it of these titles."""
    kept = "".join(char for char in title.lower() if char.isalnum() or char in " _-")
    return kept.replace(" ", "-")


def type_of(annotation: object, schema: JsonSchema) -> str:
    """Return what a value must be, in words."""
    for pattern, words in _KINDS:
        if _same(schema, pattern):
            return words
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(type_of(None, part) for part in schema["anyOf"] if part.get("type") != "null"))
    if "enum" in schema or "const" in schema:
        return ", ".join(code(str(value)) for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items", {})
        if "prefixItems" in schema:
            return f"list of {len(schema['prefixItems'])} numbers"
        return f"list of {type_of(None, items)}"
    if kind == "object":
        values = schema.get("additionalProperties") or next(iter(schema.get("patternProperties", {}).values()), None) or {}
        return f"mapping of names to {type_of(None, values) if isinstance(values, dict) else 'values'}"
    if isinstance(kind, list):
        return "text, number or boolean" if "array" not in kind else "text, number, boolean, null or a list of them"
    return _SIMPLE.get(str(kind), "value") + _range(schema)


_SIMPLE: Final = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}


def _range(schema: JsonSchema) -> str:
    low = [(">=", schema.get("minimum")), (">", schema.get("exclusiveMinimum"))]
    high = [("<=", schema.get("maximum")), ("<", schema.get("exclusiveMaximum"))]
    bounds = [next((f"{sign} {_number(bound)}" for sign, bound in side if bound is not None), "") for side in (low, high)]
    return f", {' and '.join(filter(None, bounds))}" if any(bounds) else ""


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _same(schema: JsonSchema, kind: Mapping[str, object]) -> bool:
    return all(schema.get(key) == value for key, value in kind.items())


def _kind(annotation: Any, words: str) -> tuple[Mapping[str, object], str]:
    schema = TypeAdapter(annotation).json_schema()
    return {key: schema[key] for key in ("type", "pattern", "format") if key in schema}, words


_KINDS: Final = (
    _kind(Duration, "duration"),
    _kind(Bytes, "size"),
    _kind(TimeOfDay, "time of day"),
    _kind(Day, "day"),
    _kind(Name, "name"),
    _kind(ColumnName, "column"),
    _kind(Suite, "suite"),
)


def unit_of(key: Key, type_text: str) -> str:
    """Return the unit of a value; empty where it has none, as texts.

    Raises:
        ValueError: a number without an entry in UNITS.
    """
    if type_text.startswith("duration") or " or duration" in type_text:
        return DURATION_UNIT
    if type_text == "size":
        return SIZE_UNIT
    if not _NUMERIC.match(type_text):
        return ""
    if key.place not in UNITS:
        raise ValueError(f"{key.place} is a number: add its unit to tools/reference/examples.py")
    return UNITS[key.place]


_NUMERIC: Final = re.compile(r"(mapping of names to |list of (\d+ )?)?(integer|number)")


def default_of(key: Key, *, nested: bool) -> str:
    if key.field.is_required():
        return "*required*"
    value = key.field.get_default(call_default_factory=True)
    if value is None:
        return "*none*"
    if nested:
        if isinstance(value, Section):
            return "its keys' defaults"
        # Of a section that can be written as one value.
        return code(value) if isinstance(value, str) and value else "empty"
    return code(_yaml(value)) if value not in ((), {}, "") else "empty"


def example_of(key: Key, path: str, documents: Sequence[Document]) -> str:
    """Return `key: value`: of a shipped pipeline, of EXAMPLES, or with the default.

    Raises:
        ValueError: there is none.
    """
    if key.place in EXAMPLES:
        return f"{key.name}: {EXAMPLES[key.place]}"
    for document in documents:
        for holder in _at(document, path.split(".") if path else []):
            if key.name in holder and len(text := _yaml(holder[key.name])) <= MAX_EXAMPLE_CHARS:
                return f"{key.name}: {text}"
    default = None if key.field.is_required() else key.field.get_default(call_default_factory=True)
    if default in (None, (), {}, ""):
        raise ValueError(f"{key.place} has no example: add one to tools/reference/examples.py")
    return f"{key.name}: {_yaml(default)}"


def _at(value: object, path: list[str]) -> Iterator[Document]:
    """Yield the mappings at `path`; `NAME` is every key, and a list every item."""
    if isinstance(value, list):
        for item in value:
            yield from _at(item, path)
    elif isinstance(value, dict) and not path:
        yield value
    elif isinstance(value, dict):
        for inner in value.values() if path[0] == "NAME" else [value[path[0]]] if path[0] in value else []:
            yield from _at(inner, path[1:])


def _of_family(documents: Sequence[Document], name: str) -> list[Document]:
    return [document for document in documents for train in _at(document, ["train"]) if train["model"] == name]


def _schema(key: Key) -> JsonSchema:
    schema: JsonSchema = key.section.model_json_schema(by_alias=True)["properties"][key.name]
    return schema


def _sections_in(annotation: Any) -> Iterator[tuple[type[Section], str]]:
    """Yield the sections that a key holds, with what follows the key in their path."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation, ""
    elif get_origin(annotation) is Annotated:
        yield from _sections_in(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _sections_in(part)
    elif get_origin(annotation) is dict:
        yield from ((inner, f".NAME{suffix}") for inner, suffix in _sections_in(get_args(annotation)[1]))
    elif get_origin(annotation) is tuple:
        yield from _sections_in(get_args(annotation)[0])


_PLAIN: Final = re.compile(r"[A-Za-z_][\w./@-]*|\d+[dhms]")


def _yaml(value: Any) -> str:
    """Return a value as YAML in one line."""
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value not in ("yes", "no", "true", "false", "null")
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_yaml(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_yaml, value))}]"
    return json.dumps(value)


def _docstring(section: type[Section]) -> str:
    return "" if section.__doc__ is None or section.__doc__ == Section.__doc__ else " ".join(section.__doc__.split())


def _meanings(section: type[Section]) -> dict[str, str]:
    """Return attribute to the docstring below it, inherited ones included."""
    found: dict[str, str] = {}
    for kind in reversed([kind for kind in section.__mro__ if issubclass(kind, Section) and kind is not Section]):
        (body,) = (node.body for node in ast.parse(textwrap.dedent(inspect.getsource(kind))).body if isinstance(node, ast.ClassDef))
        for node, below in itertools.pairwise(body):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(below, ast.Expr):
                if isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
                    found[node.target.id] = " ".join(below.value.value.split())
    return found
