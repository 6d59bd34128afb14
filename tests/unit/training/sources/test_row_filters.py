"""`where` and `sample`: which rows are kept, equal to a naive computation, in any order and any division into files."""

from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.errors import DataError
from training.sources.row_filters import selected
from training.sources.table_contract import RowSample, TableContract
from training.spec.sections.data import Column
from training.spec.sections.derived import SourceDerived
from training.sql.arrow_types import ARROW_TYPES

TYPES = {"id": "int64", "s": "string", "d": "date", "t": "timestamp", "b": "boolean"}
SCHEMA = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in TYPES.items()])


def contract(**changes: Any) -> TableContract:
    values: dict[str, Any] = {"name": "orders", "kind": "csv", "columns": {name: Column(type=kind) for name, kind in TYPES.items()}}
    return TableContract(**{**values, "key": ("id",), **changes})


def rows(*ids: int | None) -> pa.Table:
    moment = datetime(2026, 1, 1, 6, tzinfo=UTC)
    return pa.Table.from_pylist([{"id": n, "s": f"s{n}", "d": date(2026, 1, 1), "t": moment, "b": True} for n in ids], SCHEMA)


def kept(table: pa.Table, **changes: Any) -> list[Any]:
    return selected(contract(**changes), table, source="f")[0]["id"].to_pylist()


def test_rows_for_which_the_expression_is_false_or_null_are_left_out_and_counted() -> None:
    table, left_out = selected(contract(where="id > 1 AND s <> 's3'"), rows(1, 2, 3, 4, None), source="f")
    assert table["id"].to_pylist() == [2, 4]
    assert table.schema == SCHEMA
    assert left_out == {"where": 3}


def test_an_expression_may_mention_a_derived_column() -> None:
    table = rows(1, 2).append_column("double_id", pa.array([2, 4]))
    assert kept(table, where="double_id = 4", derived={"double_id": SourceDerived(type="int64", sql="id * 2")}) == [2]


@pytest.mark.parametrize(
    ("sql", "code", "message"),
    [
        ("id", "where.type", "data.source.where of table 'orders': 'id' gives BIGINT, it must give true or false"),
        ("CAST(s AS INTEGER) > 1", "where.failed", "f: data.source.where of table 'orders' cannot be computed"),
        ("other > 1", "derive.expression", "data.source.where of table 'orders'"),
        ("count(*) > 1", "derive.expression", "data.source.where of table 'orders'"),
    ],
)
def test_an_expression_that_selects_nothing_sensible_is_refused(sql: str, code: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        selected(contract(where=sql), rows(1), source="f")
    assert caught.value.code == code
    assert message in caught.value.message


def test_a_column_that_is_not_in_the_file_is_named() -> None:
    with pytest.raises(DataError, match=r"column 's' is missing, and data\.source\.where of table 'orders' needs it"):
        selected(contract(where="s = 'a'"), rows(1).drop_columns(["s"]), source="f")
    with pytest.raises(DataError, match="column 'id' is missing, and rows are sampled by it"):
        selected(contract(sample=RowSample(share=0.5, seed=0, by=("id",))), rows(1).drop_columns(["id"]), source="f")


def naive(cells: list[Any], share: float, seed: int) -> bool:
    """Whether a key is in the sample, as the documentation says it."""
    texts = []
    for cell in cells:
        match cell:
            case None:
                texts.append("null")
                continue
            case bool():
                text = "true" if cell else "false"
            case datetime():
                text = str((cell - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6).removesuffix(".0")
            case date():
                text = cell.isoformat()
            case _:
                text = str(cell)
        texts.append(f"{len(text.encode())}:{text}")
    digest = hashlib.md5(f"{seed}|{'|'.join(texts)}".encode(), usedforsecurity=False).hexdigest()
    return int(digest[:15], 16) < round(share * 16**15)


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.none() | st.integers(-(2**63), 2**63 - 1),
            "s": st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6),
            "d": st.none() | st.dates(date(1000, 1, 1)),
            "t": st.none() | st.datetimes(datetime(1960, 1, 1), datetime(2100, 1, 1)).map(lambda at: at.replace(microsecond=0, tzinfo=UTC)),
            "b": st.none() | st.booleans(),
        }
    ),
    max_size=30,
).map(lambda found: [{name: row[name] for name in TYPES} for row in found])


@settings(max_examples=60)
@given(
    found=ROWS,
    by=st.lists(st.sampled_from(sorted(TYPES)), min_size=1, unique=True).map(tuple),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**31 - 1),
    border=st.integers(0, 30),
)
def test_a_sample_is_what_a_naive_computation_gives_in_any_order_and_division(
    found: list[dict[str, Any]], by: tuple[str, ...], share: float, seed: int, border: int
) -> None:
    declared = contract(sample=RowSample(share=share, seed=seed, by=by))
    chosen = [row for row in found if naive([row[name] for name in by], share, seed)]
    expected = pa.Table.from_pylist(chosen, SCHEMA).to_pylist()
    for part in (found, found[::-1]):
        table, left_out = selected(declared, pa.Table.from_pylist(part, SCHEMA), source="f")
        assert sorted(map(str, table.to_pylist())) == sorted(map(str, expected))
        assert left_out == {"sample": len(found) - len(expected)}
    parts = [selected(declared, pa.Table.from_pylist(half, SCHEMA), source="f")[0] for half in (found[:border], found[border:])]
    assert sorted(map(str, pa.concat_tables(parts).to_pylist())) == sorted(map(str, expected))


def test_a_larger_share_holds_the_rows_of_a_smaller_one_and_another_seed_holds_others() -> None:
    table = rows(*range(20_000))
    tenth, half, other = (
        set(kept(table, sample=RowSample(share=share, seed=seed, by=("id",)))) for share, seed in ((0.1, 0), (0.5, 0), (0.1, 1))
    )
    assert tenth < half
    assert abs(len(tenth) - 2000) < 200
    assert abs(len(half) - 10_000) < 400
    assert len(tenth & other) < 400


def test_the_sample_is_taken_of_the_selected_rows_and_each_is_counted() -> None:
    _, left_out = selected(contract(where="id < 100", sample=RowSample(share=0.5, seed=3, by=("id",))), rows(*range(1000)), source="f")
    assert left_out["where"] == 900
    assert 20 < left_out["sample"] < 80
