"""The page in headless Chromium, served as Airflow serves it: on a desktop, on a phone, in the dark and on paper."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nightshift.api.reports import HEADERS
from tests.unit.training.pages.report_browser import Browser, Served, serving
from tests.unit.training.pages.report_example import page, rendered

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH (Debian's package: chromium)")

DESKTOP, PHONE = 1280, 360
CONTRAST = """
(() => {
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(x => x / 255).map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
    .reduce((sum, x, n) => sum + x * [0.2126, 0.7152, 0.0722][n], 0);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const found = numbers(getComputedStyle(e).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found.slice(0, 3);
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0] : [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    if (element.closest("svg, script, style")) continue;
    if (![...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim())) continue;
    const [a, b] = [light(numbers(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push([element.tagName, element.className, element.textContent.trim().slice(0, 40), ratio]);
  }
  return poor;
})()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert CHROMIUM is not None
    started = Browser(CHROMIUM, tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def content() -> bytes:
    """A page with everything on it, and words that are far too long for a phone."""
    full = page()
    long = "a_very_long_value_" * 12
    full["evaluation"]["slices"].append(
        {"columns": {"carrier": long, "origin": "x" * 200}, "support": 5000, "is_small": False, "candidate": 0.9, "champion": None}
    )
    full["evaluation"]["importance"][long] = 0.001
    full["facts"][long] = {"text": "y" * 300, "url": f"https://mlflow.example/{'z' * 300}"}
    full["decision"]["reasons"].append({"gate": "slices", "passed": True, "severity": "fail", "words": "w" * 300})
    return rendered(full)


@pytest.fixture
def served(content: bytes) -> Iterator[Served]:
    with serving(HEADERS) as found:
        found.page = content
        yield found


def problems(browser: Browser) -> list[Any]:
    """Return errors of scripts, and what the console or the policy complained about."""
    kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    return [event["params"] for event in browser.events if event.get("method") in kinds]


def column(browser: Browser, number: int) -> list[str]:
    """Return a column of the slices' table, from top to bottom."""
    script = f"Array.from(document.querySelector('#slice-table').tBodies[0].rows, row => row.cells[{number}].dataset.value)"
    return list(browser.evaluate(script))


def directions(browser: Browser) -> list[str]:
    return list(browser.evaluate("Array.from(document.querySelectorAll('#slice-table th[aria-sort]'), h => h.getAttribute('aria-sort'))"))


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_the_page_runs_without_errors_asks_for_nothing_fits_its_screen_and_can_be_read(
    browser: Browser, served: Served, width: int, dark: bool
) -> None:
    browser.open(served.url, width=width, dark=dark)
    assert problems(browser) == []
    asked = [event["params"]["request"]["url"] for event in browser.events if event.get("method") == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith("data:")] == [served.url]
    assert served.paths == ["/report"]
    assert browser.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth <= innerWidth]") == [width, True]
    assert browser.evaluate(CONTRAST) == []


@pytest.mark.slow
def test_nothing_but_tables_is_wider_than_a_phone(browser: Browser, served: Served) -> None:
    browser.open(served.url, width=PHONE)
    outside = "[...document.querySelectorAll('body *')].filter(e => !e.closest('.wide, svg'))"
    beyond = f"{outside}.filter(e => e.getBoundingClientRect().right > innerWidth + 0.5)"
    assert browser.evaluate(f"{beyond}.map(e => e.outerHTML.slice(0, 80))") == []
    assert browser.evaluate("document.querySelector('.tall').scrollWidth > document.querySelector('.tall').clientWidth")


def test_a_click_on_a_heading_sorts_and_another_turns_the_order_round(browser: Browser, served: Served) -> None:
    browser.open(served.url, width=DESKTOP)
    before = column(browser, 1)
    browser.click("#slice-table th:nth-child(2) button")
    falling = column(browser, 1)
    assert [float(value) for value in falling] == sorted(map(float, before), reverse=True)
    assert falling != before
    assert directions(browser) == ["none", "descending", "none", "none", "none"]
    browser.click("#slice-table th:nth-child(2) button")
    assert [float(value) for value in column(browser, 1)] == sorted(map(float, before))
    assert directions(browser) == ["none", "ascending", "none", "none", "none"]
    assert problems(browser) == []


def test_what_has_no_number_stays_at_the_end_in_both_orders(browser: Browser, served: Served) -> None:
    browser.open(served.url, width=DESKTOP)
    for _ in range(2):
        browser.click("#slice-table th:nth-child(4) button")
        values = column(browser, 3)
        missing = [value in ("", "nan") for value in values]
        assert any(missing)
        assert missing == sorted(missing)


def test_the_keyboard_sorts_too_by_enter_and_by_space(browser: Browser, served: Served) -> None:
    browser.open(served.url, width=DESKTOP)
    browser.evaluate("document.querySelector('#slice-table th button').focus()")
    browser.press("Enter", 13, "\r")
    rising = column(browser, 0)
    assert rising[0].startswith("carrier ")
    assert rising[-1].startswith("origin ")
    assert directions(browser)[0] == "ascending"
    browser.press(" ", 32, " ")
    assert column(browser, 0) == rising[::-1]
    assert directions(browser)[0] == "descending"
    # The next heading is one Tab away.
    browser.press("Tab", 9, "")
    assert browser.evaluate("document.activeElement.textContent") == "rows"


def test_on_paper_tables_are_whole_and_links_can_be_read(browser: Browser, served: Served) -> None:
    browser.open(served.url, width=794, media="print", dark=True)
    assert browser.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.evaluate("[...document.querySelectorAll('.wide')].every(box => getComputedStyle(box).overflow === 'visible')")
    shown = browser.evaluate("getComputedStyle(document.querySelector('.facts a'), '::after').content")
    assert "https://mlflow.example/#/experiments/3/runs/5e1f4c7be2a94d0f" in re.sub(r'" "|"', "", shown)
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.evaluate("document.documentElement.scrollWidth") == 794


def test_pictures_take_the_pages_colours(browser: Browser, served: Served) -> None:
    inks = []
    for dark in (False, True):
        browser.open(served.url, width=DESKTOP, dark=dark)
        inks.append(browser.evaluate("getComputedStyle(document.querySelector('.plots svg text')).fill"))
        assert inks[-1] == browser.evaluate("getComputedStyle(document.body).color")
    assert inks[0] != inks[1]


def test_hostile_words_run_nothing(browser: Browser, tmp_path: Path) -> None:
    full = page()
    attack = "</script></style><script>window.attacked = 1</script><img src=/attack onerror='window.attacked = 1'>"
    full["evaluation"]["slices"][0]["columns"] = {attack: attack}
    full["facts"][attack] = attack
    full["pipeline"] = attack
    # Without the policy: the page must not need it.
    with serving({}) as served:
        served.page = rendered(full)
        browser.open(served.url, width=DESKTOP)
        assert browser.evaluate("window.attacked === undefined && document.images.length === 0")
        assert served.paths == ["/report"]
        assert problems(browser) == []
