"""Which columns an SQL expression mentions, and which expressions are refused unread. Nothing is executed here.

Words, not grammar: what is outside a string literal, reads like an identifier and is not the name of a function that is
called counts as a mention. So a mention can be seen where there is none (`extract(hour from …)`), never the other way round; that is
the safe side for a check of leakage.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Final, Protocol, TypeVar

_TOKEN = re.compile(
    r"""
      (?P<literal>'(?:[^']|'')*')
    | "(?P<quoted>(?:[^"]|"")*)"
    | (?P<word>[^\W\d]\w*)(?P<call>\s*(?=\())?
    | (?P<number>\d\w*)
    | (?P<comment>--|/\*|\#)
    | (?P<open>['"])
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_CLOCKS: Final = frozenset(
    "now today current_date current_time current_timestamp localtime localtimestamp get_current_time get_current_timestamp "
    "transaction_timestamp random setseed uuid uuidv4 uuidv7 gen_random_uuid getenv nextval currval".split()
)
_STATEMENTS: Final = frozenset(
    "select insert update delete create drop alter attach detach copy install load pragma call export import set with over columns "
    "getvariable query query_table read_csv read_csv_auto read_parquet read_json read_json_auto read_text read_blob glob".split()
)
_SYNTAX: Final = frozenset(
    "and any as asc at between both by case cast century collate day days decade decades desc distinct dow doy else end epoch era escape "
    "false following for from hour hours ilike in interval is isnull isodow isoyear julian lambda leading like microsecond microseconds "
    "millennium millisecond milliseconds minute minutes month months nfc noaccent nocase not notnull null or overlaps placing position "
    "quarter quarters second seconds similar substring symmetric then timezone timezone_hour timezone_minute to trailing trim true "
    "try_cast unknown using week weekday weeks when with without year years yearweek zone".split()
)
_TYPES: Final = frozenset(
    "array bigint bignum binary bit bitstring blob bool boolean bpchar bytea char character date datetime dec decimal double enum float "
    "float4 float8 geometry guid hugeint int int1 int128 int16 int2 int32 int4 int64 int8 integer integral interval invalid json list "
    "logical long map nchar null numeric nvarchar oid precision real row short signed smallint string struct text time time_ns "
    "timestamp timestamp_ms timestamp_ns timestamp_s timestamp_us timestamptz timestamptz_ns timetz tinyint tuple type ubigint uhugeint "
    "uint128 uint16 uint32 uint64 uint8 uinteger union unsigned usmallint utinyint uuid varbinary varchar variant varint varying".split()
)
_NAMES_OF_THEIR_OWN: Final = ("->", ":=", "=>", "[", "{")
"""Parameters of lambdas, named arguments, fields: where one occurs, which words are columns takes a parser."""

_NESTED_TYPE: Final = re.compile(r"\b(struct|union|enum|map)\s*\(", re.IGNORECASE)
"""A type whose parentheses hold names of fields."""


class _HasSql(Protocol):
    @property
    def sql(self) -> str: ...


Column = TypeVar("Column", bound=_HasSql)


@functools.lru_cache(maxsize=4096)
def words(sql: str) -> frozenset[str]:
    """Return the lower-case identifiers and keywords outside string literals, functions that are called left out."""
    found = set()
    for match in _TOKEN.finditer(sql):
        word = match["word"] if match["word"] is not None else match["quoted"]
        if word is not None and match["call"] is None:
            found.add(word.replace('""', '"').lower())
    return frozenset(found)


def unknown_columns(sql: str, known: Iterable[str]) -> list[str]:
    """Return the words of `sql` that can only be columns and that are not in `known`, in the order of mention.

    No word of the SQL syntax, no type and no part of a dotted name is returned, so an unknown column that has such a name is not
    found here; the stages find it, with a parser.
    """
    if any(mark in sql for mark in _NAMES_OF_THEIR_OWN) or "lambda" in words(sql) or _NESTED_TYPE.search(sql):
        return []
    names = {name.lower() for name in known} | _SYNTAX | _TYPES
    tokens = [match for match in _TOKEN.finditer(sql) if not match[0].isspace()]
    found: dict[str, None] = {}
    for before, match, after in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        word = match["word"] if match["word"] is not None else match["quoted"]
        if _names_a_unit_or_collation(tokens, match):
            continue
        # `e'\n'` and `date '2026-01-01'` are literals.
        is_part = (before is not None and before[0] == ".") or (after is not None and (after[0] == "." or after["literal"] is not None))
        if word is not None and match["call"] is None and not is_part and word.replace('""', '"').lower() not in names:
            found[word.replace('""', '"')] = None
    return list(found)


def _names_a_unit_or_collation(tokens: list[re.Match[str]], match: re.Match[str]) -> bool:
    """Return whether a word is the unit of `extract(unit FROM …)`, of which there are dozens, or a collation."""
    index = tokens.index(match)
    before = [token[0].strip().lower() for token in tokens[max(0, index - 2) : index]]
    return before == ["extract", "("] or before[-1:] == ["collate"]


@functools.lru_cache(maxsize=4096)
def objection(sql: str) -> str | None:
    """Return why `sql` cannot be one scalar expression that gives the same value every time, or None."""
    depth = 0
    for match in _TOKEN.finditer(sql):
        if match["comment"]:
            return "has a comment"
        if match["open"]:
            return f"has a {match['open']} that is not closed"
        text = match["other"] or ""
        if text in (";", "$"):
            return f"has a {text!r}"
        depth += (text == "(") - (text == ")")
        if depth < 0:
            break
        word = (match["word"] or "").lower()
        if word in _CLOCKS:
            return f"uses {word}, which differs from one run to the next"
        if word in _STATEMENTS:
            return f"uses {word}: it must be one expression over one row"
    return "has parentheses that do not match" if depth else None


def in_order_of_use(columns: Mapping[str, Column]) -> list[tuple[str, Column]]:
    """Return (name, column) such that each comes after those that it mentions; ties by name, cycles in their place by name."""
    ordered: dict[str, Column] = {}
    waiting = dict(sorted(columns.items()))
    while waiting:
        names = {name.lower() for name in waiting}
        ready = [name for name, column in waiting.items() if not (words(column.sql) & (names - {name.lower()}))]
        for name in ready or list(waiting):
            ordered[name] = waiting.pop(name)
    return list(ordered.items())


def cycle(columns: Mapping[str, _HasSql]) -> list[str]:
    """Return columns that mention one another in a circle, in the order of mention; empty where there is none."""
    by_lower = {name.lower(): name for name in columns}
    uses = {name: sorted(by_lower[word] for word in words(column.sql) & by_lower.keys()) for name, column in columns.items()}
    cleared: set[str] = set()
    for start in sorted(uses):
        path = [start]
        while path:
            onward = [name for name in uses[path[-1]] if name not in cleared]
            if not onward:
                cleared.add(path.pop())
            elif onward[0] in path:
                return path[path.index(onward[0]) :]
            else:
                path.append(onward[0])
    return []
