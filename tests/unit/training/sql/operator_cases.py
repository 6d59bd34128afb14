"""Edge cases of DuckDB's operators and conversions, and their values.

What is listed depends on its arguments alone, and is computed exactly or rounded once: null, NaN, zeros with signs, division and remainder
of negative numbers, overflow, texts beyond ASCII, changes of clocks. A release of DuckDB that changes one would change datasets unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Cases = tuple[tuple[str, str | None], ...]
"""(expression, its value as text; None: null; `ERROR`). The sign of a NaN is not defined: it is written `nan`."""

ERROR: Final = "error"
"""The expression has no value: the run fails."""

OPERATORS: Final[Mapping[str, Cases]] = {
    "+": (
        ("1 + NULL", None),
        ("9223372036854775807 + 1", ERROR),
        ("0.1::DOUBLE + 0.2::DOUBLE", "0.30000000000000004"),
        ("1e308::DOUBLE + 1e308::DOUBLE", "inf"),
        ("'inf'::DOUBLE - 'inf'::DOUBLE", "nan"),
        ("-0.0::DOUBLE + 0.0::DOUBLE", "0.0"),
    ),
    "-": (
        ("NULL - 1", None),
        ("-9223372036854775807 - 2", ERROR),
        ("0.0::DOUBLE - 0.0::DOUBLE", "0.0"),
        ("'nan'::DOUBLE - 1", "nan"),
        ("- (-9223372036854775808)", "9223372036854775808"),
    ),
    "*": (
        ("NULL * 0", None),
        ("'inf'::DOUBLE * 0", "nan"),
        ("-1.0::DOUBLE * 0.0::DOUBLE", "-0.0"),
        ("4611686018427387904 * 2", ERROR),
        ("1e200::DOUBLE * 1e200::DOUBLE", "inf"),
    ),
    "/": (
        ("7 / 2", "3.5"),
        ("-7 / 2", "-3.5"),
        ("1 / 0", "inf"),
        ("0 / 0", "nan"),
        ("1.0::DOUBLE / 0.0::DOUBLE", "inf"),
        ("-1.0::DOUBLE / 0.0::DOUBLE", "-inf"),
        ("0.0::DOUBLE / 0.0::DOUBLE", "nan"),
        ("NULL / 1", None),
        ("1.0::DOUBLE / -0.0::DOUBLE", "-inf"),
    ),
    "//": (
        ("7 // 2", "3"),
        ("-7 // 2", "-3"),
        ("7 // -2", "-3"),
        ("1 // 0", ERROR),
        ("NULL // 2", None),
        ("-9223372036854775808 // -1", ERROR),
    ),
    "%": (
        ("7 % 3", "1"),
        ("-7 % 3", "-1"),
        ("7 % -3", "1"),
        ("1 % 0", ERROR),
        ("-7.5::DOUBLE % 2.0::DOUBLE", "-1.5"),
        ("'nan'::DOUBLE % 2", "nan"),
        ("NULL % 2", None),
    ),
    "=": (
        ("NULL = NULL", None),
        ("'nan'::DOUBLE = 'nan'::DOUBLE", "true"),
        ("0.0::DOUBLE = -0.0::DOUBLE", "true"),
        ("'a' = 'A'", "false"),
        ("'e\u0301' = '\u00e9'", "false"),
        ("TIMESTAMPTZ '2026-03-29 01:00:00+00' = TIMESTAMPTZ '2026-03-29 03:00:00+02'", "true"),
    ),
    "<>": (
        ("NULL <> 1", None),
        ("'nan'::DOUBLE <> 'nan'::DOUBLE", "false"),
        ("0.0::DOUBLE <> -0.0::DOUBLE", "false"),
    ),
    "<": (
        ("NULL < 1", None),
        ("'nan'::DOUBLE < 'inf'::DOUBLE", "false"),
        ("'inf'::DOUBLE < 'nan'::DOUBLE", "true"),
        ("-0.0::DOUBLE < 0.0::DOUBLE", "false"),
        ("'B' < 'a'", "true"),
        ("'z' < 'é'", "true"),
        ("FALSE < TRUE", "true"),
    ),
    "<=": (
        ("'nan'::DOUBLE <= 'nan'::DOUBLE", "true"),
        ("NULL <= NULL", None),
        ("'' <= 'a'", "true"),
    ),
    ">": (
        ("'nan'::DOUBLE > 'inf'::DOUBLE", "true"),
        ("1 > NULL", None),
        ("'a' > 'B'", "true"),
    ),
    ">=": (
        ("'nan'::DOUBLE >= 1", "true"),
        ("-0.0::DOUBLE >= 0.0::DOUBLE", "true"),
        ("NULL >= 1", None),
    ),
    "AND": (
        ("NULL AND FALSE", "false"),
        ("NULL AND TRUE", None),
        ("TRUE AND FALSE", "false"),
    ),
    "OR": (
        ("NULL OR TRUE", "true"),
        ("NULL OR FALSE", None),
        ("FALSE OR TRUE", "true"),
    ),
    "NOT": (
        ("NOT NULL", None),
        ("NOT TRUE", "false"),
    ),
    "||": (
        ("'a' || NULL", None),
        ("'' || ''", ""),
        ("'é' || '😀'", "é😀"),
    ),
    "IS NULL": (
        ("NULL IS NULL", "true"),
        ("'nan'::DOUBLE IS NULL", "false"),
        ("'' IS NULL", "false"),
    ),
    "IS NOT NULL": (
        ("NULL IS NOT NULL", "false"),
        ("0 IS NOT NULL", "true"),
    ),
    "IS DISTINCT FROM": (
        ("NULL IS DISTINCT FROM NULL", "false"),
        ("1 IS DISTINCT FROM NULL", "true"),
        ("'nan'::DOUBLE IS DISTINCT FROM 'nan'::DOUBLE", "false"),
    ),
    "IN": (
        ("NULL IN (1)", None),
        ("1 IN (2, NULL)", None),
        ("1 IN (1, NULL)", "true"),
        ("'nan'::DOUBLE IN ('nan'::DOUBLE)", "true"),
    ),
    "BETWEEN": (
        ("NULL BETWEEN 1 AND 2", None),
        ("2 BETWEEN 1 AND 2", "true"),
        ("2 BETWEEN 3 AND 1", "false"),
        ("'nan'::DOUBLE BETWEEN 0 AND 'inf'::DOUBLE", "false"),
    ),
    "CASE": (
        ("CASE WHEN NULL THEN 1 ELSE 2 END", "2"),
        ("CASE WHEN FALSE THEN 1 END", None),
        ("CASE NULL WHEN NULL THEN 1 ELSE 2 END", "2"),
        ("CASE WHEN TRUE THEN 1 WHEN TRUE THEN 2 END", "1"),
    ),
    "LIKE": (
        ("'abc' LIKE 'a%'", "true"),
        ("'abc' LIKE 'A%'", "false"),
        ("NULL LIKE '%'", None),
        ("'' LIKE '%'", "true"),
        ("'é' LIKE '_'", "true"),
        ("'a%' LIKE 'a\\%'", "false"),
    ),
}
"""Operators and predicates, with examples and their values."""

CASTS: Final[Mapping[str, Cases]] = {
    "double to bigint": (
        ("CAST(2.5::DOUBLE AS BIGINT)", "2"),
        ("CAST(3.5::DOUBLE AS BIGINT)", "4"),
        ("CAST(-2.5::DOUBLE AS BIGINT)", "-2"),
        ("CAST('nan'::DOUBLE AS BIGINT)", ERROR),
        ("CAST(1e19::DOUBLE AS BIGINT)", ERROR),
        ("CAST(NULL::DOUBLE AS BIGINT)", None),
    ),
    "double to float": (
        ("CAST(0.1::DOUBLE AS FLOAT)", "0.1"),
        ("CAST(1e300::DOUBLE AS FLOAT)", ERROR),
        ("CAST(-0.0::DOUBLE AS FLOAT)", "-0.0"),
    ),
    "bigint to double": (
        ("CAST(9007199254740993 AS DOUBLE)", "9007199254740992.0"),
        ("CAST(-1 AS DOUBLE)", "-1.0"),
    ),
    "bigint to integer": (
        ("CAST(2147483648 AS INTEGER)", ERROR),
        ("CAST(-2147483648 AS INTEGER)", "-2147483648"),
    ),
    "boolean to integer": (
        ("CAST(TRUE AS INTEGER)", "1"),
        ("CAST(NULL::BOOLEAN AS INTEGER)", None),
    ),
    "integer to boolean": (
        ("CAST(2 AS BOOLEAN)", "true"),
        ("CAST(0 AS BOOLEAN)", "false"),
    ),
    "text to bigint": (
        ("CAST('12' AS BIGINT)", "12"),
        ("CAST(' 12 ' AS BIGINT)", "12"),
        ("CAST('' AS BIGINT)", ERROR),
        ("CAST('1,5' AS BIGINT)", ERROR),
        ("CAST('99999999999999999999' AS BIGINT)", ERROR),
    ),
    "text to double": (
        ("CAST('1e3' AS DOUBLE)", "1000.0"),
        ("CAST('abc' AS DOUBLE)", ERROR),
        ("CAST('nan' AS DOUBLE)", "nan"),
        ("CAST('0.1' AS DOUBLE)", "0.1"),
    ),
    "text to date": (
        ("CAST('2026-02-28' AS DATE)", "2026-02-28"),
        ("CAST('2026-02-30' AS DATE)", ERROR),
    ),
    "bigint to text": (
        ("CAST(-7 AS VARCHAR)", "-7"),
        ("CAST(NULL::BIGINT AS VARCHAR)", None),
    ),
    "date to text": (("CAST(DATE '2026-02-28' AS VARCHAR)", "2026-02-28"),),
    "instant to date": (("CAST(TIMESTAMPTZ '2026-03-29 23:30:00+00' AS DATE)", "2026-03-29"),),
}
"""Conversions, source to result."""
