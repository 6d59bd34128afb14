"""Types of single keys: a time zone, a duration or a word, weights of classes, days of the week, a section or `auto`."""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from training.spec.scalar_types import DURATION_SCHEMA, duration_text, in_yaml, longer_than_nothing, parse_duration, refusal

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue


def _timezone(value: str) -> str:
    try:
        zoneinfo.ZoneInfo(value)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise refusal("schedule.range", f"there is no time zone {in_yaml(value)}", hint="an IANA name: UTC, Europe/Berlin") from None
    return value


TimeZone = Annotated[str, Field(max_length=64), AfterValidator(_timezone)]


def _split_end(value: Any) -> timedelta | str:
    if value in SPLIT_ENDS:
        return str(value)
    try:
        return longer_than_nothing(parse_duration(value))
    except PydanticCustomError:
        hint = "window, labels_complete, or a duration before the window's end: 14d"
        raise refusal("field.choice", f"must be {' or '.join(SPLIT_ENDS)} or a duration, got {in_yaml(value)}", hint=hint) from None


SPLIT_ENDS: Final = ("window", "labels_complete")
SplitEnd = Annotated[
    Any,
    BeforeValidator(_split_end),
    PlainSerializer(lambda value: duration_text(value) if isinstance(value, timedelta) else value, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(SPLIT_ENDS)},
                {"type": "string", "pattern": r"^(?=\d)(\d{1,6}d)?(\d{1,6}h)?(\d{1,6}m)?(\d{1,9}s)?$", "examples": ["14d"]},
            ]
        }
    ),
]


def _share_or_duration(value: Any) -> timedelta | float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1:
        return float(value)
    if isinstance(value, str | timedelta):
        return longer_than_nothing(parse_duration(value))
    hint = "write a duration such as 1d where data.split.by is time, and else a share such as 0.1"
    raise refusal("duration.invalid", f"expected a duration or a share between 0 and 1, got {in_yaml(value)}", hint=hint)


ShareOrDuration = Annotated[
    Any,
    BeforeValidator(_share_or_duration),
    PlainSerializer(lambda value: duration_text(value) if isinstance(value, timedelta) else value),
    WithJsonSchema({"anyOf": [DURATION_SCHEMA, {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}]}),
]
"""A duration, or a share of the rows."""


def _class_weight(value: Any) -> str | dict[str, float] | None:
    if value is None or value == BALANCED:
        return None if value is None else BALANCED
    hint = "write balanced, or a weight for each class: {'0': 1, '1': 5}"
    if not isinstance(value, dict) or not value:
        raise refusal("field.choice", f"must be balanced or a mapping of classes to weights, got {in_yaml(value)}", hint=hint)
    for name, weight in value.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= MAX_CLASS_WEIGHT:
            message = f"the weight of class {in_yaml(name)} must be a number from 0 to {MAX_CLASS_WEIGHT:g}, got {in_yaml(weight)}"
            raise refusal("field.range", message, hint=hint)
    if not any(value.values()):
        raise refusal("field.range", "all weights are 0: nothing could be learned", hint=hint)
    return {name: float(weight) for name, weight in value.items()}


BALANCED: Final = "balanced"
MAX_CLASS_WEIGHT: Final = 1e6
ClassWeight = Annotated[
    Any,
    BeforeValidator(_class_weight),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": [BALANCED]},
                {
                    "type": "object",
                    "minProperties": 1,
                    "additionalProperties": {"type": "number", "minimum": 0, "maximum": MAX_CLASS_WEIGHT},
                },
                {"type": "null"},
            ]
        }
    ),
]
"""`balanced`, or the weight of each class by its name or number."""
WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def _empty_days(value: Any) -> str | tuple[str, ...] | None:
    if value is None or value == "allow":
        return None if value is None else "allow"
    days = tuple(value) if isinstance(value, list | tuple) else ()
    wrong = [day for day in days if day not in WEEKDAYS]
    if wrong or not days or len(set(days)) < len(days):
        hint = f"write allow, or a list of different days of {', '.join(WEEKDAYS)}: [sat, sun]"
        raise refusal("field.choice", f"must be allow or a list of weekdays, got {in_yaml(wrong[0] if wrong else value)}", hint=hint)
    return tuple(day for day in WEEKDAYS if day in days)


EmptyDays = Annotated[
    Any,
    BeforeValidator(_empty_days),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["allow"]},
                {"type": "array", "items": {"enum": list(WEEKDAYS)}, "minItems": 1, "uniqueItems": True},
                {"type": "null"},
            ]
        }
    ),
]


AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class OrAuto:
    """Lets a key whose value is a section be `auto` too, which stays text.

    Not a union of types: its errors would name the types in the path of a key.
    """

    keys: str
    """Of the section, for the error."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        section = next(part for part in get_args(source) if isinstance(part, type) and issubclass(part, BaseModel))
        inner = handler.generate_schema(section)
        written = core_schema.wrap_serializer_function_ser_schema(
            lambda value, write: value if value == AUTO else write(value), schema=inner
        )
        return core_schema.no_info_wrap_validator_function(self._read, inner, serialization=written)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"enum": [AUTO]}, handler(schema)]}

    def _read(self, value: Any, read: Callable[[Any], Any]) -> Any:
        if isinstance(value, str) and value != AUTO:
            raise refusal("field.choice", f"must be auto or a mapping, got {in_yaml(value)}", hint=f"write auto, or {self.keys}")
        return value if value == AUTO else read(value)


@dataclass(frozen=True, slots=True)
class OrDuration:
    """Lets a key whose value is a section be a duration too: the section with that duration alone, which is written as a duration."""

    field: str
    """Of the section, for the duration."""
    keys: str
    """Of the section, for the error."""

    def __get_pydantic_core_schema__(self, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        inner = handler(source)
        written = core_schema.wrap_serializer_function_ser_schema(self._write, schema=inner)
        return core_schema.no_info_wrap_validator_function(self._read, inner, serialization=written)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [DURATION_SCHEMA, handler(schema)]}

    def _read(self, value: Any, read: Callable[[Any], Any]) -> Any:
        if isinstance(value, timedelta | str | int | float | bool):
            hint = f"write a duration such as 10m, or {self.keys}"
            try:
                return read({self.field: longer_than_nothing(parse_duration(value))})
            except PydanticCustomError as err:
                if err.type != "duration.invalid":
                    raise
                raise refusal("duration.invalid", str(err), hint=hint) from None
        return read(value)

    def _write(self, value: Any, write: Callable[[Any], Any]) -> Any:
        given = {name: part for name, part in write(value).items() if part is not None}
        return given[self.field] if set(given) == {self.field} else given
