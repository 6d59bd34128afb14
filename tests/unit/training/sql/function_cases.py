"""Edge cases of DuckDB's functions of one row, and their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.unit.training.sql.operator_cases import ERROR, Cases

FUNCTIONS: Final[Mapping[str, Cases]] = {
    "abs": (
        ("abs(-0.0::DOUBLE)", "0.0"),
        ("abs(NULL)", None),
        ("abs('nan'::DOUBLE)", "nan"),
        ("abs(-9223372036854775808)", ERROR),
        ("abs(-3)", "3"),
    ),
    "ceil": (
        ("ceil(-0.5::DOUBLE)", "-0.0"),
        ("ceil(1.2::DOUBLE)", "2.0"),
        ("ceil('inf'::DOUBLE)", "inf"),
        ("ceil(NULL::DOUBLE)", None),
    ),
    "floor": (
        ("floor(-0.5::DOUBLE)", "-1.0"),
        ("floor(-0.0::DOUBLE)", "-0.0"),
        ("floor('nan'::DOUBLE)", "nan"),
        ("floor(NULL::DOUBLE)", None),
    ),
    "round": (
        ("round(0.5::DOUBLE)", "1.0"),
        ("round(1.5::DOUBLE)", "2.0"),
        ("round(2.5::DOUBLE)", "3.0"),
        ("round(-2.5::DOUBLE)", "-3.0"),
        ("round('nan'::DOUBLE)", "nan"),
        ("round(NULL::DOUBLE)", None),
    ),
    "trunc": (
        ("trunc(-1.7::DOUBLE)", "-1.0"),
        ("trunc(1.7::DOUBLE)", "1.0"),
        ("trunc('inf'::DOUBLE)", "inf"),
    ),
    "sign": (
        ("sign(-0.0::DOUBLE)", "0"),
        ("sign('nan'::DOUBLE)", "0"),
        ("sign(-3)", "-1"),
        ("sign(NULL)", None),
    ),
    "sqrt": (
        ("sqrt(2.0::DOUBLE)", "1.4142135623730951"),
        ("sqrt(0.0::DOUBLE)", "0.0"),
        ("sqrt('inf'::DOUBLE)", "inf"),
        ("sqrt(-1.0::DOUBLE)", "nan"),
        ("sqrt(NULL::DOUBLE)", None),
    ),
    "greatest": (
        ("greatest(1, NULL, 3)", "3"),
        ("greatest('nan'::DOUBLE, 'inf'::DOUBLE)", "nan"),
        ("greatest(NULL, NULL)", None),
        ("greatest('a', 'B')", "a"),
    ),
    "least": (
        ("least(1, NULL, 3)", "1"),
        ("least('nan'::DOUBLE, 1.0::DOUBLE)", "1.0"),
        ("least('a', 'B')", "B"),
    ),
    "coalesce": (
        ("coalesce(NULL, 2)", "2"),
        ("coalesce('nan'::DOUBLE, 1)", "nan"),
        ("coalesce(NULL, NULL)", None),
    ),
    "nullif": (
        ("nullif(1, 1)", None),
        ("nullif(1, NULL)", "1"),
        ("nullif(0.0::DOUBLE, -0.0::DOUBLE)", None),
        ("nullif('nan'::DOUBLE, 'nan'::DOUBLE)", None),
    ),
    "if": (
        ("if(NULL, 1, 2)", "2"),
        ("if(TRUE, 1, 2)", "1"),
    ),
    "isnan": (
        ("isnan('nan'::DOUBLE)", "true"),
        ("isnan(NULL::DOUBLE)", None),
        ("isnan('inf'::DOUBLE)", "false"),
    ),
    "isinf": (
        ("isinf('-inf'::DOUBLE)", "true"),
        ("isinf('nan'::DOUBLE)", "false"),
    ),
    "isfinite": (
        ("isfinite('nan'::DOUBLE)", "false"),
        ("isfinite('inf'::DOUBLE)", "false"),
        ("isfinite(1.0::DOUBLE)", "true"),
    ),
    "lower": (
        ("lower('ÀB')", "àb"),
        ("lower('ẞ')", "ß"),
        ("lower('İ')", "i"),
        ("lower(NULL)", None),
        ("lower('')", ""),
    ),
    "upper": (
        ("upper('éa')", "ÉA"),
        ("upper('ß')", "ẞ"),
        ("upper('ı')", "I"),
    ),
    "length": (
        ("length('é')", "1"),
        ("length('e\u0301')", "2"),
        ("length('😀')", "1"),
        ("length('')", "0"),
        ("length(NULL)", None),
    ),
    "trim": (
        ("trim('  a ')", "a"),
        ("trim('\ta')", "\ta"),
        ("trim('')", ""),
    ),
    "ltrim": (("ltrim('  a ')", "a "),),
    "rtrim": (("rtrim('  a ')", "  a"),),
    "substring": (
        ("substring('héllo', 2, 2)", "él"),
        ("substring('abc', 0, 2)", "a"),
        ("substring('abc', -2, 2)", "bc"),
        ("substring('abc', 5, 1)", ""),
        ("substring(NULL, 1, 1)", None),
        ("substring('😀b', 1, 1)", "😀"),
    ),
    "left": (
        ("left('héy', 2)", "hé"),
        ("left('abc', -1)", "ab"),
        ("left('abc', 0)", ""),
    ),
    "right": (
        ("right('héy', 2)", "éy"),
        ("right('abc', -1)", "bc"),
    ),
    "replace": (
        ("replace('aaa', 'aa', 'b')", "ba"),
        ("replace('abc', '', 'x')", "abc"),
        ("replace('abc', NULL, 'x')", None),
    ),
    "concat": (
        ("concat('a', NULL, 'b')", "ab"),
        ("concat(NULL, NULL)", ""),
    ),
    "contains": (
        ("contains('abc', '')", "true"),
        ("contains('abc', 'B')", "false"),
        ("contains(NULL, 'a')", None),
    ),
    "starts_with": (
        ("starts_with('abc', '')", "true"),
        ("starts_with('é', 'e')", "false"),
        ("starts_with(NULL, 'a')", None),
    ),
    "ends_with": (
        ("ends_with('abc', 'c')", "true"),
        ("ends_with('abc', '')", "true"),
    ),
    "strpos": (
        ("strpos('héllo', 'l')", "3"),
        ("strpos('abc', 'x')", "0"),
        ("strpos('abc', '')", "1"),
    ),
    "split_part": (
        ("split_part('a-b-c', '-', 2)", "b"),
        ("split_part('a-b', '-', 5)", ""),
        ("split_part('a-b', '-', -1)", "b"),
    ),
    "lpad": (
        ("lpad('7', 3, '0')", "007"),
        ("lpad('1234', 3, '0')", "123"),
    ),
    "year": (
        ("year(DATE '2024-12-30')", "2024"),
        ("year(TIMESTAMPTZ '2025-12-31 23:30:00+00')", "2025"),
        ("year(NULL::DATE)", None),
    ),
    "month": (("month(DATE '2024-02-29')", "2"),),
    "day": (("day(DATE '2024-02-29')", "29"),),
    "hour": (
        ("hour(TIMESTAMPTZ '2026-03-29 01:30:00+00')", "1"),
        ("hour(timezone('Europe/Berlin', TIMESTAMPTZ '2026-03-29 00:30:00+00'))", "1"),
        ("hour(timezone('Europe/Berlin', TIMESTAMPTZ '2026-03-29 01:30:00+00'))", "3"),
        ("hour(timezone('Europe/Berlin', TIMESTAMPTZ '2026-10-25 00:30:00+00'))", "2"),
        ("hour(timezone('Europe/Berlin', TIMESTAMPTZ '2026-10-25 01:30:00+00'))", "2"),
    ),
    "minute": (
        ("minute(TIMESTAMPTZ '2026-03-29 01:30:00+00')", "30"),
        ("minute(timezone('Asia/Kathmandu', TIMESTAMPTZ '2026-01-01 00:00:00+00'))", "45"),
    ),
    "second": (("second(TIMESTAMPTZ '2026-03-29 01:30:59.999999+00')", "59"),),
    "isodow": (
        ("isodow(DATE '2026-11-22')", "7"),
        ("isodow(DATE '2026-11-23')", "1"),
    ),
    "dayofyear": (("dayofyear(DATE '2024-12-31')", "366"),),
    "week": (
        ("week(DATE '2027-01-01')", "53"),
        ("week(DATE '2024-12-30')", "1"),
    ),
    "quarter": (("quarter(DATE '2026-04-01')", "2"),),
    "date_trunc": (
        ("date_trunc('hour', TIMESTAMPTZ '2026-03-29 01:59:59+00')", "2026-03-29 01:00:00+00"),
        ("date_trunc('week', DATE '2026-11-22')", "2026-11-16 00:00:00"),
        ("date_trunc('month', TIMESTAMPTZ '2026-03-31 23:00:00+00')", "2026-03-01 00:00:00+00"),
    ),
    "date_diff": (
        ("date_diff('day', DATE '2024-02-28', DATE '2024-03-01')", "2"),
        ("date_diff('hour', TIMESTAMPTZ '2026-03-29 00:59:00+00', TIMESTAMPTZ '2026-03-29 01:00:00+00')", "1"),
        ("date_diff('day', DATE '2026-01-02', DATE '2026-01-01')", "-1"),
        ("date_diff('day', NULL, DATE '2026-01-01')", None),
    ),
    "epoch_us": (
        ("epoch_us(TIMESTAMPTZ '1969-12-31 23:59:59.999999+00')", "-1"),
        ("epoch_us(NULL::TIMESTAMPTZ)", None),
    ),
    "timezone": (
        ("timezone('Europe/Berlin', TIMESTAMPTZ '2026-03-29 01:00:00+00')", "2026-03-29 03:00:00"),
        ("timezone('Europe/Berlin', TIMESTAMP '2026-03-29 02:30:00')", "2026-03-29 01:30:00+00"),
        ("timezone('Europe/Berlin', TIMESTAMP '2026-10-25 02:30:00')", "2026-10-25 01:30:00+00"),
        ("timezone('America/New_York', TIMESTAMPTZ '2026-11-01 06:30:00+00')", "2026-11-01 01:30:00"),
    ),
    "to_days": (("TIMESTAMPTZ '2026-03-28 12:00:00+00' + to_days(1)", "2026-03-29 12:00:00+00"),),
    "to_hours": (("TIMESTAMPTZ '2026-03-28 23:30:00+00' + to_hours(-1)", "2026-03-28 22:30:00+00"),),
    "to_minutes": (
        ("TIMESTAMPTZ '2026-03-29 00:30:00+00' + to_minutes(90)", "2026-03-29 02:00:00+00"),
        ("TIMESTAMPTZ '2026-03-29 00:30:00+00' + to_minutes(NULL)", None),
    ),
    "to_seconds": (("TIMESTAMPTZ '2026-03-29 00:30:00+00' + to_seconds(1)", "2026-03-29 00:30:01+00"),),
    "make_date": (("make_date(2024, 2, 29)", "2024-02-29"), ("make_date(2023, 2, 29)", ERROR), ("make_date(NULL, 1, 1)", None)),
    "make_timestamp": (
        ("make_timestamp(2026, 3, 29, 2, 30, 0)", "2026-03-29 02:30:00"),
        ("make_timestamp(2026, 1, 1, 0, 0, 59.5)", "2026-01-01 00:00:59.5"),
        ("make_timestamp(2026, 1, 1, 24, 0, 0)", "2026-01-02 00:00:00"),
        ("make_timestamp(2026, 2, 30, 0, 0, 0)", ERROR),
        ("make_timestamp(NULL, 1, 1, 0, 0, 0)", None),
        ("make_timestamp(-1)", "1969-12-31 23:59:59.999999"),
    ),
}
"""Functions of one row."""
