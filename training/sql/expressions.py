"""SQL expressions out of a YAML file: one scalar expression each, checked before it runs, run where it can reach nothing else.

DuckDB parses; nothing is matched by hand. What passes depends on its row alone: no subquery, aggregate, window, clock,
random number or session setting.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import duckdb

from training.errors import DataError, shown

SQL_TYPES: Final[Mapping[str, str]] = {
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "string": "VARCHAR",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
}
"""The YAML's type names, and DuckDB's."""
Node = dict[str, Any]
"""A node of DuckDB's parse tree, as JSON."""

THREADS: Final = 2
MEMORY_LIMIT: Final = "2GB"
SPILL_FOLDER: Final = ".spill"
"""Below the first of the folders: where queries put what does not fit their memory limit."""
_OF_A_LIST: Final = (
    *("any_value", "approx_count_distinct", "avg", "bit_and", "bit_or", "bit_xor", "bool_and", "bool_or", "count", "entropy", "first"),
    *("histogram", "kurtosis", "kurtosis_pop", "last", "mad", "max", "median", "min", "mode", "product", "sem", "skewness"),
    *("stddev_pop", "stddev_samp", "string_agg", "sum", "var_pop", "var_samp", "append", "prepend", "reverse"),
)
_OF_AN_ARRAY: Final = ("append", "pop_back", "pop_front", "prepend", "push_back", "push_front", "reverse", "to_string")
ROW_MACROS: Final = frozenset(
    {
        *("if", "nullif", "split_part", "fmod", "fdiv", "days_in_month", "date_add"),
        *("json", "map_contains_entry", "map_contains_value", "md5_number_lower", "md5_number_upper", "pg_size_pretty", "pg_typeof"),
        *("array_to_string_comma_default", *(f"array_{name}" for name in _OF_AN_ARRAY), *(f"list_{name}" for name in _OF_A_LIST)),
    }
)
"""Functions that DuckDB defines in SQL, and that depend on their arguments alone (others read the clock, or its catalog)."""
CLOCK_FUNCTIONS: Final = frozenset({"age", "current_localtime", "current_localtimestamp"})
"""Declared as consistent, and yet they read the clock (`age` with one argument)."""
OF_STATEMENTS: Final = frozenset({"json_serialize_sql", "json_serialize_plan", "json_deserialize_sql"})
"""They read and plan SQL, as no function of a row does."""
MAX_GROWTH: Final = 10_000
GROWING: Final[Mapping[str, slice]] = {
    **dict.fromkeys(("repeat", "lpad", "rpad", "list_resize", "array_resize", "bitstring"), slice(1, 2)),
    **dict.fromkeys(("range", "generate_series"), slice(0, 3)),
    "bar": slice(3, 4),
    **dict.fromkeys(("printf", "format"), slice(0, 1)),
}
"""Functions to the arguments that say how large their result is. DuckDB's memory limit does not count the values of a row."""
FORBIDDEN_CLASSES: Final = {"SUBQUERY": "a subquery", "STAR": "a star", "WINDOW": "a window function", "PARAMETER": "a parameter"}

_NOT_IN_THE_TEXT: Final = 2**64 - 1
"""Location of the node of parameters that DuckDB makes of `lambda x, y: …`."""


def hardened(
    folders: list[Path] | None = None, *, memory_limit: str = MEMORY_LIMIT, threads: int = THREADS, trusts_statistics: bool = True
) -> duckdb.DuckDBPyConnection:
    """Open DuckDB in memory, in UTC, unable to reach files (but those below `folders`), the network or its own settings.

    Args:
        trusts_statistics: False: expressions are evaluated by the rows alone. The statistics of Parquet files leave NaN out, so that
            `isnan` would be replaced by false.
    """
    connection = duckdb.connect()
    if not trusts_statistics:
        connection.execute("SET disabled_optimizers = 'statistics_propagation'")
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"SET threads = {threads}")
    connection.execute(f"SET memory_limit = '{memory_limit}'")
    connection.execute("SET python_enable_replacements = false")
    if folders:
        connection.execute(f"SET temp_directory = {literal(str(folders[0] / SPILL_FOLDER))}")
        connection.execute(f"SET allowed_directories = [{', '.join(literal(str(folder)) for folder in folders)}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def quoted(name: str) -> str:
    """Return a column or table name as an SQL identifier, with any characters."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def columns_of(expression: str, available: Collection[str], *, where: str) -> set[str]:
    """Return the names of the columns that one scalar expression mentions.

    Args:
        available: the columns that there are. Any other bare word is refused: SQL has some, like `current_date`, that are not columns.
        where: what the expression belongs to, for messages: `column 'landed_at' of table 'flights'`.

    Raises:
        DataError: `derive.expression`: it is not one scalar expression that depends on its row alone.
    """
    parsed = json.loads(_parser().execute("SELECT json_serialize_sql(?)", [f"SELECT {expression}"]).fetchall()[0][0])
    if parsed["error"]:
        raise _refused(expression, where, parsed["error_message"])
    statements = parsed["statements"]
    if len(statements) != 1:
        raise _refused(expression, where, f"{len(statements)} statements instead of one expression")
    node = statements[0]["node"]
    if node["type"] != "SELECT_NODE" or len(node["select_list"]) != 1 or _has_clauses(node):
        raise _refused(expression, where, "more than one scalar expression")
    scalar = node["select_list"][0]
    if scalar.get("alias"):
        raise _refused(expression, where, "an alias; the key in the YAML names the column")
    by_lower_case = {name.lower(): name for name in available}
    mentioned = set()
    for part, parameters in _walk(scalar):
        kind = part.get("class")
        if kind in FORBIDDEN_CLASSES:
            raise _refused(expression, where, f"{FORBIDDEN_CLASSES[kind]} is not a scalar expression of one row")
        if kind == "FUNCTION" and (fault := _function_fault(part)):
            raise _refused(expression, where, fault)
        # DuckDB reads `a.lower()` as the function `lower` of a schema `a`, and looks for a column `a` first.
        path = [part["schema"], part["catalog"]] if kind == "FUNCTION" else []
        mentioned |= {by_lower_case[name.lower()] for name in path if name.lower() in by_lower_case.keys() - parameters}
        if kind == "COLUMN_REF" and part["column_names"][0].lower() not in parameters:
            name = part["column_names"][-1]
            if name.lower() not in by_lower_case:
                raise _refused(expression, where, f"there is no column {shown(name)} (there are {', '.join(sorted(available))})")
            mentioned.add(by_lower_case[name.lower()])
    return mentioned


def _refused(expression: str, where: str, reason: str) -> DataError:
    return DataError(
        "derive.expression", f"{where}: {reason}, in {shown(expression)}", hint="write one SQL expression over the columns of one row"
    )


def _function_fault(function: Node) -> str:
    """Return why a call has no place in an expression of a row, or nothing; its result may not have any size."""
    name = function["function_name"].lower()
    if name not in _row_functions():
        return f"function {shown(function['function_name'])} is unknown, or does not depend on its row alone"
    if name not in GROWING:
        return ""
    given = [argument["expression"] for argument in function["arguments"]]
    # Of `a.repeat(9)`, `a` is the first argument.
    given = [{}, *given] if function["schema"] else given
    for size in given[GROWING[name]]:
        text = size["literal"]["text"] if size.get("class") == "CONSTANT" else None
        if text is None or any(int(digits[:9]) > MAX_GROWTH for digits in re.findall("[0-9]+", text)):
            return f"{name} takes a constant of at most {MAX_GROWTH:,} for the size of its result"
    inner = (part for argument in given for part, _ in _walk(argument) if part.get("class") == "FUNCTION")
    if any(part["function_name"].lower() in GROWING for part in inner):
        return f"{name} holds another function that makes a value larger"
    return ""


def _has_clauses(node: Node) -> bool:
    clauses = ("where_clause", "group_expressions", "having", "sample", "qualify", "modifiers")
    return node["from_table"]["type"] != "EMPTY" or bool(node["cte_map"]["map"]) or any(node[name] for name in clauses)


def _walk(part: Any, parameters: frozenset[str] = frozenset()) -> Iterator[tuple[Node, frozenset[str]]]:
    """Yield (node, lower-case parameters of the lambdas around it). `j -> '$.a'` of JSON has the class of a lambda and no parameter."""
    if isinstance(part, dict):
        if part.get("class") == "LAMBDA" and part["lhs"]["query_location"] == _NOT_IN_THE_TEXT:
            names = {name.lower() for node, _ in _walk(part["lhs"]) for name in node.get("column_names", ())}
            yield from _walk(part["expr"], parameters | names)
            return
        yield part, parameters
        for inner in part.values():
            yield from _walk(inner, parameters)
    elif isinstance(part, list):
        for inner in part:
            yield from _walk(inner, parameters)


@functools.cache
def _parser() -> duckdb.DuckDBPyConnection:
    return hardened()


@functools.cache
def _row_functions() -> frozenset[str]:
    """Names of the functions that give equal answers for equal arguments, always."""
    query = """
        SELECT lower(function_name) FROM duckdb_functions() WHERE function_type = 'scalar'
        GROUP BY 1 HAVING bool_and(stability = 'CONSISTENT')
    """
    return (frozenset(name for (name,) in _parser().execute(query).fetchall()) | ROW_MACROS) - CLOCK_FUNCTIONS - OF_STATEMENTS
