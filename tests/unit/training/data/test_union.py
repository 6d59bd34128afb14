"""Several main tables: their rows are one table of the snapshot, counted by table, whatever order they are listed in."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from training.data.snapshot.builder import SnapshotPlan, _named, take_snapshot
from training.data.snapshot.meta import rows_per_table
from training.errors import DataError, SpecError
from training.runtime.provenance import CHECKOUT
from training.sources.interface import ListedPart
from training.sources.listing import list_source, listing_for, missing_partitions
from training.sources.table_contract import TableContract, contracts_of
from training.spec import PipelineSpec, load_spec, resolve_uris, spec_part
from training.spec.sections.data import Column
from training.store import Manifest, Store

AS_OF = datetime(2026, 2, 1, 2, tzinfo=UTC)
START = datetime(2026, 1, 1, tzinfo=UTC)
UNION = '    union:\n      - {table: clicks_us, kind: jsonl, uri: "${SHOP_URI}/us", partition: "{date}"}\n'


def loaded(tmp_path: Path, lines: str = UNION) -> PipelineSpec:
    text = (CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml").read_text(encoding="utf-8")
    path = tmp_path / "search_ranking.yaml"
    path.write_text(text.replace("  source:\n", f"  source:\n{lines}", 1), encoding="utf-8")
    return load_spec(path)


def test_each_table_has_its_own_place_and_lacks_its_own_partitions(tmp_path: Path) -> None:
    spec = resolve_uris(loaded(tmp_path), {"SHOP_URI": tmp_path.as_uri()})
    (main, *_) = contracts_of(spec)
    assert [(member.name, member.kind, member.uri) for member in main.members] == [
        ("clicks", "parquet", f"{tmp_path.as_uri()}/clicks"),
        ("clicks_us", "jsonl", f"{tmp_path.as_uri()}/us"),
    ]
    for folder in ("clicks/dt=2026-01-31", "us/2026-01-30"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "part").write_bytes(b"x")
    missing = {found.table: found for found in missing_partitions(spec, AS_OF)}
    assert {name: len(found.names) for name, found in missing.items()} == {"clicks": 29, "clicks_us": 29}
    assert "2026-01-31" in missing["clicks_us"].names
    assert f"{tmp_path.as_uri()}/us/2026-01-31" in missing["clicks_us"].places
    assert [(part["table"], part["partition"]) for part in listing_for(spec, AS_OF)["clicks"]] == [
        ("clicks", "2026-01-31"),
        ("clicks_us", "2026-01-30"),
    ]


def contract(folder: Path) -> TableContract:
    columns = {"id": Column(type="int64"), "sold": Column(type="timestamp")}
    main = TableContract(
        name="eu", kind="csv", uri=f"{folder.as_uri()}/eu.csv", columns=columns, key=("id",), event_time="sold", known_at=None
    )
    return replace(main, union=(replace(main, name="us", kind="jsonl", uri=f"{folder.as_uri()}/us.jsonl"),))


def listed(folder: Path, name: str, table: str) -> dict[str, Any]:
    (found,) = list_source((folder / name).as_uri())
    return {"uri": found.uri, "size_bytes": found.size_bytes, "version": found.version, "partition": None, "table": table}


def snapshot(folder: Path, *, turned: bool = False, only: str = "") -> tuple[Store, Manifest]:
    store, main = Store(str(folder / "store")), contract(folder)
    entries: list[Any] = [listed(folder, "eu.csv", "eu"), listed(folder, "us.jsonl", "us")]
    entries = [entry for entry in entries if not only or entry["table"] == only]
    plan = SnapshotPlan(
        contracts=[main],
        listing={"eu": entries[::-1] if turned else entries},
        as_of=AS_OF,
        start=START,
        end=AS_OF,
        split={},
        lookback={},
    )
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    return store, take_snapshot(store, plan, scratch, on_file=lambda _done, _total: None)[1]


@pytest.fixture
def two(tmp_path: Path) -> Path:
    (tmp_path / "eu.csv").write_text("id,sold\n1,2026-01-02T10:00:00Z\n2,2026-01-03T10:00:00Z\n")
    rows = [{"id": number, "sold": "2026-01-04T10:00:00Z"} for number in (3, 4, 5)]
    (tmp_path / "us.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return tmp_path


def test_rows_of_all_tables_are_in_one_and_counted_by_table(two: Path) -> None:
    store, manifest = snapshot(two)
    facts = manifest.meta["tables"]["eu"]
    assert facts["rows"] == 5
    assert rows_per_table(facts) == {"eu": 2, "us": 3}
    folder = store.manifests.fetch(manifest, two / "fetched")
    ids = [pq.ParquetFile(folder / name).read()["id"].to_pylist() for name in sorted(manifest.files)]
    assert ids == [[1, 2], [3, 4, 5]]
    assert [part["source_key"] for _, part in sorted(facts["parts"].items())] == ["eu.csv", "us.jsonl"]
    assert snapshot(two, turned=True)[1].digest == manifest.digest


def test_the_place_of_a_table_does_not_decide_the_order_of_its_files(two: Path) -> None:
    entries: list[ListedPart] = [
        {"uri": "file:///z/eu.csv", "size_bytes": 1, "version": "1", "partition": None, "table": "eu"},
        {"uri": "file:///a/us.jsonl", "size_bytes": 1, "version": "1", "partition": None, "table": "us"},
    ]
    assert [part.table for _, part in _named(contract(two), entries)] == ["eu", "us"]


def test_a_table_without_files_is_named(two: Path) -> None:
    with pytest.raises(DataError, match=r"table 'us' of data\.source\.union has no data files at .*us\.jsonl") as caught:
        snapshot(two, only="eu")
    assert caught.value.code == "data.empty"


def test_a_table_with_a_column_of_its_own_is_refused(two: Path) -> None:
    (two / "us.jsonl").write_text('{"id": 3, "sold": "2026-01-04T10:00:00Z", "more": 1}')
    with pytest.raises(DataError, match=r"us\.jsonl: 1 column\(s\) that table 'us' does not declare: 'more'"):
        snapshot(two)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            '    union:\n      - {table: clicks, kind: csv, uri: "${SHOP_URI}/us", partition: "{date}"}\n',
            "data.source.union[0].table: [table.clash] there is a table clicks already",
        ),
        (
            '    union:\n      - {table: us, kind: csv, uri: "${SHOP_URI}/us"}\n',
            "data.source.union[0]: [union.partition] table us has no partitions, and the main table has partitions of days",
        ),
        (
            '    union:\n      - {table: us, kind: csv, uri: "${SHOP_URI}/us", partition: "{date}/{hour}"}\n',
            "data.source.union[0]: [union.partition] table us has partitions of hours, and the main table has partitions of days",
        ),
        (
            '    union:\n      - {table: us, kind: csv, uri: "/etc", partition: "{date}"}\n',
            "data.source.union[0].uri: [uri.forbidden] '/etc' ",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path: Path, lines: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        loaded(tmp_path, lines)
    (found,) = [f"{each.field}: [{each.code}] {each.message}" for each in caught.value.problems]
    assert found.startswith(problem)


def test_further_tables_are_part_of_the_rows_and_their_places_are_not_of_later_work(tmp_path: Path) -> None:
    plain, union, moved = (
        resolve_uris(loaded(tmp_path, lines), {"SHOP_URI": "file:///a"}) for lines in ("", UNION, UNION.replace("/us", "/eu"))
    )
    assert spec_part(union, "ingest") != spec_part(plain, "ingest")
    assert spec_part(union, "ingest")["data"]["source"]["union"] != spec_part(moved, "ingest")["data"]["source"]["union"]
    assert spec_part(union, "prepare") == spec_part(moved, "prepare")
    assert spec_part(union, "prepare") != spec_part(plain, "prepare")
