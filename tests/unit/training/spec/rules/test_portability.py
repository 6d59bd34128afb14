from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from training.spec.loader import check_file

ROUTE = "origin || '-' || dest"


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("regexp_replace(origin, 'a', 'b') || lower(dest)", "'regexp_replace'"),
        ("strftime(scheduled_departure, '%a') || ln(year)", "'strftime', 'ln'"),
    ],
)
def test_a_function_without_a_defined_value_is_accepted_with_a_warning(
    tmp_path: Path, changed: Callable[..., bytes], sql: str, names: str
) -> None:
    path = tmp_path / "flight_delay.yaml"
    path.write_bytes(changed("flight_delay", (ROUTE, sql)))

    (warning,) = check_file(path).warnings

    assert (warning.code, warning.field) == ("derive.portability", "prepare.derive.route.sql")
    assert warning.message == f"the SQL calls {names}, whose values another version of the engine need not share"


def test_listed_functions_operators_and_casts_give_no_warning(tmp_path: Path, changed: Callable[..., bytes]) -> None:
    path = tmp_path / "flight_delay.yaml"
    sql = "CASE WHEN (year IN (2013)) THEN upper(substring(origin, 1, 2)) || CAST(round(year / 7) AS VARCHAR) END"
    path.write_bytes(changed("flight_delay", (ROUTE, sql)))

    assert check_file(path).warnings == ()


def test_condition_of_a_window_warns_like_other_sql(tmp_path: Path, changed: Callable[..., bytes]) -> None:
    path = tmp_path / "flight_delay.yaml"
    label = "  label: {column: arr_delay"
    window = """  windows:\n    w: {kind: since_last, by: [origin], where: "md5(dest) = 'x'"}\n"""
    path.write_bytes(changed("flight_delay", (label, window + label)))

    (warning,) = check_file(path).warnings
    assert (warning.code, warning.field) == ("derive.portability", "data.windows.w.where")
