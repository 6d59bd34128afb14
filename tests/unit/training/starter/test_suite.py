"""The numbers that `nightshift init` writes: limits of the suite, and the label's rule."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.unit.training.starter.orders_bench import ROWS, csv_of, found
from training.starter.column_types import FoundColumn
from training.starter.generated_files import limits_of
from training.starter.label_task import _number

INTEGERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def test_limits_of_the_suite_hold_the_rows_that_they_were_made_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "year": 2016.5 + number % 7 / 6, "price": -(10**6) - number % 3} for number, row in enumerate(ROWS)]
    found(csv_of(rows, tmp_path / "orders.csv"), capsys, to=tmp_path / "to")
    suite = json.loads((tmp_path / "to/expectations/orders/rows.json").read_text(encoding="utf-8"))
    limits = {each["kwargs"]["column"]: each["kwargs"] for each in suite["expectations"]}
    assert (limits["year"]["min_value"], limits["year"]["max_value"]) == (2016, 2018)
    assert (limits["price"]["min_value"], limits["price"]["max_value"]) == (-1000003, -999999)


@given(st.one_of(st.tuples(INTEGERS, INTEGERS), st.tuples(FLOATS, FLOATS)))
@example((1234567.25, 1234567.5))
@example((2**63 - 2, 2**63 - 1))
@example((-1.7e308, 1.7e308))
@example((0.0, 5e-324))
def test_limits_of_any_numbers_hold_them_all(pair: tuple[float, float]) -> None:
    low, high = sorted(pair)
    assume(low != high)
    least, most = json.loads(json.dumps(limits_of(low, high), allow_nan=False))
    assert least <= low < high <= most
    assert isinstance(low, int) or most - least <= 2.03 * (high - low) or most - high > 1e300 or high - low < 1e-320, "and are near them"


@given(st.one_of(st.sets(INTEGERS, min_size=2, max_size=2), st.sets(FLOATS, min_size=2, max_size=2)))
@example({1234567, 1234568})
@example({0.1, 0.1000001})
@example({1e-7, 2e-7})
@example({100.0, 250000.0})
@example({0.0, 9.31483668219103e41})
@example({-9.31483668219103e41, -9.4e41})
def test_rule_of_a_label_of_two_numbers_is_true_for_the_larger_one_alone(numbers: set[float]) -> None:
    kind = "int64" if all(isinstance(number, int) for number in numbers) else "double"
    low, high = sorted(numbers)
    column = FoundColumn(name="label", source_name="label", type=kind, num_missing=0)
    label = _number(column, [(low, 3), (high, 1)], "", 0)
    if (low, high) == (0, 1):
        assert not label.rule
        return
    rows = duckdb.execute(f"SELECT ?::{'BIGINT' if kind == 'int64' else 'DOUBLE'} {label.rule}, ? {label.rule}", [high, low])
    assert rows.fetchall() == [(True, False)]
