"""One escape for each kind of output: what a user writes is shown as it is written, and does nothing."""

from __future__ import annotations

import io
import json
import re

import pytest
from markdown_it import MarkdownIt

from training.sanitizing import TerminalStream, for_markdown, for_slack, for_terminal, from_markdown

PAYLOADS = [
    "\x1b[31mred",
    "\x9b31mred",
    "a\u202etxt.exe",
    "<!channel>",
    "<https://elsewhere.example|details>",
    "[x](http://e)",
    "![x](http://e/x.png)",
    "[x][y]",
    "a|b",
    "a\\|b",
    "a\\\\|b",
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "<http://e>",
    "one\n\n# two\n\n| x |",
    "one\r\ntwo",
    "`<img>`",
]
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("text", PAYLOADS)
def test_markdown_has_no_link_no_picture_no_html_and_one_cell(text: str) -> None:
    page = MarkdownIt("commonmark", {"html": True}).enable("table")
    table = page.render(f"| gate | reason |\n| --- | --- |\n| g | {for_markdown(text)} |\n")
    for found in (table, page.render(for_markdown(text)), page.render(f"[y]: http://e\n\n{for_markdown(text)}")):
        assert re.findall(r"<(?:a|img|script|h1|http)\b", found) == []
        assert CONTROL.search(found.replace("\n", "")) is None
    assert (table.count("<td>"), table.count("<tr>")) == (2, 2)


@pytest.mark.parametrize("text", ["[schema.missing] no column `a`", "interval [+0.1, +0.2], 95 %", "a_b * c_d"])
def test_what_is_no_command_stays_as_it_is(text: str) -> None:
    assert for_markdown(text) == for_terminal(text) == for_slack(text) == text


@pytest.mark.parametrize("text", PAYLOADS)
def test_text_that_was_escaped_for_a_note_is_read_as_it_was(text: str) -> None:
    assert from_markdown(for_markdown(text)) == " ".join(CONTROL.sub(" ", text).split())


@pytest.mark.parametrize("text", PAYLOADS)
def test_slack_has_no_command_and_shows_the_text(text: str) -> None:
    assert "<" not in for_slack(text)
    assert for_slack(text).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") == text


@pytest.mark.parametrize("text", PAYLOADS)
def test_a_terminal_gets_one_line_without_control_characters(text: str) -> None:
    assert CONTROL.search(for_terminal(text)) is None


def test_a_stream_for_people_keeps_lines_and_what_json_says() -> None:
    target = io.StringIO()
    stream = TerminalStream(target)
    value = {"words": "\x1b[31m \x9b \u202e \u2028 ü"}
    stream.write("one\ntwo \x1b]0;title\x07\n")
    stream.write(json.dumps(value, ensure_ascii=False))
    lines = target.getvalue().split("\n")
    assert lines[:2] == ["one", "two \\u001b]0;title\\u0007"]
    assert json.loads(lines[2]) == value
    assert CONTROL.search(lines[2]) is None
