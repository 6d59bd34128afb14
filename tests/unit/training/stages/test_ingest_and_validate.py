"""Ingest and validate as stages: nights of the shop, healthy and broken, and the flights of 2013."""

from __future__ import annotations

import dataclasses
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from sqlalchemy import text

from devstack.shop import break_day, day_path
from tests.unit.training.stages.night_bench import AS_OF, LAST, Night, load, replace, rewrite, with_empty_days
from training.database import connect
from training.database.datasets import deprecate
from training.errors import DataError, DeniedError, SpecError
from training.sources.listing import previous_snapshot, profile_ref_name
from training.stages import ingest, validate
from training.store import Manifest


def test_night_that_is_no_reference_is_compared_with_only_where_its_model_becomes_champion(night: Night) -> None:
    taken = night.ingest()
    night.run(validate, inputs={"snapshot": taken.artifact_uri}, parameters={"previous_snapshot": None, "is_reference": False})
    assert previous_snapshot(night.store, "search_ranking", AS_OF + timedelta(days=1)) is None
    assert night.store.ref(profile_ref_name("search_ranking", taken.digest)).read() is not None, "what drift against the champion reads"


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
    "wider_float": (
        lambda shop: rewrite(shop, lambda t: replace(t, "price", t["price"].cast(pa.float64()))),
        "schema.type",
        "clicks.price: column's type: observed double, allowed float",
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
    page = night.store.reports.get(report_uri).decode()
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
    assert (warned["code"], warned["observed"], warned["detail"]) == (
        "data.missing_days",
        "4 of 5",
        "days without rows: '2026-01-29 (thu)'",
    )


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


@pytest.mark.parametrize(("limit", "passes"), [(20 * 2**10, False), (2**20, True)])
def test_an_expectation_that_needs_all_rows_is_held_to_the_yamls_memory(
    night: Night, monkeypatch: pytest.MonkeyPatch, limit: int, *, passes: bool
) -> None:
    condition = {"row_condition": "position == 1", "condition_parser": "pandas"}
    expectation = {"type": "expect_column_mean_to_be_between", "kwargs": {"column": "price", "min_value": 0, **condition}}
    folder = night.folder / "expectations" / "search_ranking"
    folder.mkdir(parents=True)
    (folder / "clicks.json").write_text(json.dumps({"name": "clicks", "expectations": [expectation]}))
    monkeypatch.setenv("NIGHTSHIFT_EXPECTATIONS", str(folder.parent))
    night.spec = night.spec.model_copy(update={"validate_": night.spec.validate_.model_copy(update={"memory": limit})})
    taken = night.ingest()
    if passes:
        assert night.validate(taken).scalars["warnings"] == 0
        return
    with pytest.raises(SpecError, match=r"\[suite\.memory\].*validate\.memory"):
        night.validate(taken)


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
