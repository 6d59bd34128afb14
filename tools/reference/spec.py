"""The keys of a pipeline's YAML and of placement.yaml, from the models: type, default, unit, an example."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from nightshift.execution.kubernetes.config import VARIABLE, Cluster
from tools.reference.markdown import NOTICE, code, table
from training.retention.settings import Retention
from training.spec.descriptors.families import trained_families
from training.spec.descriptors.gate_descriptor import GateDescriptor
from training.spec.pipeline_spec import PipelineSpec
from training.spec.reader.yaml import read_document
from training.spec.scalar_types import Bytes, ColumnName, Day, Duration, Name, Section, Suite, TimeOfDay
from training.spec.sections.evaluation import BUILT_IN_GATES

PIPELINES: Final = (
    "dags/pipelines/flight_delay.yaml",
    "dags/pipelines/search_ranking.yaml",
    "docs/examples/cancelled_orders/cancelled_orders.yaml",
)
PLACEMENT: Final = "docker/kubernetes/placement.yaml"
BLOCK: Final = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""Of a page of docs/: a part of a pipeline, or of another file."""
MAX_EXAMPLE_CHARS: Final = 60
HEAD: Final = ("key", "type", "default", "unit", "meaning", "example")
DURATION_UNIT: Final = "in the value: d, h, m, s"
SIZE_UNIT: Final = "in the value: KiB, MiB, GiB"
SHARE: Final = "share, 0 to 1"
DEFAULTS: Final = "A default of *required* means that the key has none. *none* means that it is absent unless you write it.\n"

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
class Words:
    """The parts of the docstring below a key."""

    meaning: str = ""
    unit: str = ""
    """Of a number; empty: a share, if it goes from 0 to 1."""
    example: str = ""
    """A value as it is written in YAML; empty: one of a shipped file or of a page of docs/."""


_WORDS: Final = re.compile(r"(?P<meaning>.*?)(?: Unit: (?P<unit>[^.`]+)\.)?(?: Example: `(?P<example>[^`]+)`\.)?")


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
        """`Train.epochs`, by which errors name it."""
        return f"{self.section.__name__}.{self.name}"

    @property
    def default(self) -> Any:
        """None where it has none."""
        return None if self.field.is_required() else self.field.get_default(call_default_factory=True)

    @property
    def words(self) -> Words:
        """What the docstring below it says; of a key without one, nothing."""
        match = _WORDS.fullmatch(_docstrings(self.section).get(self.attribute, ""))
        return Words(**match.groupdict(default="")) if match else Words()

    def schema(self) -> JsonSchema:
        found: JsonSchema = self.section.model_json_schema(by_alias=True)["properties"][self.name]
        return found


def sections(model: type[Section], path: str = "") -> Iterator[tuple[str, type[Section]]]:
    """Yield (dotted path, section) of a model and of all below it, in the order of their keys; `NAME` stands for a name of the user's."""
    yield path, model
    for key in keys_of(model):
        for inner, suffix in _sections_in(key.field.annotation):
            yield from sections(inner, f"{path}.{key.name}{suffix}".lstrip("."))


def keys_of(section: type[Section]) -> list[Key]:
    return [Key(section=section, attribute=name, field=field) for name, field in section.model_fields.items()]


def page(root: Path) -> str:
    """Return the page of a pipeline's keys.

    Raises:
        ValueError: a key without a unit, a meaning or an example.
    """
    documents = _documents(root, PIPELINES)
    parts = [
        f"# Keys of a pipeline's YAML\n{NOTICE}\n"
        "A file of `dags/pipelines/`, named after its pipeline. Unknown keys are refused. "
        "`python -m training.spec.check FILE` reports every problem with its line, "
        "and `dags/pipelines/pipeline.schema.json` lets editors complete keys. What the keys do is explained in [data](../data.md), "
        f"[promotion](../promotion.md), [tuning](../tuning.md) and [time-outs](../timeouts.md).\n\n{DEFAULTS}"
    ]
    parts += [_section_text(path or "top level", section, path, documents) for path, section in sections(PipelineSpec)]
    for name, descriptor in trained_families().items():
        own = [document for document in documents for train in _at(document, ["train"]) if train.get("model") == name]
        parts.append(_section_text(f"train.settings of {name}", descriptor.settings, "train.settings", own))
    parts.append(_section_text("the file of NIGHTSHIFT_RETENTION", Retention, "", []))
    return "".join([*parts, _gates()])


def placement_page(root: Path) -> str:
    """Return the page of the file that describes a cluster; raises as `page`."""
    documents = _documents(root, (PLACEMENT,))
    head = (
        f"# Keys of placement.yaml\n{NOTICE}\n"
        f"The file that `{VARIABLE}` names describes a cluster ([Kubernetes](../kubernetes.md)). Begin with a copy of `{PLACEMENT}`. "
        f"Unknown keys are refused. `nightshift doctor backend` reports every problem with its line.\n\n{DEFAULTS}"
    )
    return head + "".join(_section_text(path or "top level", section, path, documents) for path, section in sections(Cluster))


def _documents(root: Path, shipped: Sequence[str]) -> list[Document]:
    """Return where examples are looked for: files that are shipped, then what the pages of docs/ show."""
    texts = [(root / name).read_bytes() for name in shipped]
    texts += [text.encode() for path in sorted((root / "docs").glob("*.md")) for text in BLOCK.findall(path.read_text(encoding="utf-8"))]
    found = [read_document(text, "an example").value for text in texts]
    return [document for document in found if isinstance(document, dict)]


_APPLIES: Final = {"always": "every candidate", "champion": "a candidate beside a champion", "canary": "a candidate beside a canary"}


def _gates() -> str:
    """Return the table of gates, in the order of a decision's reasons."""
    text = "\n## Gates\nThe reasons of a decision have this order. Gates of other distributions follow (docs/extending.md).\n\n"
    head = ("gate", "judges", "not passed, unless `evaluate.severity` has it", "turned on by")
    rows = [
        (code(name), _APPLIES[gate.applies], _severity(gate), gate.switch.removeprefix("set ") or "always on")
        for name, gate in BUILT_IN_GATES.items()
    ]
    return text + table(head, rows)


def _severity(gate: GateDescriptor) -> str:
    if not gate.has_severity:
        return "`fail`, always"
    return f"as `{gate.inherits}`" if gate.inherits else f"`{gate.severity}`"


def _section_text(title: str, section: type[Section], path: str, documents: Sequence[Document]) -> str:
    """Return heading, words and table of a section; `path`: where it is in the documents, in which examples are looked for."""
    words = _docstring(section)
    rows = [_row(key, path, documents) for key in keys_of(section)]
    return f"\n## {title}\n{words + chr(10) if words else ''}\n{table(HEAD, rows)}"


def _row(key: Key, path: str, documents: Sequence[Document]) -> tuple[str, ...]:
    nested = list(_sections_in(key.field.annotation))
    meaning = key.words.meaning or (_docstring(nested[0][0]) if nested else "")
    if not meaning:
        raise ValueError(f"{key.place} has no meaning: add a docstring below it")
    if nested:
        target = f"{path}.{key.name}{nested[0][1]}".lstrip(".")
        return code(key.name), f"section [{target}](#{anchor(target)})", _default_of(key, nested=True), "", meaning, ""
    schema = key.schema()
    type_text = _type_of(schema)
    example = code(example_of(key, path, documents))
    return code(key.name), type_text, _default_of(key, nested=False), _unit_of(key, schema, type_text), meaning, example


def anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub and Python-Markdown's toc make it of these titles."""
    kept = "".join(char for char in title.lower() if char.isalnum() or char in " _-")
    return kept.replace(" ", "-")


_KINDS: Final = [
    ({name: value for name, value in TypeAdapter[object](kind).json_schema().items() if name in ("type", "pattern", "format")}, words)
    for kind, words in (
        (Duration, "duration"),
        (Bytes, "size"),
        (TimeOfDay, "time of day"),
        (Day, "day"),
        (Name, "name"),
        (ColumnName, "column"),
        (Suite, "suite"),
    )
]
_SIMPLE: Final = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}


def _type_of(schema: JsonSchema) -> str:
    """Return what a value must be, in words."""
    for pattern, words in _KINDS:
        if pattern.items() <= schema.items():
            return words
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type_of(part) for part in schema["anyOf"] if part.get("type") != "null"))
    if "enum" in schema or "const" in schema:
        return ", ".join(code(str(value)) for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "array":
        return (
            f"list of {len(schema['prefixItems'])} numbers" if "prefixItems" in schema else f"list of {_type_of(schema.get('items', {}))}"
        )
    if kind == "object":
        values = schema.get("additionalProperties") or next(iter(schema.get("patternProperties", {}).values()), None) or {}
        return f"mapping of names to {_type_of(values) if isinstance(values, dict) else 'values'}"
    if isinstance(kind, list):
        return "text, number or boolean" if "array" not in kind else "text, number, boolean, null or a list of them"
    return _SIMPLE.get(str(kind), "value") + _range(schema)


def _range(schema: JsonSchema) -> str:
    low = [(">=", schema.get("minimum")), (">", schema.get("exclusiveMinimum"))]
    high = [("<=", schema.get("maximum")), ("<", schema.get("exclusiveMaximum"))]
    bounds = [f"{sign} {int(bound):,}" if bound == int(bound) else f"{sign} {bound:g}" for sign, bound in low + high if bound is not None]
    return f", {' and '.join(bounds)}" if bounds else ""


_NUMERIC: Final = re.compile(r"(mapping of names to |list of (\d+ )?)?(integer|number)")


def _unit_of(key: Key, schema: JsonSchema, type_text: str) -> str:
    """Return the unit of a value; empty where it has none, as texts.

    Raises:
        ValueError: a number without a unit.
    """
    if type_text.startswith("duration") or " or duration" in type_text:
        return DURATION_UNIT
    if type_text == "size":
        return SIZE_UNIT
    if not _NUMERIC.match(type_text):
        return ""
    if key.words.unit:
        return key.words.unit
    if re.fullmatch(r"number, >=? 0 and <=? 1", type_text):
        return SHARE
    raise ValueError(f"{key.place} is a number: add its unit to the docstring below it, `Unit: rows.`")


def _default_of(key: Key, *, nested: bool) -> str:
    if key.field.is_required():
        return "*required*"
    if key.default is None:
        return "*none*"
    if isinstance(key.default, Section):
        return "its keys' defaults"
    # A section that can be written as one value may have that as its default.
    is_empty = key.default in ((), {}, "") or (nested and not isinstance(key.default, str))
    return "empty" if is_empty else code(_yaml(key.default))


def example_of(key: Key, path: str, documents: Sequence[Document]) -> str:
    """Return `key: value`: of the docstring below it, of a document, another choice than the default, or that.

    Raises:
        ValueError: there is none.
    """
    if key.words.example:
        return f"{key.name}: {key.words.example}"
    for holder in (holder for document in documents for holder in _at(document, path.split(".") if path else [])):
        if key.name in holder and len(text := _yaml(holder[key.name])) <= MAX_EXAMPLE_CHARS:
            return f"{key.name}: {text}"
    choices = [value for value in _choices(key.schema()) if value != key.default]
    value = choices[0] if choices else key.default
    if value in (None, (), {}, ""):
        raise ValueError(f"{key.place} has no example: add one to the docstring below it, `Example: `5`.`")
    return f"{key.name}: {_yaml(value)}"


def _choices(schema: JsonSchema) -> list[str | int]:
    """Return the values that a key may have, where they are listed."""
    parts = [value for part in schema.get("anyOf", []) for value in _choices(part)]
    return [*schema.get("enum", []), *parts, *([True, False] if schema.get("type") == "boolean" else [])]


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


def _sections_in(annotation: object, suffix: str = "") -> Iterator[tuple[type[Section], str]]:
    """Yield the sections that a key holds, with what follows the key in their path."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation, suffix
    for part in get_args(annotation):
        yield from _sections_in(part, f"{suffix}.NAME" if get_origin(annotation) is dict else suffix)


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


@functools.cache
def _docstrings(section: type[Section]) -> dict[str, str]:
    """Return attribute to the docstring below it, inherited ones included."""
    found: dict[str, str] = {}
    for kind in reversed([kind for kind in section.__mro__ if issubclass(kind, Section) and kind is not Section]):
        (body,) = (node.body for node in ast.parse(textwrap.dedent(inspect.getsource(kind))).body if isinstance(node, ast.ClassDef))
        for node, below in itertools.pairwise(body):
            if isinstance(node, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found[ast.unparse(node.target)] = " ".join(str(below.value.value).split())
    return found
