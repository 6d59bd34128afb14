"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from markupsafe import Markup

from training.contracts import Instant

NOTHING: Final = "–"
_WORDS: Final = {"nan": "not a number", "inf": "infinite", "-inf": "minus infinite"}


def finite(value: Any) -> float | None:
    """Return what can be compared and drawn; None for a word, a flag, nothing, or what is not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def number(value: Any) -> str:
    """Return five or so digits that say something; a dash for nothing, words for what is not finite."""
    if value is None:
        return NOTHING
    known = finite(value)
    if known is None:
        return _WORDS.get(str(value).lower(), str(value))
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(known)
    if size >= 1000:
        return f"{known:,.1f}"
    if size >= 10:
        return f"{known:.3f}"
    return f"{known:.5f}" if size >= 0.001 or size == 0 else f"{known:.3g}"


def brief(value: Any) -> str:
    """Return at most four significant digits, as thresholds and milliseconds are written; of a whole number all digits."""
    known = finite(value)
    if known is None or isinstance(value, int):
        return number(value)
    return f"{known:,.4g}" if 1e-4 <= abs(known) < 1e4 else f"{known:,.6g}"


def figure(value: float) -> str:
    """Return six significant digits, as reasons of gates, checks and logs have them. They are stored as text, so the form stays."""
    return f"{value:.6g}"


def change(value: float) -> str:
    """Return `figure` with its sign, also with a plus."""
    return f"{value:+.6g}"


def moment(text: Any) -> str:
    """Return an ISO 8601 moment as people write it; what is none as it is."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return str(text)
    zone = "" if found.tzinfo is None else " UTC" if not found.utcoffset() else found.strftime(" %z")
    return f"{found:%Y-%m-%d %H:%M}{zone}"


def learned_words(bounds: Mapping[str, Sequence[str]]) -> str:
    """Return until when the rows go that a model has learned from; empty where its splits are not divided by time.

    Args:
        bounds: split to its begin and its end, ISO 8601; the end is not in it.
    """
    if not all(bounds.get(split) for split in ("train", "validation", "test")) or bounds["train"][1] > bounds["test"][0]:
        return ""
    until, end = bounds["train"][1], bounds["test"][1]
    days = (datetime.fromisoformat(end) - datetime.fromisoformat(until)) / timedelta(days=1)
    # A refit has learned from the validation rows too.
    unseen = "test" if until == bounds["validation"][1] else "validation and test"
    return f"rows until {moment(until)}; the newest {brief(days)} days are in {unseen} only"


def local_moment(instant: Instant, timezone: str) -> str:
    """Return an instant on the clock of a time zone, with the zone's name."""
    return f"{instant.astimezone(ZoneInfo(timezone)):%Y-%m-%d %H:%M} ({timezone})"


def breakable(text: Any) -> Markup:
    """Return escaped text that may be broken after each underscore: a column's name does not fit a phone."""
    return Markup("_<wbr>").join(str(text).split("_"))


def signed(value: Any) -> str:
    """Return `number` with its sign, also where it is a plus."""
    known = finite(value)
    return f"+{number(value)}" if known is not None and known > 0 else number(value)


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines of text, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def percent(value: Any, digits: int = 1) -> str:
    """Return a share of one as per cent."""
    known = finite(value)
    return number(value) if known is None else f"{100 * known:.{digits}f} %"


def share_change(value: float, *, beside: float | None) -> str:
    """Return a relative change as per cent with its sign: `+0.1 %`; of a change below 0.05 % one significant digit.

    Args:
        beside: another change that it is compared with: it has as many digits, up to four, as tell the two apart.
    """
    digits = 1
    while digits < 4 and (_same(value, beside, digits) or (value and not float(f"{100 * value:.{digits}f}"))):
        digits += 1
    return f"{100 * value:+.{digits}f} %" if value else "0 %"


def _same(value: float, beside: float | None, digits: int) -> bool:
    return beside is not None and value != beside and f"{100 * value:.{digits}f}" == f"{100 * beside:.{digits}f}"
