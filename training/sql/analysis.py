"""Which columns an SQL expression mentions, and which expressions are refused unread. Nothing is executed here.

Words, not grammar: an identifier outside string literals counts as a mention, unless it is the name of a called function, a type after
`::` or `AS`, a collation, or the unit of `extract` or of an interval. So a mention can be found where there is none (`{'a': 1}.a`), never
the other way round: that is the safe side for the check of leakage. A test compares both with DuckDB's own parser, and docs/decisions.md
says why no parser library is used.
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
_CLOCKS: Final = frozenset("current_date current_time current_timestamp localtime localtimestamp".split())
"""Values that SQL writes without parentheses."""

_VOLATILE_FUNCTIONS: Final = frozenset(
    "now today get_current_time get_current_timestamp transaction_timestamp random setseed uuid uuidv4 uuidv7 gen_random_uuid getenv "
    "nextval currval".split()
)
_RESERVED: Final = frozenset("select create with".split())
_STATEMENTS: Final = frozenset("insert update delete drop alter attach detach copy install load pragma call export import set".split())
"""Begin a statement, and name a column elsewhere: DuckDB does not reserve them."""

_TABLE_FUNCTIONS: Final = frozenset(
    "over columns getvariable query query_table read_csv read_csv_auto read_parquet read_json read_json_auto read_text read_blob "
    "glob".split()
)
_AGGREGATES: Final = frozenset(
    "any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null arg_max_nulls_last arg_min "
    "arg_min_null arg_min_nulls_last argmax argmin array_agg avg bit_and bit_or bit_xor bitstring_agg bool_and bool_or combine_aggr "
    "corr count count_if count_star countif covar_pop covar_samp decimal_average entropy favg first fsum group_concat histogram "
    "histogram_exact kahan_sum kurtosis kurtosis_pop last listagg lttb mad max max_by mean median min min_by mode product quantile "
    "quantile_cont quantile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy "
    "reservoir_quantile sem skewness stddev stddev_pop stddev_samp string_agg sum sum_no_overflow sumkahan var_pop var_samp variance "
    "variant_group_object".split()
)
"""Functions of several rows. `list` is not among them: it is a type, too."""
_UNITS: Final = frozenset(
    "year years month months day days hour hours minute minutes second seconds week weeks quarter quarters decade decades century "
    "centuries millennium millennia millisecond milliseconds microsecond microseconds".split()
)
_SYNTAX: Final = frozenset(
    "and any as asc at between both by case cast century collate day days decade decades desc distinct dow doy else end epoch era escape "
    "false following for from hour hours ilike in interval is isnull isodow isoyear julian lambda leading like microsecond microseconds "
    "millennium millisecond milliseconds minute minutes month months nfc noaccent nocase not notnull null or overlaps placing position "
    "quarter quarters second seconds similar substring symmetric then timezone timezone_hour timezone_minute to trailing trim true "
    "try_cast unknown using week weekday weeks when with without year years yearweek zone".split()
)
_ALSO_FUNCTIONS: Final = frozenset(
    "century day decade dow doy epoch era hour isodow isoyear julian microsecond millennium millisecond minute month quarter second "
    "substring timezone timezone_hour timezone_minute trim week weekday year yearweek overlaps".split()
)
"""Words of `_SYNTAX` that are functions where they are called."""
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
    """Return the lower-case identifiers and keywords of `sql` that may be columns."""
    tokens = _tokens(sql)
    return frozenset(word.lower() for index, word in enumerate(map(_word, tokens)) if word is not None and not _is_syntax(tokens, index))


def called(sql: str) -> list[str]:
    """Return the lower-case names of the functions that `sql` calls, each once, in the order of mention; without syntax and types."""
    names = (match["word"].lower() for match in _tokens(sql) if match["call"] is not None)
    return [name for name in dict.fromkeys(names) if name not in (_SYNTAX | {"extract"}) - _ALSO_FUNCTIONS and name not in _TYPES]


def unknown_columns(sql: str, known: Iterable[str]) -> list[str]:
    """Return the words of `sql` that can only be columns and that are not in `known`, in the order of mention.

    No word of the SQL syntax, no type and no part of a dotted name is returned, so an unknown column that has such a name is not
    found here; the stages find it, with a parser.
    """
    if any(mark in sql for mark in _NAMES_OF_THEIR_OWN) or "lambda" in words(sql) or _NESTED_TYPE.search(sql):
        return []
    names = {name.lower() for name in known} | _SYNTAX | _TYPES
    tokens = _tokens(sql)
    found: dict[str, None] = {}
    for index, match in enumerate(tokens):
        word, before, after = _word(match), tokens[index - 1] if index else None, tokens[index + 1] if index + 1 < len(tokens) else None
        # `e'\n'` and `date '2026-01-01'` are literals.
        is_part = (before is not None and before[0] == ".") or (after is not None and (after[0] == "." or after["literal"] is not None))
        if word is not None and not is_part and word.lower() not in names and not _is_syntax(tokens, index):
            found[word] = None
    return list(found)


def _tokens(sql: str) -> list[re.Match[str]]:
    return [match for match in _TOKEN.finditer(sql) if not match[0].isspace()]


def _word(match: re.Match[str]) -> str | None:
    """Return the identifier, without its quotes; None for another token and for a function that is called."""
    if match["call"] is not None:
        return None
    return match["word"] if match["word"] is not None else (match["quoted"] or "").replace('""', '"') or None


def _is_syntax(tokens: list[re.Match[str]], index: int) -> bool:
    """Return whether a word stands where the grammar has no column: a type, a collation, or a unit."""
    before = [token[0].strip().lower() for token in tokens[max(0, index - 3) : index]]
    after = tokens[index + 1][0].strip().lower() if index + 1 < len(tokens) else ""
    if before[-1:] in (["collate"], ["as"]) or (before[-2:] == ["extract", "("] and after == "from"):
        return True
    if before[-2:] == [":", ":"]:
        return tokens[index - 2].end() == tokens[index - 1].start()
    return tokens[index][0].lower() in _UNITS and _is_after_interval(tokens, index)


def _is_after_interval(tokens: list[re.Match[str]], index: int) -> bool:
    """Return whether the tokens before `index` are `INTERVAL 2`, `INTERVAL '2'` or `INTERVAL (…)`."""
    start = index - 1
    if start >= 0 and tokens[start][0] == ")":
        depth = 1
        while depth and start > 0:
            start -= 1
            depth += (tokens[start][0] == ")") - (tokens[start][0] == "(")
    elif start < 0 or not (tokens[start]["number"] or tokens[start]["literal"]):
        return False
    return start > 0 and tokens[start - 1][0].strip().lower() == "interval"


@functools.lru_cache(maxsize=4096)
def objection(sql: str) -> str | None:
    """Return why `sql` cannot be one scalar expression that gives the same value every time, or None."""
    depth, tokens = 0, _tokens(sql)
    for index, match in enumerate(tokens):
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
        word, is_called = (match["word"] or "").lower(), match["call"] is not None
        if word in _CLOCKS or (is_called and word in _VOLATILE_FUNCTIONS):
            return f"uses {word}, which differs from one run to the next"
        following = tokens[index + 1][0].strip().lower() if index + 1 < len(tokens) else ""
        if word == "with" and following == "time":  # `timestamp with time zone`
            continue
        if word in _RESERVED or (is_called and word in _TABLE_FUNCTIONS) or (index == 0 and _begins_a_statement(tokens)):
            return f"uses {word}: it must be one expression over one row"
    if depth:
        return "has parentheses that do not match"
    aggregate = next((name for name in called(sql) if name in _AGGREGATES), None)
    return None if aggregate is None else f"uses {aggregate}, which is of several rows: it must be one expression over one row"


def _begins_a_statement(tokens: list[re.Match[str]]) -> bool:
    """Return whether an unreserved word, `load` for one, is followed by what cannot follow a column."""
    following = tokens[1] if len(tokens) > 1 else None
    if following is None or (tokens[0]["word"] or "").lower() not in _STATEMENTS:
        return False
    word = (following["word"] or "").lower()
    return following["literal"] is not None or following["quoted"] is not None or bool(word and word not in _SYNTAX)


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
