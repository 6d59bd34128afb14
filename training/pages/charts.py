"""Charts as SVG text, drawn with the standard library alone: axes with ticks, lines, bands, points, cells, bars and a legend.

The same marks give the same text, without ids, style sheet or script, so a page may hold several under any content policy. Lengths are in
units of the chart's own: the page decides how large they are. Colours are CSS, so that they can be the page's variables.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from training.pages.axes import FONT_SIZE, Axis, PlacedAxis, number_words, placed, text_width

WIDTH: Final = 320.0
HEIGHT: Final = 240.0
BASELINE: Final = 0.35 * FONT_SIZE
"""Of text below its middle."""
LINE_HEIGHT: Final = 16.0
RIGHT_MARGIN: Final = 12.0
TICK_LENGTH: Final = 4.0
SAMPLE_WIDTH: Final = 20.0
"""Of the piece of a line in the legend."""
POINT_RADIUS: Final = 2.4
BAND_OPACITY: Final = 0.18
SLANT_DEGREES: Final = 40

INK: Final = "var(--ink, #222223)"
AXIS: Final = "var(--muted, #59616b)"
RULE: Final = "var(--rule, #dddcdd)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """How a mark is drawn."""

    color: str
    """CSS."""
    dash: str = ""
    """Lengths of strokes and gaps, as SVG's `stroke-dasharray`."""
    line_width: float = 1.8


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mark:
    x: Sequence[float]
    y: Sequence[float]
    look: Look
    label: str
    has_line: bool = False
    has_points: bool = False
    low: Sequence[float] = ()
    """Of a band, whose upper edge is `y`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cell:
    column: int
    row: int
    share: float
    look: Look

    @property
    def words(self) -> str:
        return f"{self.share:.0%}"


class Chart:
    """A chart to which marks are added, and then its SVG text. What is added first lies on top and comes first in the legend."""

    def __init__(self, title: str, x: Axis, y: Axis) -> None:
        self._title = title
        self._x, self._y = x, y
        self._marks: list[_Mark] = []
        self._cells: list[_Cell] = []
        self._rules: list[tuple[float | None, float | None]] = []

    def line(self, x: Iterable[float], y: Iterable[float], look: Look, label: str = "", *, has_points: bool = False) -> None:
        """Add a line through points, which are drawn too where `has_points`, or where they are all in one place."""
        self._marks.append(_Mark(x=_floats(x), y=_floats(y), look=look, label=label, has_line=True, has_points=has_points))

    def points(self, x: Iterable[float], y: Iterable[float], look: Look, label: str = "") -> None:
        self._marks.append(_Mark(x=_floats(x), y=_floats(y), look=look, label=label, has_points=True))

    def band(self, x: Iterable[float], low: Iterable[float], high: Iterable[float], look: Look, label: str = "") -> None:
        """Add the area between two lines."""
        self._marks.append(_Mark(x=_floats(x), y=_floats(high), low=_floats(low), look=look, label=label))

    def cell(self, column: int, row: int, share: float, look: Look) -> None:
        """Fill the place where two categories meet, the stronger the larger its share of one is, which is written on it."""
        self._cells.append(_Cell(column=column, row=row, share=share, look=look))

    def rule(self, *, x: float | None = None, y: float | None = None) -> None:
        """Add a faint line across the whole chart at a value of one axis."""
        self._rules.append((x, y))

    def svg(self) -> str:
        """Return the chart. Its label names title and axes, its description says how each line begins, ends, and how far it goes."""
        entries = _legend_rows([mark for mark in self._marks if mark.label])
        is_slanted = self._x.category_width + FONT_SIZE > 0.75 * WIDTH / max(1, len(self._x.categories))
        depth = TICK_LENGTH + 2 * LINE_HEIGHT + (self._x.category_width * math.sin(math.radians(SLANT_DEGREES)) if is_slanted else 0.0)
        up = placed(self._y, self._values("y"), HEIGHT - depth, LINE_HEIGHT * len(entries) + 6)
        left = LINE_HEIGHT + TICK_LENGTH + 4 + max((text_width(words, self._y.font_size) for _, words in up.ticks), default=0.0)
        across = placed(self._x, self._values("x"), left, WIDTH - RIGHT_MARGIN)
        label = f"{self._title}: " + "; ".join(name for name in (up.name, across.name) if name)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{_escaped(label)}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}"',
            f' font-size="{FONT_SIZE:g}" fill="none"><desc>{_escaped(" ".join(self._words()))}</desc>',
            *self._rules_drawn(across, up),
            *_lines_of_axes(across, up),
            *self._words_of_axes(across, up, SLANT_DEGREES if is_slanted else 0),
            *(_drawn_cell(cell, across, up) for cell in self._cells),
            *itertools.chain.from_iterable(_drawn(mark, across, up) for mark in reversed(self._marks)),
            *_drawn_legend(entries, left),
            "</svg>",
        ]
        return "".join(parts)

    def _values(self, side: str) -> list[float]:
        """Return every value that an axis has to reach."""
        if side == "x":
            return [value for mark in self._marks for value in mark.x] + [x for x, _ in self._rules if x is not None]
        return [value for mark in self._marks for value in (*mark.y, *mark.low)] + [y for _, y in self._rules if y is not None]

    def _words(self) -> Iterator[str]:
        for mark in self._marks:
            if mark.label and mark.y:
                first, last, least, most = (
                    number_words(value) for value in (mark.y[0], mark.y[-1], min((*mark.y, *mark.low)), max(mark.y))
                )
                yield f"{mark.label}: first {first}, last {last}, from {least} to {most}."
        for cell in self._cells:
            yield f"{self._y.categories[cell.row]} as {self._x.categories[cell.column]}: {cell.words}."

    def _rules_drawn(self, across: PlacedAxis, up: PlacedAxis) -> Iterator[str]:
        grid = [] if self._cells else [f"M{_at(across.start)} {_at(y)}H{_at(across.end)}" for y, _ in up.ticks]
        rules = [f"M{_at(across.start)} {_at(up.place(y))}H{_at(across.end)}" for _, y in self._rules if y is not None]
        rules += [f"M{_at(across.place(x))} {_at(up.end)}V{_at(up.start)}" for x, _ in self._rules if x is not None]
        for lines, width in ((grid, 0.5), (rules, 1.5)):
            if lines:
                yield f'<path d="{"".join(lines)}" stroke="{RULE}" stroke-width="{width}"/>'

    def _words_of_axes(self, across: PlacedAxis, up: PlacedAxis, slant: int) -> Iterator[str]:
        below = _at(up.start + TICK_LENGTH + FONT_SIZE)
        for x, words in across.ticks:
            turn = f"rotate(-{slant} {_at(x)} {below})" if slant else ""
            # The last one does not reach beyond the chart.
            x = x if slant else min(x, WIDTH - text_width(words) / 2)
            yield _text(words, _at(x), below, anchor="end" if slant else "middle", turn=turn, size=self._x.font_size)
        for y, words in up.ticks:
            size = self._y.font_size
            yield _text(words, _at(across.start - TICK_LENGTH - 3), _at(y + BASELINE * size / FONT_SIZE), anchor="end", size=size)
        yield _text(across.name, _at((across.start + across.end) / 2), _at(HEIGHT - 5), anchor="middle")
        side, middle = _at(FONT_SIZE), _at((up.start + up.end) / 2)
        yield _text(up.name, side, middle, anchor="middle", turn=f"rotate(-90 {side} {middle})")


@dataclass(frozen=True, kw_only=True, slots=True)
class BarGroup:
    """Bars in one place of a row of bars, one in front of the other."""

    title: str
    """Shown where the mouse is."""
    heights: Mapping[str, float]
    """CSS class to a value, 0 or more."""


def small_bars(title: str, groups: Sequence[BarGroup], *, width: float, height: float) -> str:
    """Return bars without axes, from 0 to the highest, for a cell of a table; `width` and `height` in CSS pixels."""
    highest = max((value for group in groups for value in group.heights.values()), default=0.0) or 1.0
    step = width / max(1, len(groups))
    parts = [f'<svg width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{_escaped(title)}">']
    for place, group in enumerate(groups):
        parts.append(f"<g><title>{_escaped(group.title)}</title>")
        for name, value in group.heights.items():
            tall = round(height * value / highest, 2)
            box = f'x="{round(place * step, 2)}" y="{round(height - tall, 2)}" width="{round(0.9 * step, 2)}" height="{tall}"'
            parts.append(f'<rect class="{_escaped(name)}" {box}/>')
        parts.append("</g>")
    return "".join((*parts, "</svg>"))


def staircase(edges: Sequence[float], heights: Sequence[float], *, base: float | None = None) -> tuple[list[float], list[float]]:
    """Return the corners of a line that is level from each edge to the next.

    Args:
        edges: one more than `heights`.
        base: where the line begins and ends, as the outline of a histogram does; None: at the first and the last height.
    """
    xs = [edge for edge in edges for _ in range(2)]
    ys = [height for height in heights for _ in range(2)]
    return (xs[1:-1], ys) if base is None else (xs, [base, *ys, base])


def _lines_of_axes(across: PlacedAxis, up: PlacedAxis) -> Iterator[str]:
    ticks = [f"M{_at(x)} {_at(up.start)}v{TICK_LENGTH:g}" for x, _ in across.ticks]
    ticks += [f"M{_at(across.start)} {_at(y)}h-{TICK_LENGTH:g}" for y, _ in up.ticks]
    axes = f"M{_at(across.start)} {_at(up.end)}V{_at(up.start)}H{_at(across.end)}"
    yield f'<path d="{axes}{"".join(ticks)}" stroke="{AXIS}"/>'


def _text(words: str, x: str, y: str, *, anchor: str = "start", turn: str = "", size: float = FONT_SIZE) -> str:
    turned = f' transform="{turn}"' if turn else ""
    sized = f' font-size="{_at(size)}"' if size != FONT_SIZE else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{INK}"{sized}{turned}>{_escaped(words)}</text>'


def _drawn(mark: _Mark, across: PlacedAxis, up: PlacedAxis) -> Iterator[str]:
    places = [(_at(across.place(x)), _at(up.place(y))) for x, y in zip(mark.x, mark.y, strict=True)]
    if mark.low:
        below = [(_at(across.place(x)), _at(up.place(y))) for x, y in zip(mark.x, mark.low, strict=True)]
        yield f'<path d="{_path([*places, *reversed(below)])}Z" {_filled(mark.look, BAND_OPACITY)}/>'
    if mark.has_line:
        yield f'<path d="{_path(places)}" {_stroked(mark.look)}/>'
    # A line between places that are the same would not be seen.
    if mark.has_points or (mark.has_line and len(set(places)) == 1):
        circles = "".join(f'<circle cx="{x}" cy="{y}" r="{POINT_RADIUS:g}"/>' for x, y in places)
        yield f'<g fill="{mark.look.color}">{circles}</g>'


def _drawn_cell(cell: _Cell, across: PlacedAxis, up: PlacedAxis) -> str:
    left, right = across.place(cell.column - 0.5), across.place(cell.column + 0.5)
    top, bottom = up.place(cell.row - 0.5), up.place(cell.row + 0.5)
    box = f'x="{_at(left)}" y="{_at(top)}" width="{_at(right - left)}" height="{_at(bottom - top)}"'
    size = min(FONT_SIZE, (right - left) / text_width("100%", 1.0), 0.8 * (bottom - top))
    words = _text(cell.words, _at((left + right) / 2), _at((top + bottom) / 2 + 0.35 * size), anchor="middle", size=size)
    # Never so dark that the words on it cannot be read.
    return f"<rect {box} {_filled(cell.look, 0.6 * cell.share)}/>{words}"


def _legend_rows(marks: Sequence[_Mark]) -> list[list[_Mark]]:
    """Return what the legend has in each of its lines."""
    rows: list[list[_Mark]] = []
    used = WIDTH
    for mark in marks:
        width = _entry_width(mark)
        if used + width > WIDTH - 2 * LINE_HEIGHT:
            rows.append([])
            used = 0.0
        rows[-1].append(mark)
        used += width
    return rows


def _drawn_legend(rows: Sequence[Sequence[_Mark]], left: float) -> Iterator[str]:
    start = min([left, *(WIDTH - sum(map(_entry_width, row)) for row in rows)])
    for number, row in enumerate(rows):
        x, y = start, LINE_HEIGHT * (number + 0.5)
        for mark in row:
            end, middle = x + SAMPLE_WIDTH, x + SAMPLE_WIDTH / 2
            if mark.low:
                yield f'<rect x="{_at(x)}" y="{_at(y - 5)}" width="{SAMPLE_WIDTH:g}" height="10" {_filled(mark.look, BAND_OPACITY)}/>'
            if mark.has_line:
                yield f'<path d="M{_at(x)} {_at(y)}H{_at(end)}" {_stroked(mark.look)}/>'
            if mark.has_points:
                yield f'<circle cx="{_at(middle)}" cy="{_at(y)}" r="{POINT_RADIUS:g}" fill="{mark.look.color}"/>'
            yield _text(mark.label, _at(end + 5), _at(y + BASELINE))
            x += _entry_width(mark)


def _entry_width(mark: _Mark) -> float:
    return SAMPLE_WIDTH + 15 + text_width(mark.label)


def _stroked(look: Look) -> str:
    dash = f' stroke-dasharray="{look.dash}"' if look.dash else ""
    return f'stroke="{look.color}" stroke-width="{look.line_width:g}"{dash}'


def _filled(look: Look, opacity: float) -> str:
    return f'fill="{look.color}" fill-opacity="{opacity:.3g}"'


def _path(places: Sequence[tuple[str, str]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in places)


def _at(value: float) -> str:
    """Return a place or a length, to a tenth of a unit."""
    return f"{round(value, 1) + 0.0:g}"


def _floats(values: Iterable[float]) -> list[float]:
    return [float(value) for value in values]


def _escaped(text: str) -> str:
    return html.escape(text, quote=True)
