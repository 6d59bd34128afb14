"""Charts: marks where their values are, ticks that can be read, words for a screen reader, and the same text every time."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.pages import axes, charts
from training.pages.axes import Axis, text_width
from training.pages.charts import HEIGHT, WIDTH, BarGroup, Chart, Look, small_bars, staircase

LOOK = Look(color="var(--candidate, #1b6ca8)")
SVG = "{http://www.w3.org/2000/svg}"


def root_of(svg: str) -> Any:
    return ElementTree.fromstring(svg)  # noqa: S314 - made here


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in root_of(svg).iter(f"{SVG}text")]


def circles(svg: str) -> list[tuple[float, float]]:
    return [(float(found.get("cx")), float(found.get("cy"))) for found in root_of(svg).iter(f"{SVG}circle")]


def line_chart(x: list[float], y: list[float], across: Axis | None = None, up: Axis | None = None) -> str:
    chart = Chart("Title", across or Axis(name="x"), up or Axis(name="y"))
    chart.line(x, y, LOOK, has_points=True)
    return chart.svg()


@pytest.mark.parametrize("module", [axes, charts])
def test_charts_need_the_standard_library_alone(module: Any) -> None:
    nodes = list(ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names} <= {"training.pages.axes"}


def test_values_that_are_twice_as_far_apart_are_twice_as_far_apart_in_the_chart() -> None:
    places = circles(line_chart([0, 1, 3], [10, 20, 40]))
    (x0, y0), (x1, y1), (x2, y2) = places
    assert (x2 - x1) / (x1 - x0) == pytest.approx(2, abs=0.01)
    assert (y1 - y2) / (y0 - y1) == pytest.approx(2, abs=0.01)
    assert y0 > y1 > y2, "larger is higher"


def test_a_tick_stands_where_its_value_is() -> None:
    svg = line_chart([0, 2, 4], [0, 50, 100])
    across = {element.text: element.get("x") for element in root_of(svg).iter(f"{SVG}text") if element.get("text-anchor") == "middle"}
    assert [float(across[words] or "nan") for words in ("0", "2", "4")] == pytest.approx([x for x, _ in circles(svg)], abs=0.1)


@pytest.mark.parametrize(
    ("values", "ticks", "name"),
    [
        ([0.0, 1.0], ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"], "y"),
        ([0.7, 0.72], ["0.700", "0.705", "0.710", "0.715", "0.720"], "y"),
        ([-3e6, 3e6], ["-3", "-2", "-1", "0", "1", "2", "3"], "y (× 10⁶)"),
        ([2e-6, 8e-6], ["2", "3", "4", "5", "6", "7", "8"], "y (× 10⁻⁶)"),
        ([0.0, 50_000.0], ["0", "10,000", "20,000", "30,000", "40,000", "50,000"], "y"),
    ],
)
def test_ticks_are_round_numbers_with_the_digits_that_tell_them_apart(values: list[float], ticks: list[str], name: str) -> None:
    found = texts(line_chart([0.0, 1.0], values))
    assert found[-2 - len(ticks) : -2] == ticks
    assert found[-1] == name


def test_an_axis_of_whole_numbers_has_no_other_ticks() -> None:
    assert texts(line_chart([1, 3], [0, 1], Axis(name="epoch", is_integer=True)))[:3] == ["1", "2", "3"]
    assert texts(line_chart([1], [0.5], Axis(name="epoch", is_integer=True)))[0] == "1"


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([1e-6, 1.0], ["10⁻⁶", "10⁻⁵", "10⁻⁴", "0.001", "0.01", "0.1", "1"]),
        ([0.01, 0.3], ["0.01", "0.02", "0.05", "0.1", "0.2"]),
        ([0.21, 0.24], ["0.21", "0.215", "0.22", "0.225", "0.23", "0.235", "0.24"]),
    ],
)
def test_a_logarithmic_axis_has_equal_steps_for_equal_factors(values: list[float], ticks: list[str]) -> None:
    found = texts(line_chart([0.0, 1.0], values, None, Axis(name="y", is_log=True)))
    assert found[-2 - len(ticks) : -2] == ticks
    x = [x for x, _ in circles(line_chart([0.001, 0.01, 1.0], [1, 2, 3], Axis(name="x", is_log=True)))]
    assert (x[2] - x[1]) / (x[1] - x[0]) == pytest.approx(2, abs=0.01)


def test_categories_are_in_the_middle_of_their_places_and_long_names_are_shortened_and_turned() -> None:
    names = ["late", "a name that is far too long", *"bcdefgh"]
    chart = Chart("Confusion", Axis(name="predicted", categories=names), Axis(name="class", categories=names))
    chart.cell(1, 0, 0.25, LOOK)
    svg = chart.svg()
    assert texts(svg).count("a name that…") == 2
    assert "rotate(-40" in svg
    (box,) = root_of(svg).iter(f"{SVG}rect")
    left, right = float(box.get("x")), float(box.get("x")) + float(box.get("width"))
    centre = next(float(found.get("x")) for found in root_of(svg).iter(f"{SVG}text") if found.text == "a name that…")
    assert centre == pytest.approx((left + right) / 2, abs=0.2)
    assert "late as a name that is far too long: 25%." in svg


def test_the_legend_names_labelled_marks_in_their_order_and_leaves_the_marks_free() -> None:
    chart = Chart("Title", Axis(name="x"), Axis(name="y"))
    for label in ("first", "", "a label that takes most of the width", "last"):
        chart.line([0, 1], [0, 1], LOOK, label, has_points=True)
    svg = chart.svg()
    assert [words for words in texts(svg) if words in ("first", "last") or words.startswith("a label")] == [
        "first",
        "a label that takes most of the width",
        "last",
    ]
    lowest = max(float(found.get("y")) for found in root_of(svg).iter(f"{SVG}text") if found.text == "last")
    assert lowest < min(y for _, y in circles(svg)[:8])


def test_what_is_added_first_lies_on_top() -> None:
    chart = Chart("Title", Axis(name="x"), Axis(name="y"))
    chart.line([0, 1], [0, 1], Look(color="red"))
    chart.band([0, 1], [0, 0], [1, 1], Look(color="blue"))
    svg = chart.svg()
    assert svg.index('fill="blue"') < svg.index('stroke="red"')


def test_words_say_what_a_line_does_and_any_text_is_text() -> None:
    chart = Chart('<b>"loss"', Axis(name="<epoch>"), Axis(name="a & b"))
    chart.line([1, 2, 3], [0.5, 0.125, 0.25], LOOK, "train <loss>")
    root = root_of(chart.svg())
    assert root.get("role") == "img"
    assert root.get("aria-label") == '<b>"loss": a & b; <epoch>'
    assert root.findtext(f"{SVG}desc") == "train <loss>: first 0.5, last 0.25, from 0.125 to 0.5."
    assert "<b>" not in chart.svg()


def test_marks_in_one_place_can_be_seen() -> None:
    chart = Chart("Title", Axis(name="x"), Axis(name="y"))
    chart.line([0.5, 0.5], [0.0, 0.0], LOOK)
    assert len(set(circles(chart.svg()))) == 1
    assert circles(line_chart([0, 1], [0, 1])) != []


def test_a_chart_without_marks_is_an_empty_frame() -> None:
    assert "nan" not in Chart("Title", Axis(name="x"), Axis(name="y")).svg()


def test_a_staircase_is_level_between_edges() -> None:
    assert staircase([0, 1, 2], [5, 7]) == ([0, 1, 1, 2], [5, 5, 7, 7])
    assert staircase([0, 1, 2], [5, 7], base=0) == ([0, 0, 1, 1, 2, 2], [0, 5, 5, 7, 7, 0])


def test_small_bars_are_as_high_as_their_values_and_their_words_are_text() -> None:
    svg = small_bars(
        "<rows>",
        [BarGroup(title="<a>", heights={"now": 2.0, "before": 1.0}), BarGroup(title="b", heights={"now": 4.0})],
        width=100,
        height=40,
    )
    assert re.findall(r'class="(\w+)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', svg) == [
        ("now", "0.0", "20.0", "45.0", "20.0"),
        ("before", "0.0", "30.0", "45.0", "10.0"),
        ("now", "50.0", "0.0", "45.0", "40.0"),
    ]
    assert root_of(svg).get("aria-label") == "<rows>"
    assert [found.text for found in root_of(svg).iter("title")] == ["<a>", "b"]


def assert_ticks_apart(svg: str) -> None:
    """Check that no words below the chart overlap, or reach beyond it."""
    middles = [(float(found.get("x")), found.text) for found in root_of(svg).iter(f"{SVG}text") if found.get("text-anchor") == "middle"]
    for (left, words), (right, others) in pairwise(middles[:-2]):
        assert right - left > text_width(words + others) / 2
        assert right + text_width(others) / 2 <= WIDTH + 0.1


@pytest.mark.parametrize("values", [(0, 99_999), (1e7, 1e7 + 1), (0, 50_000), (98_000, 99_900)], ids=str)
def test_long_words_of_ticks_are_fewer_and_stay_inside(values: tuple[float, float]) -> None:
    svg = line_chart(list(values), [0, 1])
    assert_ticks_apart(svg)
    assert len(texts(svg)) > 8


FINITE = st.floats(min_value=-1e30, max_value=1e30, allow_subnormal=False)


@settings(max_examples=150)
@given(points=st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=8), is_integer=st.booleans())
def test_any_numbers_are_drawn_inside_the_chart_with_ticks_that_rise_and_do_not_overlap(
    points: list[tuple[float, float]], is_integer: bool
) -> None:
    svg = line_chart([x for x, _ in points], [y for _, y in points], Axis(name="x", is_integer=is_integer))
    assert "nan" not in svg
    assert "inf" not in svg
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in circles(svg))
    assert_ticks_apart(svg)


def test_two_processes_draw_the_same_bytes() -> None:
    program = (
        "import hashlib; from tests.unit.training.pages.report_example import page, rendered;"
        "from tests.unit.training.pages import test_plots, test_study;"
        "print(hashlib.sha256(repr((test_plots.all_plots(500), rendered(page()), test_study.rendered())).encode()).hexdigest())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}, capture_output=True, check=True
        )
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout != b""
