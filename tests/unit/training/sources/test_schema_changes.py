"""What a YAML changes of the tables of an earlier snapshot."""

from __future__ import annotations

from typing import Any

from training.sources.schema_changes import in_words, schema_changes
from training.sources.table_contract import TableContract
from training.spec.sections.data import Column
from training.spec.sections.derived import SourceDerived

COLUMNS = {"id": Column(type="int64"), "price": Column(type="float")}


def contract(name: str = "orders", **changes: Any) -> TableContract:
    return TableContract(**{"name": name, "kind": "csv", "columns": COLUMNS, "ignore": ("note",), **changes})


def meta(**schemas: dict[str, str]) -> dict[str, Any]:
    return {name: {"schema": schema} for name, schema in schemas.items()}


def test_added_removed_and_changed_columns_and_tables_are_named_with_old_and_new() -> None:
    derived = {"cents": SourceDerived(type="int64", sql="id")}
    tables = meta(orders={"id": "int32", "price": "float", "old": "string"}, gone={"a": "int8"})
    assert schema_changes([contract(derived=derived), contract("stores")], tables) == [
        "gone: table removed",
        "orders.cents: added, int64",
        "orders.id: int32 → int64",
        "orders.old: removed, was string",
        "stores: table added",
    ]


def test_the_order_of_columns_and_ignored_ones_are_no_changes() -> None:
    assert schema_changes([contract()], meta(orders={"price": "float", "note": "string", "id": "int64"})) == []


def test_ten_changes_are_named_and_the_others_counted() -> None:
    assert in_words([str(number) for number in range(12)]) == "0; 1; 2; 3; 4; 5; 6; 7; 8; 9 and 2 more"
