"""What folders name: numbers without zeros, values of columns, and missing ones."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from training.errors import DataError
from training.runtime.provenance import CHECKOUT
from training.sources.interface import PartContent
from training.sources.listing import check_tables_above, list_partitions, list_source, listing_for, missing_partitions
from training.sources.snapshot_files import read_rows
from training.sources.table_contract import TableContract
from training.spec import PipelineSpec, load_spec, resolve_uris
from training.spec.schedule.partitions import folder_of, partition_at, values_at
from training.spec.sections.data import Column

AS_OF = datetime(2026, 2, 1, 2, tzinfo=UTC)
DAYS = [f"2026-01-{day:02d}" for day in range(2, 32)]


def put(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")


def spec_of(folder: Path, partition: str) -> PipelineSpec:
    spec = resolve_uris(load_spec(CHECKOUT / "dags/pipelines/search_ranking.yaml"), {"SHOP_URI": folder.as_uri()})
    source = spec.data.source.model_copy(update={"partition": partition})
    return spec.model_copy(update={"data": spec.data.model_copy(update={"source": source})})


@pytest.mark.parametrize(
    ("partition", "name", "path"),
    [
        ("year=%Y/month=%-m/day=%-d", "2026-03-05", "year=2026/month=3/day=5"),
        ("%Y/%-m/%-d/%-H", "2026-11-25T07", "2026/11/25/7"),
        ("year=%Y/month=%-m", "2026-12", "year=2026/month=12"),
    ],
)
def test_numbers_without_zeros_are_written_and_read(partition: str, name: str, path: str) -> None:
    assert folder_of(partition, name) == path
    assert partition_at(partition, f"{path}/part-0.parquet") == name
    assert partition_at(partition, f"{path.replace('=2026', '=26').replace('2026/', '26/')}/part-0.parquet") == ""


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("year=%Y/month=%m/day=%d", "year=%Y/month=%-m/day=%-d"), ("d=%Y-%m-%-d", "d=%Y-%m-%d"), ("d={date}", "d=%Y-%-m-%-d")],
)
def test_placeholder_for_the_other_padding_is_refused_with_the_folder_and_the_right_one(tmp_path: Path, wrong: str, right: str) -> None:
    for day in DAYS:
        put(tmp_path / "clicks" / folder_of(right, day) / "part-0.parquet")
    assert missing_partitions(spec_of(tmp_path, right), AS_OF) == []
    with pytest.raises(DataError) as caught:
        missing_partitions(spec_of(tmp_path, wrong), AS_OF)
    assert caught.value.code == "partition.padding"
    assert folder_of(right, "2026-01-02") in caught.value.message
    assert f'partition: "{right}"' in caught.value.hint


@pytest.mark.parametrize("partition", ["country={country}/dt={date}", "{date}/{country}"])
def test_partition_has_the_files_of_all_values_and_of_no_other_day(tmp_path: Path, partition: str) -> None:
    for day in ("2026-01-30", "2026-01-31", "2026-02-01"):
        for value in ("DE", "New%20York", "__HIVE_DEFAULT_PARTITION__"):
            put(tmp_path / "my t" / folder_of(partition, day).replace("{country}", value) / "part-0.parquet")
    found = list_partitions(f"{tmp_path}/my t", partition, ["2026-01-30", "2026-01-31", "2026-01-29"])
    assert {name: len(sources) for name, sources in found.items()} == {"2026-01-30": 3, "2026-01-31": 3, "2026-01-29": 0}


def test_file_in_no_partition_is_passed_over_and_folder_of_the_other_padding_refused(tmp_path: Path) -> None:
    partition, days, passed_over = "{country}/dt={date}", ["2026-01-05", "2026-01-06"], list[str]()
    for path in ("DE/dt=2026-01-05", "DE/dt=2025-01-05", "DE/extra/dt=2026-01-05", "DE/dt=2025-1-5"):
        put(tmp_path / "t" / path / "part-0.csv")
    put(tmp_path / "t/DE/late.csv")
    found = list_partitions(f"{tmp_path}/t", partition, days, passed_over=passed_over)
    assert [len(found[day]) for day in days] == [1, 0]
    assert [uri.split("/t/")[1] for uri in passed_over] == ["DE/dt=2025-1-5/part-0.csv", "DE/extra/dt=2026-01-05/part-0.csv", "DE/late.csv"]
    # Another value has the day.
    put(tmp_path / "t/FR/dt=2026-1-5/part-0.csv")
    with pytest.raises(DataError, match="the folder FR/dt=2026-1-5, with no zeros in front of its numbers") as caught:
        list_partitions(f"{tmp_path}/t", partition, days)
    assert caught.value.code == "partition.padding"
    assert 'partition: "{country}/dt=%Y-%-m-%-d"' in caught.value.hint


def test_values_are_those_of_folders_and_placeholders() -> None:
    assert values_at(None, "country=New%20York/n=3/part-0.parquet") == {"country": "New York", "n": "3"}
    assert values_at("{country}/{date}", "__HIVE_DEFAULT_PARTITION__/2026-01-31/part-0.parquet") == {"country": None}


@pytest.mark.parametrize("partition", ["dt={date}", "country={country}/dt={date}", "dt={date}/country={country}"])
def test_folder_of_rows_without_a_time_is_refused(tmp_path: Path, partition: str) -> None:
    spec = spec_of(tmp_path, partition)
    for day in DAYS:
        put(tmp_path / "clicks" / folder_of(partition, day).replace("{country}", "DE") / "part-0.parquet")
    assert len(listing_for(spec, AS_OF)["clicks"]) == len(DAYS)
    put(tmp_path / "clicks" / partition.format(country="DE", date="__HIVE_DEFAULT_PARTITION__") / "part-0.parquet")
    with pytest.raises(DataError) as caught:
        listing_for(spec, AS_OF)
    assert caught.value.code == "partition.null"
    assert "dt=__HIVE_DEFAULT_PARTITION__" in caught.value.message


def test_bare_folder_of_a_missing_value_is_data(tmp_path: Path) -> None:
    put(tmp_path / "t" / "__HIVE_DEFAULT_PARTITION__" / "part-0.parquet")
    check_tables_above((tmp_path / "t").as_uri(), None)
    assert len(list_source((tmp_path / "t").as_uri())) == 1


@pytest.mark.parametrize(
    ("kind", "folder", "value"),
    [
        ("string", "DE", "DE"),
        ("int64", "3", 3),
        ("date", "2026-01-31", date(2026, 1, 31)),
        ("double", "1.5", 1.5),
        ("boolean", "true", True),
        ("string", "__HIVE_DEFAULT_PARTITION__", None),
    ],
)
def test_column_has_the_value_of_its_folder_in_the_type_of_the_yaml(kind: str, folder: str, value: object) -> None:
    columns = {"v": Column(type=kind, generated="partition_value", source_name="Value"), "a": Column(type="int64")}  # type: ignore[arg-type]
    contract = TableContract(name="t", kind="parquet", uri="s3://b/t", columns=columns)
    rows = PartContent(pa.table({"a": pa.array([1, 2])}))
    found = read_rows(contract, rows, source=f"s3://b/t/Value={folder}/part-0.parquet", limit_bytes=2**20)
    assert found.to_pydict() == {"v": [value, value], "a": [1, 2]}


@pytest.mark.parametrize(("folder", "words"), [("v=x", "'x' for 'v', which is declared as int64"), ("w=1", "no folder says")])
def test_value_of_another_type_and_one_that_no_folder_says_are_refused(folder: str, words: str) -> None:
    contract = TableContract(
        name="t",
        kind="parquet",
        uri="s3://b/t",
        columns={"v": Column(type="int64", generated="partition_value"), "a": Column(type="int64")},
    )
    with pytest.raises(DataError, match=words) as caught:
        read_rows(contract, PartContent(pa.table({"a": [1]})), source=f"s3://b/t/{folder}/part-0.parquet", limit_bytes=2**20)
    assert caught.value.code == "partition.value"
