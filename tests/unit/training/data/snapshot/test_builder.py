"""Snapshots: what is stored of each kind of source, what is left out, and that equal input gives equal digests."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.data.snapshot.builder import SnapshotPlan, take_snapshot
from training.data.snapshot.label_delay import SplitRule
from training.errors import DataError
from training.runtime.provenance import CHECKOUT
from training.sources.arrow_schema import schema_hash
from training.sources.listing import list_source
from training.sources.table_contract import RowSample, TableContract
from training.spec.sections.data import Column
from training.spec.sections.derived import SourceDerived
from training.store import Manifest, Store

START, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC)
SALES = "id,sold,known,x,junk\n3,2026-01-02T10:00:00Z,2026-01-02T11:00:00Z,1.5,j\n1,2026-01-01T12:00:00+02:00,2026-01-01T11:00:00Z,,j\n"


def sales(folder: Path, **changes: Any) -> TableContract:
    values: dict[str, Any] = {
        "name": "sales",
        "kind": "csv",
        "uri": f"{folder.as_uri()}/sales.csv",
        "columns": {
            "id": Column(type="int64"),
            "sold": Column(type="timestamp"),
            "known": Column(type="timestamp"),
            "x": Column(type="double"),
        },
        "derived": {
            "double_id": SourceDerived(type="int64", sql="id * 2"),
            "later": SourceDerived(type="timestamp", sql="sold + to_minutes(double_id)"),
        },
        "ignore": ("junk",),
        "key": ("id",),
        "event_time": "sold",
        "known_at": "known",
    }
    return TableContract(**{**values, **changes})


def daily(folder: Path) -> TableContract:
    columns = {"id": Column(type="int64"), "sold": Column(type="timestamp")}
    return TableContract(
        name="daily", kind="parquet", uri=f"{folder.as_uri()}/daily", columns=columns, key=("id",), event_time="sold", partitioned=True
    )


def entries(uri: str, partitions: list[str] | None = None) -> list[dict[str, Any]]:
    found = list_source(uri)
    days: list[str | None] = [*partitions] if partitions else [None] * len(found)
    return [{"uri": s.uri, "size_bytes": s.size_bytes, "version": s.version, "partition": d} for s, d in zip(found, days, strict=True)]


def snapshot(tmp_path: Path, contract: TableContract, listed: list[dict[str, Any]] | None = None, **changes: Any) -> tuple[Store, Manifest]:
    store = Store(str(tmp_path / "store"))
    listing = {contract.name: entries(contract.uri) if listed is None else listed}
    values: dict[str, Any] = {
        "contracts": [contract],
        "listing": listing,
        "as_of": END,
        "start": START,
        "end": END,
        "split": {},
        "lookback": {},
    }
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    uri, manifest = take_snapshot(store, SnapshotPlan(**{**values, **changes}), scratch, on_file=lambda _done, _total: None)
    assert store.manifests.get(uri, kind="snapshot") == manifest
    return store, manifest


def rows_of(tmp_path: Path, taken: tuple[Store, Manifest], name: str) -> pa.Table:
    store, manifest = taken
    return pq.ParquetFile(store.manifests.fetch(manifest, tmp_path / "fetched") / name).read()


def write_day(folder: Path, day: str, ids: list[int], **more: pa.Array) -> Path:
    path = folder / f"daily/dt={day}/part.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    at = pa.array([datetime.fromisoformat(f"{day}T10:00:00+00:00")] * len(ids), pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), "sold": at, **more}), path)
    return path


def test_csv_rows_are_typed_derived_and_sorted_by_time(tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text(SALES)
    taken = snapshot(tmp_path, sales(tmp_path))
    table = rows_of(tmp_path, taken, "sales/all-00000.parquet")
    assert table.column_names == ["id", "sold", "known", "x", "double_id", "later"]
    assert table["id"].to_pylist() == [1, 3]
    assert table["x"].to_pylist() == [None, 1.5]
    assert table["later"].to_pylist()[0] == datetime(2026, 1, 1, 10, 2, tzinfo=UTC)
    assert table.schema.field("sold").type == pa.timestamp("us", tz="UTC")
    facts = taken[1].meta["tables"]["sales"]
    assert facts["rows"] == 2
    assert facts["schema"]["later"] == "timestamp"
    assert facts["schema_hash"] == schema_hash(dict(reversed(facts["schema"].items())))
    assert facts["parts"]["sales/all-00000.parquet"]["source_key"] == "sales.csv"


def test_only_rows_of_the_window_whose_label_is_known_are_kept(tmp_path: Path) -> None:
    lines = [
        ("1", START - timedelta(microseconds=1), START),
        ("2", START, START),
        ("3", END - timedelta(microseconds=1), END),
        ("4", END, END),
        ("5", START, END + timedelta(microseconds=1)),
    ]
    text = "id,sold,known,x,junk\n" + "".join(f"{n},{at.isoformat()},{known.isoformat()},1,\n" for n, at, known in lines)
    (tmp_path / "sales.csv").write_text(text + "6,,,1,\n")
    table = rows_of(tmp_path, snapshot(tmp_path, sales(tmp_path)), "sales/all-00000.parquet")
    assert table["id"].to_pylist() == [2, 3, 6], "a row without times stays, for validation to report"


def test_a_feature_table_is_cut_to_what_can_matter(tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text(SALES)
    hours = [START - timedelta(hours=3), START - timedelta(hours=2), END - timedelta(hours=1), END - timedelta(minutes=59)]
    (tmp_path / "weather.csv").write_text("sold\n" + "".join(f"{hour.isoformat()}\n" for hour in hours))
    weather = TableContract(
        name="weather",
        kind="csv",
        uri=f"{tmp_path.as_uri()}/weather.csv",
        columns={"sold": Column(type="timestamp")},
        key=("sold",),
        event_time="sold",
        available_after=timedelta(hours=1),
    )
    main = sales(tmp_path)
    listing = {"sales": entries(main.uri), "weather": entries(weather.uri)}
    taken = snapshot(tmp_path, main, contracts=[main, weather], listing=listing, lookback={"weather": START - timedelta(hours=2)})
    assert rows_of(tmp_path, taken, "weather/all-00000.parquet")["sold"].to_pylist() == hours[1:3]


def test_partitions_are_stored_byte_for_byte_and_shared_between_nights(tmp_path: Path) -> None:
    days = ["2026-01-01", "2026-01-02", "2026-01-03"]
    paths = [write_day(tmp_path, day, [number, number + 10]) for number, day in enumerate(days)]
    contract = daily(tmp_path)
    listed = entries(contract.uri, days)
    _, first = snapshot(tmp_path, contract, listed[:2])
    store, second = snapshot(tmp_path, contract, listed[1:])
    shared = "daily/2026-01-02-00000.parquet"
    assert first.files[shared] == second.files[shared]
    assert store.objects.get_bytes(first.files[shared].digest) == paths[1].read_bytes()
    assert first.meta["tables"]["daily"]["rows"] == 4
    assert len(store.bucket.list("objects")) == 3


def test_a_part_that_deviates_is_stored_with_its_own_schema(tmp_path: Path) -> None:
    write_day(tmp_path, "2026-01-01", [1, 2])
    write_day(tmp_path, "2026-01-02", [1], extra=pa.array(["x"]))
    contract = daily(tmp_path)
    _, manifest = snapshot(tmp_path, contract, entries(contract.uri, ["2026-01-01", "2026-01-02"]))
    facts = manifest.meta["tables"]["daily"]
    assert facts["schema"] == {"id": "int64", "sold": "timestamp"}
    assert facts["parts"]["daily/2026-01-02-00000.parquet"]["schema"] == {"sold": "timestamp", "extra": "string", "id": "int64"}
    assert "schema" not in facts["parts"]["daily/2026-01-01-00000.parquet"]


def test_only_a_part_of_another_encoding_is_written_again_and_the_log_counts_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = write_day(tmp_path, "2026-01-01", [1, 2])
    rows = pq.ParquetFile(write_day(tmp_path, "2026-01-02", [4, 3])).read()
    narrow = rows.set_column(0, "id", rows["id"].cast(pa.uint8())).set_column(
        1, "sold", rows["sold"].cast(pa.timestamp("ns", "Asia/Tokyo"))
    )
    pq.write_table(narrow, tmp_path / "daily/dt=2026-01-02/part.parquet")
    contract = daily(tmp_path)
    with caplog.at_level("INFO"):
        taken = snapshot(tmp_path, contract, entries(contract.uri, ["2026-01-01", "2026-01-02"]))
    store, manifest = taken
    assert store.objects.get_bytes(manifest.files["daily/2026-01-01-00000.parquet"].digest) == whole.read_bytes()
    written = rows_of(tmp_path, taken, "daily/2026-01-02-00000.parquet")
    assert (written["id"].to_pylist(), written.schema.types) == ([3, 4], rows.schema.types)
    assert not any("schema" in part for part in manifest.meta["tables"]["daily"]["parts"].values())
    assert [record.message for record in caplog.records if "read as" in record.message] == [
        "daily: uint8 read as int64: id (2 rows in 1 file)",
        "daily: timestamp[ns, tz=Asia/Tokyo] read as timestamp: sold (2 rows in 1 file)",
    ]


def test_equal_sources_give_one_digest_regardless_of_their_order_age_and_place(tmp_path: Path) -> None:
    digests = set()
    for number in (0, 3, 5):
        folder = tmp_path / f"place{number}"
        folder.mkdir()
        days = [f"2026-01-{day:02d}" for day in range(1, 5)]
        for day in days:
            second = write_day(folder, day, [3]).rename(folder / f"daily/dt={day}/second.parquet")
            for path in (second, write_day(folder, day, [1, 2])):
                os.utime(path, (number * 1e8, number * 1e8))
        contract = daily(folder)
        listed = entries(contract.uri, [day for day in days for _ in range(2)])
        listed = listed[number:] + listed[:number]
        digests.add(snapshot(folder, contract, listed)[1].digest)
    assert len(digests) == 1


@pytest.mark.slow
def test_hash_seed_makes_no_difference(tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text(SALES)
    script = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]); "
        "from test_builder import sales, snapshot; print(snapshot(Path(sys.argv[1]), sales(Path(sys.argv[1])))[1].digest)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path), str(Path(__file__).parent)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(CHECKOUT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(found) == 1


def one(kind: str, sql: str) -> dict[str, Any]:
    return {"derived": {"y": SourceDerived(type=kind, sql=sql)}}


def refusal(tmp_path: Path, contract: TableContract, listed: list[dict[str, Any]] | None = None) -> DataError:
    with pytest.raises(DataError) as caught:
        snapshot(tmp_path, contract, listed)
    return caught.value


@pytest.mark.parametrize(
    ("text", "changes", "code", "part_of_message"),
    [
        (SALES.replace("junk", "other"), {}, "schema.unexpected", "1 column(s) that table 'sales' does not declare: 'other'"),
        (SALES.replace(",sold,", ",when,"), {"ignore": ("junk", "when")}, "schema.missing", "column 'sold' is missing, and column 'later'"),
        (SALES.replace("known", "junk2"), {"ignore": ("junk", "junk2")}, "schema.missing", "'known' is missing, and rows are selected"),
        (SALES, one("int64", "(SELECT 1)"), "derive.expression", "a subquery is not a scalar"),
        (SALES, one("int64", "x"), "derive.type", "'x' gives DOUBLE, declared is int64"),
        (SALES, one("timestamp", "make_timestamp(id)"), "derive.type", "gives TIMESTAMP, declared is timestamp"),
        (SALES, one("timestamp", "timezone('UTC', make_timestamp(2026, id, 1, 25, 0, 0))"), "derive.failed", "column 'y'"),
        (SALES, one("int64", "y + 1"), "derive.expression", "there is no column 'y'"),
    ],
)
def test_what_cannot_be_read_as_declared_is_refused(
    tmp_path: Path, text: str, changes: dict[str, Any], code: str, part_of_message: str
) -> None:
    (tmp_path / "sales.csv").write_text(text)
    error = refusal(tmp_path, sales(tmp_path, **changes))
    assert error.code == code
    assert part_of_message in error.message


def test_a_missing_column_that_nothing_needs_is_left_to_validation(tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text(SALES.replace(",x,", ",junk2,"))
    _, manifest = snapshot(tmp_path, sales(tmp_path, ignore=("junk", "junk2")))
    assert "x" not in manifest.meta["tables"]["sales"]["schema"]


@pytest.mark.parametrize(("content", "code"), [(b"", "data.empty"), (b"not parquet at all", "format.content"), (None, "format.parquet")])
def test_a_partition_that_is_no_parquet_is_named(tmp_path: Path, content: bytes | None, code: str) -> None:
    path = write_day(tmp_path, "2026-01-01", [1])
    path.write_bytes(path.read_bytes()[:-20] if content is None else content)
    error = refusal(tmp_path, daily(tmp_path), entries(daily(tmp_path).uri, ["2026-01-01"]))
    assert error.code == code
    assert error.message.startswith(f"{tmp_path.as_uri()}/daily/dt=2026-01-01/part.parquet ")
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_table_without_files_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, daily(tmp_path), []).code == "data.empty"


def test_parquet_without_partitions_is_cut_to_the_window(tmp_path: Path) -> None:
    times = [START - timedelta(days=1), START, END]
    table = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "sold": pa.array(times, pa.timestamp("us", tz="UTC"))})
    pq.write_table(table, tmp_path / "all.parquet")
    contract = TableContract(
        name="all",
        kind="parquet",
        uri=f"{tmp_path.as_uri()}/all.parquet",
        columns={"id": Column(type="int64"), "sold": Column(type="timestamp")},
        key=("id",),
        event_time="sold",
    )
    assert rows_of(tmp_path, snapshot(tmp_path, contract), "all/all-00000.parquet")["id"].to_pylist() == [2]
    pq.write_table(table.set_column(1, "sold", table["sold"].cast(pa.timestamp("us"))), tmp_path / "all.parquet")
    error = refusal(tmp_path, contract)
    assert (error.code, "timestamp[us]" in error.message) == ("schema.type", True)


def test_rows_that_the_yaml_leaves_out_are_counted_and_are_no_rows_without_a_label(tmp_path: Path) -> None:
    late = END + timedelta(days=1)
    rows = [(n, START, late if n >= 98 else START) for n in range(100)]
    text = "id,sold,known,x,junk\n" + "".join(f"{n},{at.isoformat()},{known.isoformat()},1,\n" for n, at, known in rows)
    (tmp_path / "sales.csv").write_text(text + f"200,{END.isoformat()},{START.isoformat()},1,\n")
    rule = SplitRule(validation=timedelta(hours=1), test=timedelta(hours=1), end="window", zone=UTC)
    sample = RowSample(share=0.5, seed=0, by=("id",))
    _, manifest = snapshot(tmp_path, sales(tmp_path, where="id <> 99", sample=sample), split_rule=rule)
    facts = manifest.meta["tables"]["sales"]
    assert facts["left_out"]["where"] == 1, "the row after the window counts nowhere"
    assert facts["rows"] + facts["left_out"]["sample"] + manifest.meta["unknown_labels"]["unknown"] == 99
    assert "left_out" not in snapshot(tmp_path, sales(tmp_path))[1].meta["tables"]["sales"]
