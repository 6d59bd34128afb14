"""The axes of a chart: where a value is, and ticks at round numbers with their words. Standard library alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

FONT_SIZE: Final = 12.0
CHAR_WIDTH: Final = 0.62
"""Of a digit, by the size of the font, in the widest of the fonts that pages have."""
PADDING_SHARE: Final = 0.04
"""Of an axis' range, on each side of the values."""
MAX_TICKS: Final = 8
MAX_CATEGORY_CHARS: Final = 12
MAX_CATEGORIES_HEIGHT: Final = 110.0
"""Of the names of all categories one above the other: many are written smaller."""
SUPERSCRIPTS: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """An axis of numbers, or of `categories`, which stand at 0, 1, 2 and so on."""

    name: str
    is_log: bool = False
    """All values are above 0."""
    is_integer: bool = False
    """Ticks are whole numbers only."""
    least: float | None = None
    """Where it begins; absent: below the least value."""
    ticks: Sequence[float] = ()
    """Absent: round numbers."""
    categories: Sequence[str] = ()

    @property
    def font_size(self) -> float:
        """Of the words beside the ticks."""
        return min(FONT_SIZE, MAX_CATEGORIES_HEIGHT / max(1, len(self.categories)))

    @property
    def category_words(self) -> list[str]:
        return [name if len(name) <= MAX_CATEGORY_CHARS else f"{name[: MAX_CATEGORY_CHARS - 1]}…" for name in self.categories]

    @property
    def category_width(self) -> float:
        """Return the width of the longest name of a category."""
        return max((text_width(words, self.font_size) for words in self.category_words), default=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedAxis:
    """Where the values of an axis are, in units of the chart; `low` and `high` are logarithms where the axis is logarithmic."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool
    ticks: Sequence[tuple[float, str]] = ()
    """Places and their words."""
    name: str = ""

    def place(self, value: float) -> float:
        known = math.log10(value) if self.is_log else value
        return self.start + (known - self.low) / (self.high - self.low) * (self.end - self.start)


def placed(axis: Axis, values: Sequence[float], start: float, end: float) -> PlacedAxis:
    """Return an axis that goes from `start` to `end` and reaches all values."""
    low, high = _range(axis, values, is_upright=end < start)
    scale = PlacedAxis(low=low, high=high, start=start, end=end, is_log=axis.is_log)
    ticks, factor = _ticks(axis, scale)
    return replace(scale, ticks=[(scale.place(value), words) for value, words in ticks], name=axis.name + factor)


def _range(axis: Axis, values: Sequence[float], *, is_upright: bool) -> tuple[float, float]:
    if axis.categories:
        # The first category is at the top of an upright axis.
        ends = (-0.5, len(axis.categories) - 0.5)
        return (ends[1], ends[0]) if is_upright else ends
    known = [math.log10(value) for value in values] if axis.is_log else [*values, *axis.ticks]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if axis.least is not None:
        low = min(low, axis.least)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        margin = 0.05 * max(abs(low), abs(high)) or 0.5
        return low - margin, high + margin
    margin = PADDING_SHARE * (high - low)
    return low - (margin if axis.least is None else 0.0), high + margin


def _ticks(axis: Axis, scale: PlacedAxis) -> tuple[list[tuple[float, str]], str]:
    """Return the values of an axis' ticks with their words, and what is added to its name: the power of ten that the words leave out."""
    if axis.categories:
        return list(enumerate(axis.category_words)), ""
    if axis.ticks:
        return [(value, number_words(value)) for value in axis.ticks], ""
    found: list[tuple[float, str]] = []
    factor = ""
    for most in range(MAX_TICKS, 0, -1):
        found, factor = _log_ticks(scale, most) if axis.is_log else _round_ticks(scale, most, is_integer=axis.is_integer)
        if scale.end < scale.start or sum(text_width(f"{words} ") for _, words in found) <= scale.end - scale.start:
            break
    return found, factor


def _round_ticks(scale: PlacedAxis, most: int, *, is_integer: bool) -> tuple[list[tuple[float, str]], str]:
    values, step = _multiples(scale.low, scale.high, most, at_least=1.0 if is_integer else 0.0)
    largest = max((abs(value) for value in values), default=0.0) or 1.0
    left_out = 3 * math.floor(math.log10(largest) / 3) if not 1e-2 <= largest < 1e5 else 0
    decimals = max(0, left_out - math.floor(math.log10(step) + 1e-9))
    words = [f"{value / 10.0**left_out:,.{decimals}f}" for value in values]
    return list(zip(values, words, strict=True)), f" (× {_power_of_ten(left_out)})" if left_out else ""


def _multiples(low: float, high: float, most: int, *, at_least: float = 0.0) -> tuple[list[float], float]:
    """Return about `most` multiples of a step between two numbers, and the step: 1, 2 or 5 times a power of ten."""
    rough = max((high - low) / most, at_least)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(digit for digit in (1, 2, 5, 10) if digit * unit >= rough * (1 - 1e-9)) * unit
    return [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)], step


def _log_ticks(scale: PlacedAxis, most: int) -> tuple[list[tuple[float, str]], str]:
    """Return powers of ten, with what is between them where these are few; within one power of ten, multiples of a step."""
    if scale.high - scale.low < 1:
        values = _multiples(10.0**scale.low, 10.0**scale.high, most)[0]
    else:
        powers = range(math.ceil(scale.low), math.floor(scale.high) + 1)
        finer = [[digit * 10.0**power for power in (powers[0] - 1, *powers) for digit in digits] for digits in ((1, 2, 5), (1, 3))]
        inside = [[value for value in each if scale.low <= math.log10(value) <= scale.high] for each in finer]
        coarse = [10.0**power for power in powers][:: math.ceil(len(powers) / most)]
        values = next((each for each in inside if len(each) <= most), coarse)
    return [(value, number_words(value)) for value in values], ""


def text_width(text: str, font_size: float = FONT_SIZE) -> float:
    """Return about how wide a text is; never less, but where it has many wide letters."""
    return CHAR_WIDTH * font_size * len(text)


def number_words(value: float) -> str:
    """Return a number in four significant digits, with a power of ten where it is very small or large."""
    if value == 0 or 1e-4 < abs(value) < 1e5:
        return f"{float(f'{value:.4g}'):,g}"
    digits, _, power = f"{value:.3e}".partition("e")
    digits = digits.rstrip("0").rstrip(".")
    return _power_of_ten(int(power)) if digits == "1" else f"{digits}×{_power_of_ten(int(power))}"


def _power_of_ten(power: int) -> str:
    return f"10{str(power).translate(SUPERSCRIPTS)}"
