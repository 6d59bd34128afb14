# ruff: noqa: E501 - the tables show whole messages
"""Bytes to plain values: YAML 1.2's scalars, and what is refused before any key is looked at."""

import json
import math
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.errors import Problem, SpecError
from training.spec.reader.yaml import MAX_BYTES, MAX_DEPTH, Mark, read_document, scalar

CASES = {
    "1e-3": 0.001,
    "2e-3": 0.002,
    "1E3": 1000.0,
    ".5": 0.5,
    "5.": 5.0,
    "-0.0": 0.0,
    "010": 10,
    "-12": -12,
    "+7": 7,
    "0o17": 15,
    "0x1F": 31,
    "true": True,
    "False": False,
    "null": None,
    "~": None,
    "": None,
    ".inf": math.inf,
    "-.INF": -math.inf,
    "1e999": math.inf,
    "no": "no",
    "on": "on",
    "yes": "yes",
    "off": "off",
    "nO": "nO",
    "12:30:00": "12:30:00",
    "07:00": "07:00",
    "1_000": "1_000",
    "2026-01-31": "2026-01-31",
    "0b11": "0b11",
    "-0x1F": "-0x1F",
    "1e": "1e",
    "nan": "nan",
    "inf": "inf",
    "1.2.3": "1.2.3",
    "٣": "٣",
}


@pytest.mark.parametrize(("text", "value"), CASES.items())
def test_unquoted_scalars_follow_the_core_schema_of_yaml_1_2(text: str, value: object) -> None:
    found = scalar(text)
    assert (found, type(found)) == (value, type(value))


def test_not_a_number_is_read_as_one() -> None:
    assert math.isnan(scalar(".nan"))


def test_number_of_five_thousand_digits_is_infinite_and_no_crash() -> None:
    assert scalar("9" * 5000) == math.inf


@pytest.mark.parametrize("number", ["9" * 50_000, "-" + "9" * 50_000, "0x" + "f" * 50_000, "0o" + "7" * 50_000, "1e" + "9" * 50_000])
def test_number_of_fifty_thousand_digits_is_a_problem_with_its_line(refuse: Callable[..., tuple[Problem, ...]], number: str) -> None:
    (problem,) = refuse("search_ranking", ("epochs: 3", f"epochs: {number}"))
    assert (problem.code, problem.field) == ("field.range", "train.epochs")


def test_quoted_scalars_are_text() -> None:
    assert read_document(b"a: '1'\nb: \"true\"\nc: |\n  5\n", "s").value == {"a": "1", "b": "true", "c": "5\n"}


def test_every_key_and_item_has_its_place() -> None:
    marks = read_document(b"a:\n  b: [x, y]\nc: {d: 1}\n", "s").marks
    assert marks["a", "b"] == Mark(2, 3)
    assert marks["a", "b", 1] == Mark(2, 10)
    assert marks["c", "d"] == Mark(3, 5)


UNREADABLE = [
    (b"a: [1", "spec.syntax", "s:2:1: [spec.syntax] did not find expected ',' or ']', while parsing a flow sequence"),
    (
        b"a:\n\tb: 1",
        "spec.syntax",
        "s:2:1: [spec.syntax] found character that cannot start any token, while scanning for the next token (indent with spaces, not with tabs)",
    ),
    (b"", "spec.shape", "s: [spec.shape] expected one mapping, found nothing (begin with `name: …`)"),
    (b"# a comment\n", "spec.shape", "s: [spec.shape] expected one mapping, found nothing (begin with `name: …`)"),
    (b"- a", "spec.shape", "s:1:1: [spec.shape] expected one mapping, found a list (begin with `name: …`)"),
    (b"word", "spec.shape", "s:1:1: [spec.shape] expected one mapping, found only 'word' (begin with `name: …`)"),
    (b"a: 1\n---\nb: 2", "spec.shape", "s:2:1: [spec.shape] expected one mapping, found a second document (one file per pipeline)"),
    (b"? [a, b]\n: 1", "spec.shape", "s:1:3: [spec.shape] a key must be text, found a list"),
    (b"a: " + b"[" * 500 + b"]" * 500, "spec.too_deep", "s:1:23: [spec.too_deep] is nested more than 20 deep"),
    (
        b"a: " + b"x" * MAX_BYTES,
        "spec.too_large",
        "s: [spec.too_large] has 65539 bytes, at most 65536 are read (data belongs in the source, not in the YAML)",
    ),
    ("a: 1".encode("utf-16"), "spec.encoding", "s: [spec.encoding] is UTF-16 or UTF-32, not UTF-8 (save the file as UTF-8)"),
    ("a: 1".encode("utf-16-le"), "spec.encoding", "s:1: [spec.encoding] has the control character '\\x00' (save the file as UTF-8)"),
    (b"a: 1\nb: \0", "spec.encoding", "s:2: [spec.encoding] has the control character '\\x00' (save the file as UTF-8)"),
    (b"a: 1\nb: \xed\xa0\x80", "spec.encoding", "s:2: [spec.encoding] byte 0xed is not UTF-8 (save the file as UTF-8)"),
    (b"a: \xe9t\xe9", "spec.encoding", "s:1: [spec.encoding] byte 0xe9 is not UTF-8 (save the file as UTF-8)"),
    (
        b'a: "\\ud800"',
        "spec.encoding",
        "s:1:7: [spec.encoding] found invalid Unicode character escape code (surrogates are not characters; write the character itself)",
    ),
]


@pytest.mark.parametrize(("text", "code", "message"), UNREADABLE, ids=[f"{case[1]}-{i}" for i, case in enumerate(UNREADABLE)])
def test_unreadable_text_is_refused_with_its_place(text: bytes, code: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_document(text, "s")
    assert (caught.value.code, caught.value.message) == (code, message)


NOTED = [
    (b"a: 1\nb: 2\na: 3", "s:3:1: a: [spec.duplicate_key] key 'a' is here and in line 1 (keep one of the two)"),
    (b'{"a": {"b": 1, "b": 2}}', "s:1:16: a.b: [spec.duplicate_key] key 'b' is here and in line 1 (keep one of the two)"),
    (b"a: &x 1", "s:1:4: a: [spec.alias] an anchor, &x: each value is written where it is used (take it away)"),
    (b"a: *x", "s:1:4: a: [spec.alias] an alias, *x: each value is written where it is used (write the value out)"),
    (
        b"a: !!python/object/apply:os.system [ls]",
        "s:1:4: a: [spec.tag] the tag 'tag:yaml.org,2002:python/object/apply:os.system': a value's type follows from its spelling (take it away)",
    ),
    (b"a: !x 1", "s:1:4: a: [spec.tag] the tag '!x': a value's type follows from its spelling (take it away)"),
    (b'a: "\\0"', "s:1:4: a: [spec.encoding] has a control character: '\\x00' (take it away)"),
    (b"1: a", "s:1:1: 1: [spec.type] a key must be text, found 1 (quote it: '1')"),
]


@pytest.mark.parametrize(("text", "message"), NOTED)
def test_what_leaves_the_rest_readable_is_noted(text: bytes, message: str) -> None:
    document = read_document(text, "s")
    assert [problem.render("s") for problem in document.problems] == [message]


def test_alias_bomb_is_refused_without_being_expanded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    document = read_document("\n".join(lines).encode(), "s")
    assert {problem.code for problem in document.problems} == {"spec.alias"}
    assert len(document.problems) == 9 + 8 * 9


def test_value_that_contains_itself_is_refused() -> None:
    assert [problem.code for problem in read_document(b"a: &a {b: *a}", "s").problems] == ["spec.alias", "spec.alias"]


def test_merge_key_is_a_key_like_any_other() -> None:
    assert read_document(b"a: {<<: {b: 1}}", "s").value == {"a": {"<<": {"b": 1}}}


@pytest.mark.parametrize("text", ["\ufeffa: 1\nb: [x]\n".encode(), b"a: 1\r\nb: [x]\r\n"], ids=["byte order mark", "CRLF"])
def test_byte_order_mark_and_windows_line_ends_make_no_difference(text: bytes) -> None:
    assert read_document(text, "s").value == {"a": 1, "b": ["x"]}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(min_codepoint=32, max_codepoint=126)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcdef", min_size=1), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text("abcdef", min_size=1), JSON, max_size=5))
@settings(max_examples=80)
def test_json_reads_as_json(value: dict[str, object]) -> None:
    text = json.dumps(value)
    document = read_document(text.encode(), "s")
    assert document.value == json.loads(text)
    assert document.problems == []


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
@settings(max_examples=150)
def test_any_bytes_are_read_or_refused_in_words(data: bytes) -> None:
    # Anything but a SpecError fails here.
    with suppress(SpecError):
        read_document(data, "s")


def test_depth_at_the_limit_is_read() -> None:
    text = "a: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert read_document(text.encode(), "s").problems == []


def test_of_two_values_the_first_is_kept_and_the_second_is_reported_once() -> None:
    document = read_document(b"a: {b: 1}\na: {b: 2, c: 3}\n", "s")
    assert document.value == {"a": {"b": 1}}
    assert [problem.field for problem in document.problems] == ["a"]
