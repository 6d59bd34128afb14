"""Parquet files with what a night may meet in them: encryption, any column names, another order of columns."""

from __future__ import annotations

import base64
import random
import re
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption

from training.errors import DataError
from training.sources.arrow_schema import schema_hash
from training.sources.interface import PartContent
from training.sources.snapshot_files import part_as_is, read_rows
from training.sources.stored_types import EncodingCounts
from training.sources.table_contract import TableContract
from training.spec.sections.data import Column

CONTRACT = TableContract(name="t", kind="parquet", columns={"id": Column(type="int64"), "s": Column(type="string")})
LIMIT = 10**6
ODD_NAMES = ("=cmd()", "__index_level_0__", "🚕", "עברית", "<script>", "a.b", '"', "x" * 1000)


class Keys(encryption.KmsClient):  # type: ignore[misc]
    """Keys that are stored beside the data."""

    def wrap_key(self, key: bytes, _name: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, wrapped: bytes, _name: str) -> bytes:
        return base64.b64decode(wrapped)


def write(folder: Path, table: pa.Table, name: str = "a.parquet") -> Path:
    path = folder / name
    pq.write_table(table, path)
    return path


def write_encrypted(folder: Path, table: pa.Table, *, readable_footer: bool) -> Path:
    """Write a file whose column `s` is encrypted."""
    path = folder / "a.parquet"
    settings = encryption.EncryptionConfiguration(footer_key="k", column_keys={"k": ["s"]}, plaintext_footer=readable_footer)
    factory = encryption.CryptoFactory(lambda _connection: Keys())
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), settings)
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    return path


def refusals(path: Path) -> list[DataError]:
    """Return how a file is refused: one that would be stored as it is, and one that is read."""
    found = []
    with pytest.raises(DataError) as caught:
        part_as_is(CONTRACT, path, source="a.parquet", limit_bytes=LIMIT, counts=EncodingCounts())
    found.append(caught.value)
    with pytest.raises(DataError) as caught:
        read_rows(CONTRACT, PartContent(path), source="a.parquet", limit_bytes=LIMIT)
    return [*found, caught.value]


@pytest.mark.parametrize("readable_footer", [False, True])
def test_an_encrypted_file_is_refused_and_does_not_end_the_process(tmp_path: Path, *, readable_footer: bool) -> None:
    path = write_encrypted(tmp_path, pa.table({"id": [1], "s": ["a"]}), readable_footer=readable_footer)
    for error in refusals(path):
        assert error.code == "format.parquet"
        assert error.message.startswith("a.parquet cannot be read as Parquet: ")
        assert "encrypted" in error.message


def test_columns_in_another_order_are_the_same_schema_and_rows(tmp_path: Path) -> None:
    columns = {"id": [1, 2], "s": ["a", None]}
    orders = (("id", "s"), ("s", "id"))
    written = [write(tmp_path, pa.table({name: columns[name] for name in order}), f"{order[0]}.parquet") for order in orders]
    parts = [part_as_is(CONTRACT, path, source="a.parquet", limit_bytes=LIMIT, counts=EncodingCounts()) for path in written]
    hashes = {schema_hash(part.schema) for part in parts if part is not None}
    assert len(hashes) == 1
    assert read_rows(CONTRACT, PartContent(written[1]), source="a.parquet", limit_bytes=LIMIT).to_pydict() == columns


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_column_of_any_name_is_told_and_may_be_ignored(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, pa.table({"id": [1], "s": ["a"], name: [0]}))
    with pytest.raises(DataError) as caught:
        read_rows(CONTRACT, PartContent(path), source="a.parquet", limit_bytes=LIMIT)
    assert caught.value.code == "schema.unexpected"
    assert name[:20] in caught.value.message
    ignoring = replace(CONTRACT, ignore=(name,))
    assert read_rows(ignoring, PartContent(path), source="a.parquet", limit_bytes=LIMIT).column_names == ["id", "s"]


@pytest.mark.parametrize(
    ("values", "kind", "expression"),
    [
        (pa.array([{"zip": "1"}]), "struct<zip: string>", "nested.zip"),
        (pa.array([{"geo data": {"lat": 1.5}}]), "struct<geo data: struct<lat: double>>", 'nested."geo data".lat'),
        (pa.array([[2]]), "list<element: int64>", "nested[1]"),
        (pa.array([{"all": [2]}]), "struct<all: list<element: int64>>", "nested.all[1]"),
        (pa.array([[("key", 1)]], pa.map_(pa.string(), pa.int64())), "map<string, int64", "nested['key']"),
    ],
)
def test_nested_column_is_refused_with_an_expression_that_takes_a_field_out(
    tmp_path: Path, values: pa.Array, kind: str, expression: str
) -> None:
    path = write(tmp_path, pa.table({"id": [1], "s": ["a"], "nested": values}))
    with pytest.raises(DataError) as caught:
        read_rows(CONTRACT, PartContent(path), source="a.parquet", limit_bytes=LIMIT)
    assert caught.value.code == "schema.unexpected"
    assert kind in caught.value.message
    (found,) = re.findall(r"SELECT (.*) AS nested", caught.value.hint or "")
    assert found == expression
    assert duckdb.sql(f"SELECT {found} FROM '{path}'").fetchall()[0][0] in ("1", 1.5, 2, 1)  # noqa: S608 - test data


@pytest.mark.parametrize(("names", "message"), [(["id", "s", "s"], "column 's' appears twice"), (["id", "s", ""], "column 3 has no name")])
def test_columns_without_a_name_or_with_the_same_are_refused(tmp_path: Path, names: list[str], message: str) -> None:
    path = write(tmp_path, pa.Table.from_arrays([pa.array(["a"])] * 3, names=names))
    for error in refusals(path):
        assert (error.code, message in error.message) == ("schema.names", True)


def test_a_name_in_the_footer_that_is_not_utf8_is_damage(tmp_path: Path) -> None:
    path = write(tmp_path, pa.table({"id": [1], "a_long_name": ["a"]}))
    path.write_bytes(path.read_bytes().replace(b"a_long_name", b"a_l\xd3ng_name"))
    for error in refusals(path):
        assert error.code == "format.parquet"
        assert error.message.startswith("a.parquet cannot be read as Parquet: ")


def test_files_with_any_damaged_bytes_are_read_or_refused_and_do_not_end_the_process(tmp_path: Path) -> None:
    whole = write(tmp_path, pa.table({"id": [1, 2, 3], "s": ["a", "b", "c"]})).read_bytes()
    path, refused, chance = tmp_path / "damaged.parquet", 0, random.Random(13)  # noqa: S311 - test data
    for _ in range(1000):
        content = bytearray(whole)
        content[chance.randrange(4, len(content) - 8)] = chance.randrange(256)
        path.write_bytes(content)
        try:
            part_as_is(CONTRACT, path, source="a.parquet", limit_bytes=LIMIT, counts=EncodingCounts())
            read_rows(CONTRACT, PartContent(path), source="a.parquet", limit_bytes=LIMIT)
        except DataError:
            refused += 1
    assert 300 < refused < 1000
