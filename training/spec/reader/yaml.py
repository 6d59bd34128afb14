"""Strict YAML 1.2: bytes to plain values, with the line and column of every key, and every problem of the text at once.

libyaml's events (PyYAML's C parser) with our own scalars on top. Measured on flight_delay.yaml: 0.6 ms for the events, against
23 ms for ruamel.yaml's nodes, which are pure Python: 200 pipelines would take 4.6 s of every parse of the DAG folder. PyYAML's
own constructors and resolvers (YAML 1.1: `no` is false, `010` is 8, `1e-3` is text) are never used, nothing is constructed
from a tag, and events are read in a loop, so that depth costs no stack. JSON is read too, being YAML 1.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from training.contracts import Scalar
from training.errors import Problem, SpecError, shown

MAX_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 20
MAX_DIGITS: Final = 300

Path = tuple[str | int, ...]
"""Keys and list positions from the root."""

_CONSTANTS: Final[Mapping[str, Scalar]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_BOMS: Final = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


@dataclass(frozen=True, slots=True)
class Mark:
    line: int
    """1-based."""
    column: int
    """1-based."""


@dataclass(slots=True)
class Document:
    """One mapping, where each of its keys stands, and what is wrong with the text although it could be read."""

    value: dict[str, object] = field(default_factory=dict)
    marks: dict[Path, Mark] = field(default_factory=dict)
    """Path to its key (for a list's item: to the item)."""
    problems: list[Problem] = field(default_factory=list)
    holes: set[Path] = field(default_factory=set)
    """Paths whose value was refused here: nothing more is to be said of them."""

    def mark(self, path: Path) -> Mark | None:
        """Return where `path` stands, or the nearest of its parents that is there."""
        for length in range(len(path), 0, -1):
            if (found := self.marks.get(path[:length])) is not None:
                return found
        return self.marks.get(())

    def is_hole(self, path: Path) -> bool:
        return any(path[:length] in self.holes for length in range(len(path) + 1))


def read_document(text: bytes, source: str) -> Document:
    """Read one mapping.

    Args:
        text: UTF-8, with or without a byte order mark, at most 64 KiB, nested at most 20 deep.
        source: what to call it in errors.

    Raises:
        SpecError: `spec.encoding`, `spec.too_large`, `spec.too_deep`, `spec.syntax` or `spec.shape`: there is nothing more to read.
            What is wrong but leaves the rest readable (`spec.duplicate_key`, `spec.alias`, `spec.tag`, ...) is in the document.
    """
    builder = _Builder()
    try:
        builder.read(_decoded(text))
    except _Unreadable as err:
        raise SpecError(source, [*builder.document.problems, err.problem]) from err.__cause__
    return builder.document


def scalar(text: str) -> Scalar:
    """Return what an unquoted scalar means in YAML 1.2's core schema; a number too large for a float is infinite."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) > MAX_DIGITS and _INTEGER.fullmatch(text):
        return float(text)
    if len(text) > MAX_DIGITS and _BASED.fullmatch(text):
        # Python writes no integer of more than 4,300 digits, not even for a message.
        return float("inf")
    if _INTEGER.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


class _Unreadable(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def _fatal(code: str, message: str, mark: Any = None, *, hint: str = "") -> _Unreadable:
    line, column = (None, None) if mark is None else (mark.line + 1, mark.column + 1)
    return _Unreadable(Problem(code=code, message=message, hint=hint, line=line, column=column))


def _decoded(text: bytes) -> str:
    if len(text) > MAX_BYTES:
        raise _fatal(
            "spec.too_large", f"has {len(text)} bytes, at most {MAX_BYTES} are read", hint="data belongs in the source, not in the YAML"
        )
    hint = "save the file as UTF-8"
    if text.startswith(_BOMS):
        raise _fatal("spec.encoding", "is UTF-16 or UTF-32, not UTF-8", hint=hint)
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        line = text.count(b"\n", 0, err.start) + 1
        problem = Problem(code="spec.encoding", message=f"byte 0x{text[err.start]:02x} is not UTF-8", hint=hint, line=line)
        raise _Unreadable(problem) from err
    found = CONTROL.search(decoded)
    if found is not None:
        line = decoded.count("\n", 0, found.start()) + 1
        message = f"has the control character {shown(found[0])}"
        raise _Unreadable(Problem(code="spec.encoding", message=message, hint=hint, line=line))
    return decoded


@dataclass(slots=True)
class _Frame:
    """A collection that is being read."""

    path: Path
    container: Any
    key: str | int | None
    """Where the next value goes; None in a mapping: a key comes next."""
    discards: bool = False
    """The key stood there before: the value that comes is dropped."""


def _below(frame: _Frame) -> Path:
    """Return the path of the value that comes; a dropped value gets a separate one, or its keys would seem to occur twice."""
    key = "" if frame.key is None else frame.key
    return (*frame.path, f"{key} (again)" if frame.discards else key)


class _Builder:
    """Puts events together. Each event type has its own method."""

    def __init__(self) -> None:
        self.document = Document()
        self._stack: list[_Frame] = []
        self._num_documents = 0

    def read(self, text: str) -> None:
        root_seen = False
        for event in _events(text):
            if isinstance(event, yaml.DocumentStartEvent):
                self._num_documents += 1
                if self._num_documents > 1:
                    raise _fatal(
                        "spec.shape", "expected one mapping, found a second document", event.start_mark, hint="one file per pipeline"
                    )
            elif isinstance(event, yaml.NodeEvent):
                if not self._stack and not isinstance(event, yaml.MappingStartEvent):
                    raise _fatal("spec.shape", f"expected one mapping, found {_what(event)}", event.start_mark, hint="begin with `name: …`")
                root_seen = True
                self._node(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._stack.pop()
        if not root_seen:
            raise _fatal("spec.shape", "expected one mapping, found nothing", hint="begin with `name: …`")

    def _node(self, event: Any) -> None:
        frame = self._stack[-1] if self._stack else None
        if frame is not None and frame.key is None:
            self._key(frame, event)
            return
        path: Path = () if frame is None else _below(frame)
        if frame is None or isinstance(frame.key, int):
            self.document.marks[path] = Mark(event.start_mark.line + 1, event.start_mark.column + 1)
        value, refused = self._value(event, path)
        if frame is None:
            self.document.value = value
        else:
            self._put(frame, value)
            if refused:
                self.document.holes.add(path)
        if isinstance(value, dict | list):
            self._open(event, path, value)

    def _value(self, event: Any, path: Path) -> tuple[Any, bool]:
        """Return the event's value (a collection still empty), and whether it was refused."""
        if isinstance(event, yaml.AliasEvent):
            self._note(
                "spec.alias", f"an alias, *{event.anchor}: each value is written where it is used", event, path, "write the value out"
            )
            return None, True
        if event.anchor is not None:
            self._note("spec.alias", f"an anchor, &{event.anchor}: each value is written where it is used", event, path, "take it away")
        if event.tag is not None:
            self._note("spec.tag", f"the tag {shown(event.tag)}: a value's type follows from its spelling", event, path, "take it away")
        if isinstance(event, yaml.MappingStartEvent):
            return {}, False
        if isinstance(event, yaml.SequenceStartEvent):
            return [], False
        if event.tag is not None:
            return event.value, True
        if not event.style:
            return scalar(event.value), False
        if CONTROL.search(event.value):
            self._note("spec.encoding", f"has a control character: {shown(event.value)}", event, path, "take it away")
            return event.value, True
        return event.value, False

    def _key(self, frame: _Frame, event: Any) -> None:
        if not isinstance(event, yaml.ScalarEvent):
            raise _fatal("spec.shape", f"a key must be text, found {_what(event)}", event.start_mark)
        name, mark = event.value, Mark(event.start_mark.line + 1, event.start_mark.column + 1)
        path = (*frame.path, name)
        first = self.document.marks.get(path)
        frame.key, frame.discards = name, first is not None
        if first is not None:
            message = f"key {shown(name)} is here and in line {first.line}"
            self._note("spec.duplicate_key", message, event, path, "keep one of the two")
            return
        self.document.marks[path] = mark
        if event.anchor is not None:
            self._note("spec.alias", f"an anchor, &{event.anchor}: each value is written where it is used", event, path, "take it away")
        if event.tag is not None:
            self._note("spec.tag", f"the tag {shown(event.tag)}: a value's type follows from its spelling", event, path, "take it away")
        elif not event.style and not isinstance(scalar(name), str):
            self._note("spec.type", f"a key must be text, found {name or 'nothing'}", event, path, f"quote it: '{name}'")

    def _put(self, frame: _Frame, value: Any) -> None:
        if isinstance(frame.container, list):
            frame.container.append(value)
            frame.key = len(frame.container)
            return
        if not frame.discards:
            frame.container[frame.key] = value
        frame.key = None

    def _open(self, event: Any, path: Path, container: Any) -> None:
        if len(self._stack) >= MAX_DEPTH:
            raise _fatal("spec.too_deep", f"is nested more than {MAX_DEPTH} deep", event.start_mark)
        self._stack.append(_Frame(path, container, 0 if isinstance(container, list) else None))

    def _note(self, code: str, message: str, event: Any, path: Path, hint: str) -> None:
        mark = event.start_mark
        name = dotted(path)
        self.document.problems.append(
            Problem(code=code, message=message, hint=hint, field=name, line=mark.line + 1, column=mark.column + 1)
        )


def dotted(path: Path) -> str:
    """Return a path as people write it: `data.features[0].uri`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text if len(text) <= 200 else text[:199] + "…"


def _events(text: str) -> Iterator[Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        yield from yaml.parse(text, Loader=loader)
    except yaml.reader.ReaderError as err:
        raise _fatal("spec.encoding", f"has a character that YAML does not allow: {err.reason}") from err
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark or err.context_mark
        problem = str(err.problem)
        if "escape" in problem and "Unicode" in problem:
            raise _fatal("spec.encoding", problem, mark, hint="surrogates are not characters; write the character itself") from err
        line = text.splitlines()[mark.line] if mark is not None and mark.line < len(text.splitlines()) else ""
        hint = "indent with spaces, not with tabs" if "\t" in line else ""
        context = f", {err.context}" if err.context else ""
        raise _fatal("spec.syntax", f"{problem}{context}", mark, hint=hint) from err


def _what(event: Any) -> str:
    if isinstance(event, yaml.SequenceStartEvent):
        return "a list"
    if isinstance(event, yaml.MappingStartEvent):
        return "a mapping"
    if isinstance(event, yaml.AliasEvent):
        return "an alias"
    return "nothing" if event.value == "" else f"only {shown(event.value)}"
