"""Kinds of sources that distributions outside of this repository add, each of one file: a table of SQLite and a calendar."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.operators.wait import WaitForData
from tests.unit.training.installed_distribution import installed
from tests.unit.training.sources.outside_sources import AS_OF, FILES, KINDS, ROWS_PER_DAY, Shop, changed
from training.errors import DataError, NightshiftError, SpecError, UnavailableError
from training.sources.interface import PartContent, SourcePart
from training.sources.listing import listing_for, missing_partitions
from training.sources.registry import source_of
from training.sources.snapshot_files import read_rows
from training.sources.table_contract import contracts_of
from training.spec import PipelineSpec, freeze, parse_spec, spec_part
from training.spec.registry import installed as installed_names
from training.stages import ingest, prepare, validate


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    caches: list[Any] = [installed_names]
    folder = tmp_path_factory.mktemp("site")
    with installed(folder, "acme_sources", group="nightshift.sources", points=KINDS, files=FILES, caches=caches):
        yield folder


@pytest.fixture
def shop(tmp_path: Path, site: Path) -> Shop:
    return Shop(tmp_path)


@pytest.mark.slow
def test_a_source_of_one_file_makes_a_dataset_in_processes_that_cover_its_code(shop: Shop, site: Path) -> None:
    assert [list(FILES).count(f"{KINDS[kind]}.py") for kind in ("sqlite", "calendar")] == [1, 1], "what docs/extending.md says"
    listing = listing_for(shop.spec(), AS_OF)
    assert [part["partition"] for part in listing["orders"]] == ["2026-01-03", "2026-01-04", "2026-01-05", "2026-01-06"]
    snapshot = shop.stage(ingest, site, {}, {"listing": listing})
    manifest = shop.store.manifests.get(snapshot.artifact_uri, kind="snapshot")
    orders, weekdays = (manifest.meta["tables"][name] for name in ("orders", "weekdays"))
    assert (orders["rows"], weekdays["rows"]) == (4 * ROWS_PER_DAY, 7)
    part = orders["parts"]["orders/2026-01-06-00000.parquet"]
    assert part["source_key"] == "shop.db#2026-01-06"
    assert part["source_version"] == f"sha256:{manifest.files['orders/2026-01-06-00000.parquet'].digest}"
    validation = shop.stage(validate, site, {"snapshot": snapshot.artifact_uri}, {"previous_snapshot": None, "suites": {}})
    dataset = shop.stage(prepare, site, {"snapshot": snapshot.artifact_uri, "validation": validation.artifact_uri}, {})
    made = shop.store.manifests.get(dataset.artifact_uri, kind="dataset")
    folder = shop.store.manifests.fetch(made, shop.folder / "dataset", ["frame/00000.parquet"])
    assert pq.read_table(folder / "frame/00000.parquet").column("weekday_name").to_pylist()[-1] == "tue"


def test_a_changed_day_is_other_work_and_is_refused_by_its_listed_version(shop: Shop) -> None:
    spec, before = shop.spec(), listing_for(shop.spec(), AS_OF)
    assert listing_for(spec, AS_OF) == before
    shop.change("UPDATE sales SET value = 9, revision = 2 WHERE day = '2026-01-05'")
    after = listing_for(spec, AS_OF)
    assert [part["partition"] for part in after["orders"] if part not in before["orders"]] == ["2026-01-05"]
    source = source_of(contracts_of(spec)[0])
    listed = next(part for part in map(SourcePart.of, before["orders"]) if part.partition == "2026-01-05")
    with pytest.raises(DataError, match=r"source\.changed"):
        source.read(listed, shop.folder, limit_bytes=2**30)


def test_source_is_asked_by_its_own_names_and_rows_have_those_of_the_yaml(shop: Shop) -> None:
    spec = shop.spec(
        (
            "      value: {type: double}",
            "      amount: {type: double, source_name: value}\n      place: {type: int64, generated: row_number}",
        ),
        ("    value: {transform", "    amount: {transform"),
        ("        name: {type: string, as", "        day: {type: string, source_name: name, as"),
    )
    found = []
    for contract in contracts_of(spec):
        source = source_of(contract)
        part = SourcePart.of(listing_for(spec, AS_OF)[contract.name][-1])
        content = source.read(part, shop.folder, limit_bytes=2**20)
        found.append(read_rows(contract, content, source=part.uri, limit_bytes=2**20, partition=part.partition))
    orders, weekdays = found
    assert orders.column_names == ["order_id", "ordered_at", "weekday", "amount", "place", "cancelled"]
    assert (orders["amount"].to_pylist(), orders["place"].to_pylist()) == ([0, 0.5, 1, 1.5, 2], [0, 1, 2, 3, 4])
    assert (weekdays.column_names, weekdays["day"][0].as_py()) == (["weekday", "day"], "sun")


def test_a_day_without_rows_is_waited_for_and_named(shop: Shop) -> None:
    shop.change("DELETE FROM sales WHERE day = '2026-01-04'")
    spec = shop.spec()
    assert [missing.names for missing in missing_partitions(spec, AS_OF)] == [["2026-01-04"]]
    frozen = type("Frozen", (), {"spec": spec, "as_of": AS_OF, "snapshot": None})
    wait = WaitForData(task_id="wait", wait=timedelta(hours=2))
    assert wait._missing(cast("Any", frozen)) == "1 of 4 partitions of orders are not there: 2026-01-04"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            ("{table: sales}", "{tabel: sales}"),
            {"data.source.settings.tabel: [spec.unknown_key]", "data.source.settings.table: [field.missing]"},
        ),
        (("{table: sales}", "{table: 3}"), {"data.source.settings.table: [field.type] expected text, got 3 (quote it)"}),
        (("    settings: {table: sales}\n", ""), {"data.source.settings.table: [field.missing]"}),
        (
            ("      kind: calendar", "      kind: calendar\n      uri: ${SHOP_URI}/x"),
            {"data.features[0].uri: [field.conflict] a source of kind calendar has no uri"},
        ),
        (("      kind: calendar", "      kind: calendar\n      settings: {a: 1}"), {"data.features[0].settings.a: [spec.unknown_key]"}),
        (('    uri: "${SHOP_URI}/shop.db"\n', ""), {"data.source.uri: [field.missing] the key uri is missing"}),
        (
            ("    window: 4d", '    window: 4d\n    partition: "dt={date}"'),
            {"data.source.partition: [field.conflict] a source of kind sqlite has no partition"},
        ),
        (("    window: 4d", "    window: 90h"), {"data.source.window: [partition.window]"}),
        (
            ("kind: sqlite", "kind: sqlight"),
            {"'broken', 'calendar', "},
        ),
        (
            ("kind: sqlite", "kind: broken"),
            {"data.source.kind: [source.descriptor] broken has no DESCRIPTOR in acme_broken: RuntimeError: no driver"},
        ),
        (
            ("kind: sqlite", "kind: empty"),
            {"data.source.kind: [source.descriptor] empty has no DESCRIPTOR in acme_empty: its DESCRIPTOR is a NoneType"},
        ),
    ],
)
@pytest.mark.usefixtures("site")
def test_wrong_keys_of_a_source_are_reported_with_their_lines_beside_all_others(change: tuple[str, str], expected: set[str]) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(changed(change, ("epochs: 1,", "epochs: 0,")), "orders.yaml")
    texts = [problem.render("orders.yaml") for problem in caught.value.problems]
    assert len(texts) == len(expected) + 1
    assert any("train.epochs: [field.range]" in text for text in texts)
    for words in expected:
        assert any(words in text for text in texts), texts
    assert all(problem.line for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("raised", "code"), [(RuntimeError, "source.failed"), (ConnectionError, "source.unavailable"), (TimeoutError, "source.unavailable")]
)
@pytest.mark.parametrize("call", ["list", "read"])
def test_what_a_driver_says_is_told_without_its_secrets(
    shop: Shop, site: Path, monkeypatch: pytest.MonkeyPatch, raised: type[Exception], code: str, call: str
) -> None:
    del site
    contract = contracts_of(shop.spec())[0]
    source = source_of(contract)
    text = "cannot log in to postgresql://ada:swordfish@db/x with password=swordfish"

    def fail(*_arguments: object, **_named: object) -> None:
        raise raised(text)

    monkeypatch.setattr(type(cast(Any, source)._source), call, fail)
    calls: dict[str, Any] = {
        "list": lambda: source.list(cast(Any, None)),
        "read": lambda: source.read(SourcePart("postgresql://ada:swordfish@db/x#1", 0, "1", None), Path(), limit_bytes=1),
    }
    with pytest.raises(NightshiftError) as caught:
        calls[call]()
    assert caught.value.code == code
    assert "cannot log in to postgresql://***@db/x with password=***" in caught.value.message
    assert "swordfish" not in str(caught.value)


def test_a_kind_that_is_not_installed_where_the_stage_runs_is_an_error_of_its_own(shop: Shop) -> None:
    frozen = freeze(shop.spec())
    frozen["data"]["source"]["kind"] = "gone"
    with pytest.raises(SpecError, match=r"source\.unknown.*table 'orders' is of the kind 'gone', which is not installed here"):
        listing_for(PipelineSpec.thaw(frozen), AS_OF)


class Replaced:
    """A source whose methods return and raise what a test gives."""

    def __init__(self, listed: Any = (), content: Any = None) -> None:
        self._returns = {"list": listed, "read": content}

    def __call__(self, _contract: Any) -> Replaced:
        return self

    def list(self, _window: Any) -> Any:
        return self._result("list")

    def read(self, _part: Any, _folder: Path, *, limit_bytes: int) -> Any:
        return self._result("read")

    def _result(self, name: str) -> Any:
        if isinstance(self._returns[name], BaseException):
            raise self._returns[name]
        return self._returns[name]


DAY = "2026-01-05"


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (None, "source.not_a_source"),
        (Replaced(sqlite3.OperationalError("no such table: sales")), "source.failed"),
        (Replaced(ConnectionResetError("reset")), "source.unavailable"),
        (Replaced(UnavailableError("warehouse.busy", "no slot")), "warehouse.busy"),
        (Replaced([{"uri": "a"}]), "source.listing"),
        (Replaced([SourcePart("a", 0, "", DAY)]), "source.listing"),
        (Replaced([SourcePart("a", 0, "1", DAY), SourcePart("a", 0, "2", DAY)]), "source.listing"),
        (Replaced([SourcePart("a", 0, "1", "2025-01-01")]), "source.listing"),
        (Replaced([SourcePart("a", 0, cast("Any", AS_OF), DAY)]), "source.listing"),
        (Replaced([SourcePart(cast("Any", Path("a")), 0, "1", DAY)]), "source.listing"),
        (Replaced([SourcePart("a", cast("Any", 1.5), "1", DAY)]), "source.listing"),
        (Replaced([SourcePart("a", -1, "1", DAY)]), "source.listing"),
        (Replaced(SystemExit(0)), "source.failed"),
        (Replaced([SourcePart("a", 0, "1", DAY)], content=[1, 2]), "source.content"),
        (Replaced([SourcePart("a", 0, "1", DAY)], content=KeyError("value")), "source.failed"),
    ],
)
def test_what_an_installed_source_does_wrong_has_a_code_and_names_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, source: Any, code: str
) -> None:
    def listed_and_read() -> None:
        found = source_of(contracts_of(shop.spec())[0])
        listing = listing_for(shop.spec(), AS_OF)
        found.read(SourcePart.of(listing["orders"][0]), shop.folder, limit_bytes=2**20)

    monkeypatch.setattr("acme_sqlite.SOURCE", source)
    with pytest.raises(NightshiftError) as caught:
        listed_and_read()
    assert caught.value.code == code
    assert code == "warehouse.busy" or "sqlite" in str(caught.value)


def test_rows_of_a_stream_end_at_the_limit_of_memory(shop: Shop) -> None:
    contract = contracts_of(shop.spec())[0]
    part = SourcePart.of(listing_for(shop.spec(), AS_OF)["orders"][0])
    content = source_of(contract).read(part, shop.folder, limit_bytes=2**20)
    with pytest.raises(DataError, match=r"source\.too_large.*2 rows"):
        read_rows(contract, content, source=part.uri, limit_bytes=50)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConnectionResetError("reset"), "source.unavailable"),
        (TimeoutError("no rows"), "source.unavailable"),
        (UnavailableError("warehouse.busy", "no slot"), "warehouse.busy"),
        (DataError("source.changed", "another revision"), "source.changed"),
        (KeyError("value"), "source.failed"),
    ],
)
def test_an_error_amid_a_stream_keeps_its_code_or_says_whether_a_retry_helps(shop: Shop, error: Exception, code: str) -> None:
    schema = pa.schema([("order_id", pa.int64())])

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([[1]], schema=schema)
        raise error

    content = PartContent(pa.RecordBatchReader.from_batches(schema, batches()))
    with pytest.raises(NightshiftError) as caught:
        read_rows(contracts_of(shop.spec())[0], content, source="shop.db#2026-01-05", limit_bytes=2**20)
    assert caught.value.code == code


@pytest.mark.usefixtures("site")
def test_defaults_of_its_settings_are_part_of_the_work_of_ingest_alone() -> None:
    spec = parse_spec(changed())
    other = parse_spec(changed(("{table: sales}", "{table: sales, revision: number}")))
    assert spec.data.source.settings == {"table": "sales", "revision": "revision"}
    assert spec_part(spec, "ingest") != spec_part(other, "ingest")
    assert all(spec_part(spec, stage) == spec_part(other, stage) for stage in ("validate", "prepare", "train"))


CHECK_LIGHT = """
import sys
from training.spec import parse_spec
spec = parse_spec(open(sys.argv[1], "rb").read())
assert "acme_sqlite" in sys.modules and spec.data.source.is_daily
print(*sorted({"numpy", "pandas", "pyarrow", "torch", "duckdb"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_a_dag_file_imports_the_module_of_its_kind_and_no_library_of_the_work(site: Path, tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_bytes(changed())
    command = [sys.executable, "-c", CHECK_LIGHT, str(tmp_path / "orders.yaml")]
    path = f"{site}:{Path(__file__).resolve().parents[4]}"
    done = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
