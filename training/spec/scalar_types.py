"""Words of the YAML that are more than text: durations, sizes, times of day, days, names.

Each is read from one spelling or several, and written back as the one that equal values share.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from training.contracts import Instant, instant_of, instant_text
from training.errors import shown
from training.sanitizing import CONTROLS

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue

NAME_RULE: Final = "[a-z0-9][a-z0-9._-]{0,62}"
DIGEST_RULE: Final = "[0-9a-f]{64}"
COLUMN_RULE: Final = r"[A-Za-z_][A-Za-z0-9_]{0,127}"
SUITE_RULE: Final = r"[a-z0-9][a-z0-9_-]{0,62}(/[a-z0-9][a-z0-9_-]{0,62}){0,3}"
MAX_DURATION: Final = timedelta(days=36500)

_DURATION_UNITS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?=\d)(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s)?", re.ASCII)
_SIZE_UNITS: Final = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE_SPELLINGS: Final = {
    **_SIZE_UNITS,
    **{"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40},
    **{"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
}
_SIZE = re.compile(r"(\d{1,15}) ?([KMGT]i?B?|B)", re.ASCII)
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_NOT_IN_A_LINE = re.compile(f"[{CONTROLS}]")
_NOT_IN_A_TEXT = re.compile(rf"(?![\n\t])[{CONTROLS}]")
Item = TypeVar("Item")
FROZEN: Final = "frozen"
"""Validation context of a spec that was accepted before: the distribution that adds a source's kind may be missing where it is read."""


InstantText = Annotated[
    Instant,
    BeforeValidator(lambda value: value if isinstance(value, datetime) else instant_of(value)),
    PlainSerializer(instant_text, return_type=str, when_used="json"),
]
"""An instant of a record: text in JSON, the same text that was read."""


class Section(BaseModel):
    """A mapping of the YAML: strict, frozen, no unknown keys."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


def in_yaml(value: object) -> str:
    """Render a user's value in the YAML's own words, cut at 80 characters."""
    return {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else shown(value)


def refusal(code: str, message: str, *, hint: str = "") -> PydanticCustomError:
    """Return the exception for a validator, which keeps `code`, `message` and `hint` unchanged."""
    # Braces of a user's value would be read as a template.
    return PydanticCustomError(code, "{message}", {"message": message, "hint": hint})


def parse_duration(value: Any) -> timedelta:
    """Read `30d`, `36h`, `10m`, `90s` or a sum, `1d12h`."""
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise refusal(
            "duration.invalid", f"expected a duration, got {in_yaml(value)}", hint="write a number and a unit: 30d, 36h, 10m or 90s"
        )
    total_seconds = sum(int(part or 0) * unit for part, unit in zip(match.groups(), _DURATION_UNITS.values(), strict=True))
    if total_seconds > MAX_DURATION.total_seconds():
        raise refusal("field.range", f"must be at most {duration_text(MAX_DURATION)}, got {in_yaml(value)}")
    return timedelta(seconds=total_seconds)


def duration_text(value: timedelta) -> str:
    """Write in the largest unit that divides: `1d`, `36h`, `90s`."""
    seconds = int(value.total_seconds())
    unit = next(name for name, size in _DURATION_UNITS.items() if seconds % size == 0) if seconds else "s"
    return f"{seconds // _DURATION_UNITS[unit]}{unit}"


def longer_than_nothing(value: timedelta) -> timedelta:
    """Return a duration that is not 0s; raise the validator's error for one that is."""
    if not value:
        raise refusal("field.range", "must be longer than 0s")
    return value


def parse_size(value: Any) -> int:
    """Read `512MiB`, `64GB`, `4Gi`; an int is bytes already."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    unit = _SIZE_SPELLINGS.get(match[2]) if match else None
    if match is None or unit is None:
        raise refusal(
            "resources.memory",
            f"expected an amount of memory, got {in_yaml(value)}",
            hint="write a number and a unit: 512MiB, 16GiB, 64GB",
        )
    size_bytes = int(match[1]) * unit
    if not 2**24 <= size_bytes <= 2**45:
        raise refusal("resources.memory", f"memory must be from 16MiB to 32TiB, got {in_yaml(value)}")
    return size_bytes


def size_text(size_bytes: int) -> str:
    """Write in the largest binary unit that divides."""
    unit = next(name for name, size in reversed(_SIZE_UNITS.items()) if size_bytes % size == 0)
    return f"{size_bytes // _SIZE_UNITS[unit]}{unit}"


def _parse_time(value: Any) -> time:
    if isinstance(value, time):
        return value
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise refusal("field.type", f"expected a time of day, got {in_yaml(value)}", hint='write it as "07:00"')
    return time(int(match[1]), int(match[2]))


def _parse_date(value: Any) -> date:
    if isinstance(value, date):
        return value
    try:
        if not isinstance(value, str) or not _DATE.fullmatch(value):
            raise ValueError(value)
        day = date.fromisoformat(value)
    except ValueError:
        raise refusal("schedule.range", f"expected a day, got {in_yaml(value)}", hint="write it as 2026-01-31") from None
    if not 1970 <= day.year <= 2100:
        raise refusal("schedule.range", f"must be between 1970 and 2100, got {in_yaml(value)}")
    return day


def _fits(code: str, rule: str, what: str, hint: str) -> AfterValidator:
    pattern = re.compile(rule, re.ASCII)

    def check(value: str) -> str:
        # fullmatch: `$` would accept a trailing newline.
        if not pattern.fullmatch(value):
            raise refusal(code, f"{in_yaml(value)} is not {what}", hint=hint)
        return value

    return AfterValidator(check)


def _pattern(rule: str) -> dict[str, object]:
    return {"type": "string", "pattern": f"^{rule}$"}


_NAME_HINT = f"at most 63 of a-z, 0-9, '.', '_' and '-', the first one a letter or digit: {NAME_RULE}"

Name = Annotated[str, _fits("name.invalid", NAME_RULE, "a name", _NAME_HINT), WithJsonSchema(_pattern(NAME_RULE))]
"""Name of a pipeline, a table or a model: it becomes a DAG id, a folder and part of URLs."""

ColumnName = Annotated[
    str,
    _fits(
        "column.name",
        COLUMN_RULE,
        "a column's name",
        "letters, digits and '_', not beginning with a digit; a column with another name in the file has that name as its source_name",
    ),
    WithJsonSchema(_pattern(COLUMN_RULE)),
]
Digest = Annotated[
    str,
    _fits("digest.invalid", DIGEST_RULE, "a SHA-256", "64 hex digits, as `nightshift checkpoints` prints them"),
    WithJsonSchema(_pattern(DIGEST_RULE)),
]
"""Of the content of something in the store."""
Suite = Annotated[
    str,
    _fits("name.invalid", SUITE_RULE, "a suite", "the file below expectations/ without .json: flight_delay/flights"),
    WithJsonSchema(_pattern(SUITE_RULE)),
]


def free_text_fault(text: str, pattern: re.Pattern[str] = _NOT_IN_A_TEXT) -> str:
    """Return what is wrong with a text that a user wrote, or nothing: control characters and direction overrides are refused."""
    found = pattern.search(text)
    lines = "line breaks, " if pattern is _NOT_IN_A_LINE else ""
    refused = f"{lines}control characters and direction overrides are refused"
    return f"has the character U+{ord(found[0]):04X} at position {found.start() + 1}; {refused}" if found else ""


def _printable(pattern: re.Pattern[str]) -> AfterValidator:
    def check(value: str) -> str:
        if fault := free_text_fault(value, pattern):
            raise refusal("field.characters", fault, hint="remove the character")
        return value

    return AfterValidator(check)


ONE_LINE: Final = _printable(_NOT_IN_A_LINE)
FreeText = Annotated[str, _printable(_NOT_IN_A_TEXT)]
"""What a user writes for other users to read, of several lines: a reason, a note, a description."""
Line = Annotated[str, Field(min_length=1, max_length=200), ONE_LINE]
Many = Annotated[tuple[Item, ...], Field(strict=False)]
"""A list of a YAML file, which nothing changes once it is read."""
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
SourceName = Annotated[str, Field(max_length=500), ONE_LINE]
"""A column's name at its source: any text on one line, also none, as pandas calls the index in a CSV file."""

DURATION_SCHEMA: Final[JsonSchemaValue] = {
    "type": "string",
    "pattern": r"^(?=\d)(\d{1,6}d)?(\d{1,6}h)?(\d{1,6}m)?(\d{1,9}s)?$",
    "examples": ["30d", "36h", "10m", "90s"],
}
_DURATION_PARTS = (
    BeforeValidator(parse_duration),
    PlainSerializer(duration_text, return_type=str),
    WithJsonSchema(DURATION_SCHEMA),
)
Duration = Annotated[timedelta, *_DURATION_PARTS]
PositiveDuration = Annotated[timedelta, AfterValidator(longer_than_nothing), *_DURATION_PARTS]


Bytes = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(size_text, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^\d{1,15} ?([KMGT]i?B?|B)$", "examples": ["512MiB", "16GiB"]}),
]
TimeOfDay = Annotated[
    time,
    BeforeValidator(_parse_time),
    PlainSerializer(lambda value: value.strftime("%H:%M"), return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^([01]\d|2[0-3]):[0-5]\d$", "examples": ["07:00"]}),
]
Day = Annotated[
    date,
    BeforeValidator(_parse_date),
    PlainSerializer(lambda value: value.isoformat(), return_type=str),
    WithJsonSchema({"type": "string", "format": "date", "examples": ["2026-01-31"]}),
]


def _scalar(value: Any) -> str | int | float | bool:
    if not isinstance(value, str | int | float | bool):
        raise refusal("field.type", f"expected text, a number, true or false, got {_kind(value)}")
    if value in (float("inf"), float("-inf")) or value != value:
        raise refusal("field.range", f"must be finite, got {in_yaml(value)}")
    return value


def _setting(value: Any) -> Any:
    if isinstance(value, list):
        return [_setting(item) if isinstance(item, list) else _scalar(item) for item in value]
    return None if value is None else _scalar(value)


def _kind(value: object) -> str:
    return {dict: "a mapping", list: "a list", type(None): "null"}.get(type(value), "something else")


Scalar = Annotated[Any, BeforeValidator(_scalar), WithJsonSchema({"type": ["string", "number", "boolean"]})]
"""Text, a finite number, true or false."""

Setting = Annotated[Any, BeforeValidator(_setting), WithJsonSchema({"type": ["string", "number", "boolean", "null", "array"]})]
"""A value in `train.settings`: a scalar, null, or lists of scalars."""
