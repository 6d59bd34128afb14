"""What pydantic found, in our words: a stable code, the value, the place in the file, the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from training.errors import Problem, shown
from training.spec.reader.yaml import Document, Path, dotted
from training.spec.scalar_types import in_yaml

Context = Mapping[str, object]
"""Of one of pydantic's errors: what its kind of error says of the rule that was broken."""

_EXPECTED: Final[Mapping[str, str]] = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
}
_BOUNDS: Final[Mapping[str, tuple[str, str]]] = {
    "greater_than": ("must be greater than", "gt"),
    "greater_than_equal": ("must be at least", "ge"),
    "less_than": ("must be less than", "lt"),
    "less_than_equal": ("must be at most", "le"),
}
_SIZES: Final = frozenset({"string_too_short", "string_too_long", "too_short", "too_long"})
_PLACEMENT: Final = ("train", "placement")
_RENAMED: Final[Mapping[str, str]] = {"processes_per_node": "processes"}


def problems_of(error: ValidationError, root: type[BaseModel], document: Document, *, prefix: Path = ()) -> list[Problem]:
    """Return a `Problem` for each of pydantic's errors.

    Args:
        root: the model that refused; its keys are offered for unknown ones.
        document: where the keys stand; what was refused in the text already is left out.
        prefix: path of what `root` was given.
    """
    found = []
    for details in error.errors(include_url=False, include_context=True):
        path: Path = (*prefix, *(part for part in details["loc"] if part != "[key]"))
        if not document.is_hole(path):
            found.append(_problem(details, path, root, document, len(prefix)))
    return found


def problem_at(document: Document, path: Path, code: str, message: str, *, hint: str = "") -> Problem:
    """Return a problem with the place of `path`."""
    mark = document.mark(path)
    line, column = (None, None) if mark is None else (mark.line, mark.column)
    return Problem(code=code, message=message, hint=hint, field=dotted(path), line=line, column=column)


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Sort by place in the file."""
    return sorted(problems, key=lambda p: (p.line or 0, p.column or 0, p.field, p.code))


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint with the key that was probably meant, or with all there are."""
    names = sorted(known)
    close = difflib.get_close_matches(word[:80], names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    listed = ", ".join(names[:30])
    return f"known: {listed}{', …' if len(names) > 30 else ''}" if names else ""


def _problem(details: ErrorDetails, path: Path, root: type[BaseModel], document: Document, num_prefix: int) -> Problem:
    code, message, hint = _words(details, path, root, num_prefix)
    sizes = path[:2] == _PLACEMENT or path[:1] == ("resources",)
    if sizes and len(path) > 2 and code.startswith("field."):
        code = f"resources.{_RENAMED.get(str(path[2]), path[2])}"
    return problem_at(document, path, code, message, hint=hint)


def _words(details: ErrorDetails, path: Path, root: type[BaseModel], num_prefix: int) -> tuple[str, str, str]:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if "." in kind:
        return kind, str(context["message"]), str(context["hint"])
    if kind == "extra_forbidden":
        known = _keys_at(root, path[num_prefix:-1])
        return "spec.unknown_key", f"unknown key {shown(path[-1])}", nearest(str(path[-1]), known)
    if kind == "missing":
        return "field.missing", f"the key {path[-1]} is missing", ""
    if kind in _EXPECTED:
        return _type_words(kind, value)
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        return "field.range", f"{words} {_number(context[name])}, got {in_yaml(value)}", ""
    if kind in _OTHERS:
        return _OTHERS[kind](kind, value, context)
    return "field.type", f"{in_yaml(value)} is refused: {kind.replace('_', ' ')}", ""


def _number(bound: float) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _type_words(kind: str, value: object) -> tuple[str, str, str]:
    expected = _EXPECTED[kind]
    if isinstance(value, float) and expected == "a whole number":
        return "field.range", f"must be a whole number, got {in_yaml(value)}", ""
    hint = ""
    if expected == "text" and isinstance(value, int | float):
        hint = "quote it"
    elif expected in ("a number", "a whole number", "true or false") and isinstance(value, str):
        hint = "text is not read as anything else; numbers are written 0.1, 1e-3 or 1000, without quotes"
    got = "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else in_yaml(value)
    return "field.type", f"expected {expected}, got {got}", hint


_SAME_TYPE: Final = {
    "float64": "double",
    "float32": "float",
    "bool": "boolean",
    "str": "string",
    "varchar": "string",
    "text": "string",
    "bigint": "int64",
    "integer": "int32",
    "datetime": "timestamp",
}
"""Types of columns by the names that pandas and SQL give them; the spelling of `float64` is nearer to `float`."""


def _choice(_kind: str, value: object, context: Context) -> tuple[str, str, str]:
    choices = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
    same = _SAME_TYPE.get(str(value).lower(), "")
    close = [same] if same in choices else difflib.get_close_matches(str(value)[:80], choices, n=1)
    return "field.choice", f"must be {context['expected']}, got {in_yaml(value)}", f"did you mean {close[0]}?" if close else ""


def _size(kind: str, value: object, context: Context) -> tuple[str, str, str]:
    unit = "characters" if kind.startswith("string") else "entries"
    size = len(value) if isinstance(value, Sized) else 0
    limit = f"at least {context['min_length']}" if kind.endswith("short") else f"at most {context['max_length']}"
    return "field.range", f"must have {limit} {unit}, got {size}", ""


_OTHERS: Final[Mapping[str, Callable[[str, object, Context], tuple[str, str, str]]]] = {
    "literal_error": _choice,
    **dict.fromkeys(_SIZES, _size),
    "finite_number": lambda _kind, value, _context: ("field.range", f"must be finite, got {in_yaml(value)}", ""),
    "int_parsing_size": lambda _kind, value, _context: ("field.range", f"is too large: {in_yaml(value)}", ""),
    "string_pattern_mismatch": lambda _, value, given: ("field.pattern", f"{in_yaml(value)} does not have the form {given['pattern']}", ""),
}


def _keys_at(root: type[BaseModel], path: Path) -> list[str]:
    """Return the keys of the model at `path` below `root`."""
    annotation: Any = root
    for part in path:
        model = _model_in(annotation)
        if model is None or not isinstance(part, str):
            continue
        by_key = {field.alias or name: field for name, field in model.model_fields.items()}
        if part in by_key:
            annotation = by_key[part].annotation
        # A key of a mapping of models, `columns.price`: the model is that of the mapping's values.
    model = _model_in(annotation)
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part)) is not None), None)
