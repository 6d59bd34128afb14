"""An expectation's result in the words and numbers of the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from training.errors import shown
from training.format import figure
from training.validation.results import CheckResult, Status

CODE: Final = "expectation.failed"
BLOCKING_SEVERITIES: Final = frozenset({"critical", "error"})
COLUMN_ARGUMENTS: Final = ("column", "column_A", "column_B", "column_list")
MAX_VALUES_SHOWN: Final = 3


def result_of(result: Any, given: Mapping[str, Any], *, table: str) -> CheckResult:
    """Return the result in words; `given` are the arguments as they stand in the file."""
    config = result.expectation_config
    severity = str(getattr(config.severity, "value", config.severity) or "critical")
    broken = _exception_of(result.exception_info)
    values = result.result or {}
    status: Status = "passed"
    if broken or not bool(result.success):
        status = "failed" if broken or severity in BLOCKING_SEVERITIES else "warned"
    arguments = {name: value for name, value in given.items() if name not in COLUMN_ARGUMENTS and value is not None}
    return CheckResult(
        code=CODE,
        check=config.type,
        table=table,
        column=", ".join(columns_named(given)),
        status=status,
        observed=f"not evaluated: {broken}" if broken else _observed(values),
        allowed=_told(arguments) or "as named",
        detail=_examples(values) if status != "passed" else "",
    )


def _exception_of(info: Mapping[str, object]) -> str:
    """Return an exception's message, or an empty text: Great Expectations puts them into the result instead of raising."""
    return str(info.get("exception_message") or "unknown exception").splitlines()[0][:200] if info.get("raised_exception") else ""


def _observed(values: Mapping[str, Any]) -> str:
    if "observed_value" in values:
        return _told(values["observed_value"])
    if "unexpected_count" in values:
        percent = values.get("unexpected_percent_total", values.get("unexpected_percent"))
        share = f" ({percent:.3g} %)" if percent else ""
        return f"{values['unexpected_count']:,} unexpected of {values.get('element_count', 0):,} rows{share}"
    return "met" if not values else _told(dict(values))


def _examples(values: Mapping[str, Any]) -> str:
    examples = values.get("partial_unexpected_list") or []
    return f"for example {', '.join(shown(_plain(value)) for value in examples[:MAX_VALUES_SHOWN])}" if examples else ""


def columns_named(arguments: Mapping[str, Any]) -> list[str]:
    named = [arguments[name] for name in COLUMN_ARGUMENTS if arguments.get(name)]
    return [name for value in named for name in (value if isinstance(value, list) else [value])]


def _told(value: Any) -> str:
    value = _plain(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_told(inner)}" for name, inner in value.items())[:300]
    if isinstance(value, float):
        return figure(value)
    # Four digits may be a year.
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)[:300]


def _plain(value: Any) -> Any:
    """Return a numpy scalar as Python's own."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value
