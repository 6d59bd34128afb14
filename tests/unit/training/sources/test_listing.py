"""What lies at the sources, and copies of one version of it."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from training.errors import DataError
from training.runtime.provenance import CHECKOUT
from training.sources import listing
from training.sources.interface import SourceWindow
from training.sources.listing import (
    list_partitions,
    list_source,
    listing_for,
    missing_partitions,
    previous_snapshot,
    read_source,
    snapshot_ref_name,
)
from training.sources.registry import source_of
from training.sources.table_contract import TableContract
from training.spec import PipelineSpec, load_spec, resolve_uris
from training.store import Store

AS_OF = datetime(2026, 2, 1, 2, tzinfo=UTC)


def put(path: Path, text: str = "data") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def shop(tmp_path: Path) -> PipelineSpec:
    spec = load_spec(CHECKOUT / "dags/pipelines/search_ranking.yaml")
    return resolve_uris(spec, {"SHOP_URI": tmp_path.as_uri()})


def test_a_folder_lists_its_data_files_and_no_markers(tmp_path: Path) -> None:
    for name in ("t/b.parquet", "t/a/c.parquet", "t/_SUCCESS", "t/.b.crc", "t/_temporary/d.parquet", "tt/e.parquet"):
        put(tmp_path / name)
    found = list_source((tmp_path / "t").as_uri())
    assert [source.uri.removeprefix(tmp_path.as_uri()) for source in found] == ["/t/a/c.parquet", "/t/b.parquet"]
    assert [source.size_bytes for source in found] == [4, 4]


def test_a_file_lists_itself_alone(tmp_path: Path) -> None:
    put(tmp_path / "f.csv")
    put(tmp_path / "f.csv.bak")
    assert [source.uri for source in list_source((tmp_path / "f.csv").as_uri())] == [(tmp_path / "f.csv").as_uri()]


@pytest.mark.parametrize("name", ["my day.csv", "50%.csv", "a%20b.csv", "no #1.csv", "why?.csv", "grün (2)/x y%.csv"])
def test_file_of_any_name_is_listed_and_read_by_its_path_and_by_its_uri(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "my data 100%"
    put(folder / name, "rows")
    for place in (str(folder), folder.as_uri()):
        (found,) = list_source(place)
        assert read_source(found.uri, found.version, tmp_path / "copy", root=place).read_text() == "rows"
    for place in (str(folder / name), (folder / name).as_uri()):
        assert [alone.version for alone in list_source(place)] == [found.version]


def test_looking_where_nothing_is_finds_nothing_and_makes_nothing(tmp_path: Path) -> None:
    assert list_source((tmp_path / "no" / "where").as_uri()) == []
    assert list(tmp_path.iterdir()) == []


LEFTOVERS = ("_SUCCESS", "_temporary/0/part.csv", ".part-0.csv.crc", "part-0.csv.md5", "part-1.csv")


@pytest.mark.parametrize("partition", [None, "dt={date}"])
def test_markers_checksums_and_empty_files_beside_others_are_passed_over_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, partition: str | None
) -> None:
    for name in LEFTOVERS:
        put(tmp_path / "my data/dt=2026-01-01" / name, "" if name == "part-1.csv" else "x")
    put(tmp_path / "my data/dt=2026-01-01/part-0.csv", "rows")
    contract = TableContract(name="t", kind="csv", columns={}, uri=str(tmp_path / "my data"), partition=partition)
    window = SourceWindow(None, None, AS_OF, partitions=("2026-01-01",))
    with caplog.at_level("INFO"):
        (part,) = source_of(contract).list(window)
    assert (part.uri.rpartition("/")[2], part.size_bytes) == ("part-0.csv", 4)
    assert f"t: {len(LEFTOVERS)} files are passed over: no data, in no partition, or of 0 bytes" in caplog.text
    (tmp_path / "my data/dt=2026-01-01/part-0.csv").unlink()
    (alone,) = source_of(contract).list(window)
    assert (alone.uri.rpartition("/")[2], alone.size_bytes) == ("part-1.csv", 0)


def test_a_day_is_missing_until_its_partition_holds_data(tmp_path: Path, shop: PipelineSpec) -> None:
    days = [f"2026-01-{day:02d}" for day in range(2, 32)]
    for day in days[:-2]:
        put(tmp_path / f"clicks/dt={day}/part.parquet")
    put(tmp_path / "clicks/dt=2026-01-30/_SUCCESS")
    assert [missing.names for missing in missing_partitions(shop, AS_OF)] == [["2026-01-30", "2026-01-31"]]
    for day in days[-2:]:
        put(tmp_path / f"clicks/dt={day}/part.parquet")
    assert missing_partitions(shop, AS_OF) == []


def test_the_listing_covers_the_window_and_changes_with_a_file(tmp_path: Path, shop: PipelineSpec) -> None:
    for day in range(1, 32):
        put(tmp_path / f"clicks/dt=2026-01-{day:02d}/part.parquet")
    first = listing_for(shop, AS_OF)
    assert [entry["partition"] for entry in first["clicks"]] == [f"2026-01-{day:02d}" for day in range(2, 32)]
    assert listing_for(shop, AS_OF) == first
    put(tmp_path / "clicks/dt=2026-01-20/part.parquet", "repaired")
    second = listing_for(shop, AS_OF)
    assert [entry["partition"] for entry in second["clicks"] if entry not in first["clicks"]] == ["2026-01-20"]


def test_tables_without_partitions_are_listed_whole(tmp_path: Path) -> None:
    spec = resolve_uris(load_spec(CHECKOUT / "dags/pipelines/flight_delay.yaml"), {"FLIGHTS_URI": tmp_path.as_uri()})
    put(tmp_path / "flights.csv")
    found = listing_for(spec, AS_OF)
    assert {table: len(entries) for table, entries in found.items()} == {"flights": 1, "weather": 0, "planes": 0}
    assert found["flights"][0]["partition"] is None
    assert missing_partitions(spec, AS_OF) == []


def test_partitions_are_listed_by_day(tmp_path: Path) -> None:
    put(tmp_path / "t/y=2026-01-02/a")
    put(tmp_path / "t/y=2026-01-02/b")
    found = list_partitions((tmp_path / "t").as_uri(), "y={date}", ["2026-01-01", "2026-01-02"])
    assert {day: len(sources) for day, sources in found.items()} == {"2026-01-01": 0, "2026-01-02": 2}


def test_reading_copies_the_listed_version(tmp_path: Path) -> None:
    source = list_source(put(tmp_path / "f.csv", "content").as_uri())[0]
    assert read_source(source.uri, source.version, tmp_path / "copy").read_text() == "content"


def test_a_file_that_is_not_what_was_listed_is_refused(tmp_path: Path) -> None:
    source = list_source(put(tmp_path / "f.csv").as_uri())[0]
    put(tmp_path / "f.csv", "other content")
    with pytest.raises(DataError) as caught:
        read_source(source.uri, source.version, tmp_path / "copy")
    assert caught.value.code == "source.changed"
    (tmp_path / "f.csv").unlink()
    with pytest.raises(DataError) as caught:
        read_source(source.uri, source.version, tmp_path / "copy")
    assert caught.value.code == "source.missing"


@pytest.mark.parametrize("changes", [1, 2])
@pytest.mark.parametrize("looks_before_the_change", [1, 2], ids=["before the copy", "during the copy"])
def test_a_change_while_reading_is_read_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: int, looks_before_the_change: int
) -> None:
    path = put(tmp_path / "f.csv", "0")
    head, copy = listing._SourceFolder.head, listing._SourceFolder.copy
    done: list[str] = []
    looks: list[str] = []

    def change() -> None:
        if len(done) < changes:
            done.append("x")
            put(path, "x" * (len(done) + 1))

    def look(folder: listing._SourceFolder, key: str) -> listing.SourceObject | None:
        looks.append(key)
        if looks_before_the_change == 2 and len(looks) % 2 == 0:
            change()
        return head(folder, key)

    def copy_a_changed_file(folder: listing._SourceFolder, key: str, version: str, target: Path) -> bool:
        if looks_before_the_change == 1:
            change()
        return copy(folder, key, version, target)

    monkeypatch.setattr(listing._SourceFolder, "head", look)
    monkeypatch.setattr(listing._SourceFolder, "copy", copy_a_changed_file)
    if changes == 1:
        assert read_source(path.as_uri(), None, tmp_path / "copy").read_text() == "xx"
    else:
        with pytest.raises(DataError) as caught:
            read_source(path.as_uri(), None, tmp_path / "copy")
        assert caught.value.code == "source.changed"


def test_the_previous_snapshot_is_the_newest_of_an_earlier_night(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    assert previous_snapshot(store, "p", AS_OF) is None
    for day, uri in ((30, "a"), (31, "b")):
        assert store.ref(snapshot_ref_name("p", datetime(2026, 1, day, 2, tzinfo=UTC))).move(uri, expected=0)
    store.ref(snapshot_ref_name("p", AS_OF)).move("own", expected=0)
    store.ref(snapshot_ref_name("other", datetime(2026, 1, 31, 3, tzinfo=UTC))).move("other", expected=0)
    assert previous_snapshot(store, "p", AS_OF) == "b"
    store.ref(snapshot_ref_name("p", datetime(2026, 1, 31, 2, tzinfo=UTC))).move("repaired", expected=1)
    assert previous_snapshot(store, "p", AS_OF) == "repaired"
    assert previous_snapshot(store, "p", datetime(2026, 1, 31, 2, tzinfo=UTC)) == "a"


def test_a_deprecated_snapshot_is_passed_over_as_the_previous_one(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    uris = [f"file:///s/manifests/sha256/{digit * 2}/{digit * 64}.json" for digit in "123"]
    for day, uri in zip((29, 30, 31), uris, strict=True):
        assert store.ref(snapshot_ref_name("p", datetime(2026, 1, day, 2, tzinfo=UTC))).move(uri, expected=0)
    assert previous_snapshot(store, "p", AS_OF, deprecated=("3" * 16, "2" * 16)) == uris[0]
    assert previous_snapshot(store, "p", AS_OF, deprecated=("2" * 16,)) == uris[2]
    assert previous_snapshot(store, "p", AS_OF, deprecated=tuple(digit * 16 for digit in "123")) is None


@pytest.mark.parametrize("name", ["f.csv", "t/part.parquet", "t/dt=2026-01-31/part.parquet"])
def test_fifo_in_a_source_is_refused_without_being_opened(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    uri = (tmp_path / name.split("/")[0]).as_uri()
    for look in (lambda: list_source(uri), lambda: read_source(path.as_uri(), None, tmp_path / "copy")):
        with pytest.raises(DataError, match="is not a regular file: it is a FIFO") as caught:
            look()
        assert caught.value.code == "source.not_a_file"


def test_socket_and_broken_link_in_a_source_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s.csv")
        with pytest.raises(DataError, match="it is a socket"):
            list_source((tmp_path / "s.csv").as_uri())
    (tmp_path / "b.csv").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match="a symbolic link that leads nowhere"):
        list_source((tmp_path / "b.csv").as_uri())


def test_link_that_leaves_the_source_is_refused_and_one_within_it_is_read(tmp_path: Path) -> None:
    outside = put(tmp_path / "elsewhere/secret.csv", "secret")
    inside = put(tmp_path / "t/.versions/1.csv", "inside")
    (tmp_path / "t/current.csv").symlink_to(inside)
    (found,) = list_source((tmp_path / "t").as_uri())
    assert read_source(found.uri, found.version, tmp_path / "copy", root=(tmp_path / "t").as_uri()).read_text() == "inside"
    (tmp_path / "t/stolen.csv").symlink_to(outside)
    (tmp_path / "u").mkdir()
    (tmp_path / "u/dt=2026-01-31").symlink_to(outside.parent)
    for look in (
        lambda: list_source((tmp_path / "t").as_uri()),
        lambda: list_source((tmp_path / "t/stolen.csv").as_uri()),
        lambda: list_partitions((tmp_path / "u").as_uri(), "dt={date}", ["2026-01-31"]),
        lambda: read_source((tmp_path / "u/dt=2026-01-31/secret.csv").as_uri(), None, tmp_path / "copy", root=(tmp_path / "u").as_uri()),
    ):
        with pytest.raises(DataError, match="leaves the source's folder") as caught:
            look()
        assert caught.value.code == "source.outside"


def test_source_folder_that_is_itself_a_link_is_read(tmp_path: Path) -> None:
    put(tmp_path / "disk/t/a.csv")
    (tmp_path / "mounted").symlink_to(tmp_path / "disk")
    assert len(list_source((tmp_path / "mounted/t").as_uri())) == 1
    (tmp_path / "t").symlink_to(tmp_path / "disk/t")
    assert len(list_source((tmp_path / "t").as_uri())) == 1


def test_link_to_a_folder_above_it_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "t/a.csv")
    (tmp_path / "t/again").symlink_to(tmp_path / "t")
    with pytest.raises(DataError, match="a symbolic link to a folder that contains it"):
        list_source((tmp_path / "t").as_uri())
