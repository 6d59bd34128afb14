"""Encodings of a column's values: those that lose nothing are read, others are refused with the row and what to write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.errors import DataError, counted
from training.sources.interface import PartContent
from training.sources.snapshot_files import part_as_is, read_rows
from training.sources.stored_types import EncodingCounts, remedy
from training.sources.table_contract import TableContract
from training.spec.sections.data import Column
from training.sql.arrow_types import ARROW_TYPES

LIMIT = 10**7
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
MICROSECONDS = round(NOON.timestamp() * 1e6)
CONTRACT = TableContract(name="t", kind="parquet", columns={"x": Column(type="int64")}, partitioned=True)


def declared(**keys: Any) -> TableContract:
    return replace(CONTRACT, columns={"x": Column(**keys)})


def write(path: Path, values: pa.Array, **options: Any) -> Path:
    pq.write_table(pa.table({"x": values}), path, **options)
    return path


def read(contract: TableContract, path: Path, counts: EncodingCounts | None = None) -> pa.ChunkedArray:
    return read_rows(contract, PartContent(path), source="a.parquet", limit_bytes=LIMIT, counts=counts).column("x")


@pytest.mark.parametrize(
    ("values", "keys", "expected"),
    [
        (pa.nulls(2), {"type": "string"}, [None, None]),
        (pa.array([1, None], pa.int8()), {"type": "int64"}, [1, None]),
        (pa.array([255], pa.uint8()), {"type": "int16"}, [255]),
        (pa.array([2**63 - 1], pa.uint64()), {"type": "int64"}, [2**63 - 1]),
        (pa.array([7], pa.int64()), {"type": "int8"}, [7]),
        (pa.array([2**53]), {"type": "double"}, [2.0**53]),
        (pa.array([2**24], pa.int32()), {"type": "float"}, [2.0**24]),
        (pa.array([3.0, None]), {"type": "int32"}, [3, None]),
        (pa.array([2.0**24 - 1], pa.float32()), {"type": "int64"}, [2**24 - 1]),
        (pa.array([1.5], pa.float16()), {"type": "double"}, [1.5]),
        (pa.array([0.1], pa.float32()), {"type": "double"}, [0.10000000149011612]),
        (pa.array([1, 2, 1], pa.int32()).dictionary_encode(), {"type": "int64"}, [1, 2, 1]),
        (pa.array(["a"], pa.large_string()).dictionary_encode(), {"type": "string"}, ["a"]),
        (pa.array(["ü".encode()]), {"type": "string"}, ["ü"]),
        (pa.array([Decimal(10**18 - 1)], pa.decimal128(18, 0)), {"type": "int64"}, [10**18 - 1]),
        (pa.array([Decimal("8765432.29"), None], pa.decimal128(15, 2)), {"type": "double"}, [8765432.29, None]),
        (pa.array([Decimal("1234567890123456.7")], pa.decimal128(38, 1)), {"type": "double", "stored_as": "decimal"}, [1234567890123456.8]),
        (pa.array([Decimal("-12.34"), None], pa.decimal128(38, 2)), {"type": "int64", "scale": 2}, [-1234, None]),
        (pa.array([Decimal(2**62)], pa.decimal256(60, 0)), {"type": "int64", "scale": 0}, [2**62]),
        (pa.array([12], pa.int32()), {"type": "int64", "scale": 2}, [1200]),
        (pa.array([MICROSECONDS // 1000], pa.timestamp("ms", "UTC")), {"type": "timestamp"}, [NOON]),
        (pa.array([MICROSECONDS * 1000], pa.timestamp("ns", "Asia/Tokyo")), {"type": "timestamp"}, [NOON]),
        (pa.array([MICROSECONDS], pa.timestamp("us")), {"type": "timestamp", "zone": "UTC"}, [NOON]),
        (pa.array([MICROSECONDS * 1000], pa.timestamp("ns")), {"type": "timestamp", "zone": "Asia/Tokyo"}, [NOON.replace(hour=3)]),
    ],
)  # fmt: skip
def test_values_that_stay_the_same_are_read_as_declared_and_counted(
    tmp_path: Path, values: pa.Array, keys: dict[str, Any], expected: list[Any]
) -> None:
    path, contract, counts = write(tmp_path / "a.parquet", values), declared(**keys), EncodingCounts()
    found = read(contract, path, counts)
    assert (found.type, found.to_pylist()) == (ARROW_TYPES[keys["type"]], expected)
    (line,) = counts.lines()
    assert line.endswith(f" read as {keys['type']}: x ({counted(len(expected), 'row')} in 1 file)")


@pytest.mark.parametrize(
    ("values", "keys", "message"),
    [
        (pa.array([1, 300], pa.uint16()), {"type": "int8"}, "row 2, column 'x': '300', uint16, cannot be read as int8 without a loss"),
        (pa.array([2**63], pa.uint64()), {"type": "int64"}, "'9223372036854775808', uint64"),
        (pa.array([1, 2**53 + 1, 3]), {"type": "double"}, "row 2, column 'x': '9007199254740993', int64"),
        (pa.array([2**24 + 1]), {"type": "float"}, "'16777217', int64"),
        # Of 32 bits, 16777217 is this number too.
        (pa.array([5.0, 2.0**24 + 2], pa.float32()), {"type": "int64"}, "row 2, column 'x': '16777218.0', float"),
        (pa.array([2.0**53 + 2]), {"type": "int64"}, "'9007199254740994.0', double"),
        (pa.array([1.5]), {"type": "int64"}, "'1.5', double"),
        (pa.array([float("nan")]), {"type": "int64"}, "'nan', double"),
        (pa.array([b"\xff"]), {"type": "string"}, "cannot be read as string"),
        (pa.array([Decimal("0.001")], pa.decimal128(20, 3)), {"type": "int64", "scale": 2}, "'0.001', decimal128(20, 3)"),
        (pa.array([MICROSECONDS * 1000 + 1], pa.timestamp("ns", "UTC")), {"type": "timestamp"}, "timestamp[ns, tz=UTC], cannot be read"),
        (
            pa.array(["2026-03-29T01:30:00", "2026-03-29T02:30:00"]).cast(pa.timestamp("us")),
            {"type": "timestamp", "zone": "Europe/Berlin"},
            "row 2, column 'x': '2026-03-29 02:30:00', timestamp[us], cannot be read as a time in Europe/Berlin: the clock shows it twice",
        ),
    ],
)
def test_value_that_would_not_stay_the_same_is_refused_with_its_row(
    tmp_path: Path, values: pa.Array, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError) as caught:
        read(declared(**keys), write(tmp_path / "a.parquet", values))
    assert caught.value.code == "schema.type"
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("values", "keys", "allowing"),
    [
        (pa.array([Decimal("1.5")], pa.decimal128(16, 2)), {"type": "double"}, "{type: int64, scale: 2}"),
        (pa.array([Decimal(1)], pa.decimal128(38, 0)), {"type": "int64"}, "{type: double, stored_as: decimal}"),
        (pa.array([1], pa.timestamp("us")), {"type": "timestamp"}, "zone: Europe/Berlin"),
        (pa.array([1], pa.timestamp("us")), {"type": "timestamp", "stored_as": "int96_utc"}, "zone: UTC"),
        (pa.array([1.5]), {"type": "float"}, ""),
        (pa.array(["1"]), {"type": "int64"}, ""),
    ],
)
def test_type_that_could_be_misread_is_left_to_validation_which_names_the_key(
    tmp_path: Path, values: pa.Array, keys: dict[str, Any], allowing: str
) -> None:
    path = write(tmp_path / "a.parquet", values)
    assert read(declared(**keys), path).type == values.type
    part = part_as_is(declared(**keys), path, source="a.parquet", limit_bytes=LIMIT, counts=EncodingCounts())
    assert part is not None
    assert allowing in remedy(part.schema["x"], "x")


def test_int96_is_read_by_its_key_also_of_years_beyond_nanoseconds(tmp_path: Path) -> None:
    times = pa.array([MICROSECONDS, -(10**15)], pa.timestamp("us"))
    path = write(tmp_path / "a.parquet", times, use_deprecated_int96_timestamps=True)
    assert read(declared(type="timestamp"), path).type == pa.timestamp("us")
    found = read(declared(type="timestamp", stored_as="int96_utc"), path)
    assert found.cast(pa.int64()).to_pylist() == [MICROSECONDS, -(10**15)]


@pytest.mark.parametrize("keys", [{"stored_as": "int96_utc"}, {"zone": "Europe/Berlin"}])
def test_int96_that_microseconds_do_not_hold_is_refused_with_its_rows(tmp_path: Path, keys: dict[str, str]) -> None:
    times = pa.array([0, None, 10**14, -62_135_596_800, 10**14], pa.timestamp("s"))
    path = write(tmp_path / "a.parquet", times, use_deprecated_int96_timestamps=True)
    with pytest.raises(DataError, match=r"column 'x': INT96 .* from 1970 \(2 rows of 5, the first is row 3\)") as caught:
        read(declared(type="timestamp", **keys), path)
    assert caught.value.code == "schema.type"


def as_is(contract: TableContract, path: Path, counts: EncodingCounts) -> bool:
    return part_as_is(contract, path, source="a.parquet", limit_bytes=LIMIT, counts=counts) is not None


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([MICROSECONDS], pa.timestamp("us", "Europe/Berlin")), "timestamp"),
        (pa.array(["a"], pa.large_string()), "string"),
    ],
)
def test_file_that_is_the_same_in_parquet_is_kept_byte_for_byte(tmp_path: Path, values: pa.Array, kind: str) -> None:
    counts = EncodingCounts()
    assert as_is(declared(type=kind), write(tmp_path / "a.parquet", values), counts)
    assert len(counts.lines()) == 1
    assert not as_is(declared(type="int32"), write(tmp_path / "b.parquet", pa.array([1])), counts)


@pytest.mark.parametrize("write_day", [lambda frame: frame.iloc[:0], lambda frame: frame[frame["x"] < 0].astype(object)])
def test_day_without_rows_as_pandas_writes_it_is_read(tmp_path: Path, write_day: Callable[[Any], Any]) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"x": [1, 2], "s": ["a", "b"], "at": pd.to_datetime(["2026-01-01", "2026-01-02"])}, index=[5, 9])
    write_day(frame).to_parquet(tmp_path / "a.parquet")
    columns = {"x": Column(type="int64"), "s": Column(type="string"), "at": Column(type="timestamp")}
    contract = replace(CONTRACT, columns=columns)
    assert not as_is(contract, tmp_path / "a.parquet", EncodingCounts())
    counts = EncodingCounts()
    rows = read_rows(contract, PartContent(tmp_path / "a.parquet"), source="a.parquet", limit_bytes=LIMIT, counts=counts)
    assert (rows.num_rows, rows.schema.types) == (0, [ARROW_TYPES[column.type] for column in columns.values()])
    assert "index of pandas read as no column: __index_level_0__ (0 rows in 1 file)" in counts.lines()
    pd.DataFrame([]).to_parquet(tmp_path / "b.parquet")
    assert not as_is(contract, tmp_path / "b.parquet", EncodingCounts())
    assert read_rows(contract, PartContent(tmp_path / "b.parquet"), source="b.parquet", limit_bytes=LIMIT).schema == rows.schema
