"""Folders of Delta, Hudi and Iceberg tables are no sources, at any of their folders and files."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.commands import command
from training.errors import DataError
from training.runtime.provenance import CHECKOUT
from training.sources.lake_tables import tables_above
from training.sources.listing import check_tables_above, list_source, listing_for
from training.spec import load_spec, resolve_uris

LOGS = {
    "Delta": "_delta_log/00000000000000000000.json",
    "Hudi": ".hoodie/hoodie.properties",
    "Iceberg": "metadata/00001-5f0c.gz.metadata.json",
}


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    return path


def look_at(uri: str) -> int:
    check_tables_above(uri, None)
    return len(list_source(uri))


PLACES = [(kind, below) for kind in LOGS for below in ("", "country=DE/dt=2026-01-31/", "part-0.parquet")]


@pytest.mark.parametrize(("kind", "below"), [*PLACES, ("Iceberg", "data/"), ("Iceberg", "data/dt=2026-01-31/part-0.parquet")])
def test_lake_table_is_refused_by_name_wherever_the_uri_points_in_it(tmp_path: Path, kind: str, below: str) -> None:
    table = tmp_path / "my lake" / "orders"
    put(table / LOGS[kind])
    put(table / below / "part-0.parquet" if not below.endswith(".parquet") else table / below)
    with pytest.raises(DataError) as caught:
        look_at((table / below).as_uri())
    assert caught.value.code == "source.lake_table"
    assert f"of the format {kind} (it has {LOGS[kind].split('/')[0]}" in caught.value.message
    assert command("init")([str(table / below), "--label", "x", "--to", str(tmp_path)]) == caught.value.exit_code


@pytest.mark.parametrize("log", [*LOGS.values(), "dt=2026-01-31/.hoodie_partition_metadata"])
def test_listing_of_partitions_sees_the_log_beside_them(tmp_path: Path, log: str) -> None:
    spec = resolve_uris(load_spec(CHECKOUT / "dags/pipelines/search_ranking.yaml"), {"SHOP_URI": tmp_path.as_uri()})
    for day in ("2026-01-30", "2026-01-31"):
        put(tmp_path / f"clicks/dt={day}/part-0.parquet")
    as_of = datetime(2026, 2, 1, 2, tzinfo=UTC)
    assert len(listing_for(spec, as_of)["clicks"]) == 2
    put(tmp_path / "clicks" / log)
    with pytest.raises(DataError) as caught:
        listing_for(spec, as_of)
    assert caught.value.code == "source.lake_table"


def test_folders_that_only_look_like_those_of_a_lake_are_read(tmp_path: Path) -> None:
    for name in ("metadata/columns.json", "data/part-0.parquet", "my_delta_log/a.parquet", "_SUCCESS"):
        put(tmp_path / name)
    for uri in (tmp_path.as_uri(), (tmp_path / "data").as_uri()):
        assert look_at(uri)


@pytest.mark.parametrize(
    ("uri", "partition", "places"),
    [
        ("s3://b/t", None, []),
        ("s3://b/t", "dt={date}", ["s3://b/t"]),
        ("s3://b/t/country=DE", None, ["s3://b/t"]),
        ("s3://b/t/country=DE", "dt={date}", ["s3://b/t/country=DE", "s3://b/t"]),
        ("s3://b/t/data/dt=2026-01-31", None, ["s3://b/t/data", "s3://b/t"]),
        ("s3://b/part-0.parquet", None, ["s3://b"]),
        ("s3://b", "dt={date}", ["s3://b"]),
    ],
)
def test_folders_that_no_listing_shows_are_looked_at_once(uri: str, partition: str | None, places: list[str]) -> None:
    assert tables_above(uri, partition) == places
