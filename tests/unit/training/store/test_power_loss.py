"""What readers of a local store find after a power loss, at every point of real stages' work."""

import random
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.training_bench import Bench
from tests.unit.training.store.power_loss import Disk, Recorder, recording
from training.contracts import ExitCode
from training.errors import DataError
from training.store import Store, WorkFolder
from training.store.chains import Chain
from training.store.durable_writes import TOP_FOLDERS
from training.store.launches import Launches
from training.store.leases import HolderWatch, holder_of
from training.store.metric_journal import PREFIX, MetricJournal

NUM_STATES = 200
METRICS_OF = ("search_ranking", "r")
"""Pipeline and run of the night's metrics."""
METRICS = f"{PREFIX}/"


class Night:
    """Ingest, prepare and train of one night, with all calls that their writes made."""

    def __init__(self, folder: Path, recorder: Recorder) -> None:
        bench = Bench(folder, every="1s")
        assert bench.train("only") is ExitCode.DONE
        assert bench.checkpoints("only")
        self.calls = recorder.calls
        self.points = list(MetricJournal(Store(str(folder / "store")).bucket, *METRICS_OF).after(0))
        assert self.points
        self.files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in (folder / "store").rglob("*") if path.is_file()}

    def states(self, folder: Path, points: list[int], seed: int) -> Iterator[tuple[int, Store, list[str]]]:
        """Yield each point, the store as a power loss there may leave it, and the keys whose creates had returned."""
        disk, chance, done = Disk("store"), random.Random(seed), 0  # noqa: S311 - the same states in every run
        pool, crashed = folder / "pool", folder / "crashed"
        pool.mkdir()
        for point in sorted(points):
            for call in self.calls[done:point]:
                disk.do(call)
            done = point
            disk.write_after_crash(crashed, chance, pool)
            yield point, Store(str(crashed / "store")), disk.answered
            shutil.rmtree(crashed)
        shutil.rmtree(pool)


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Night:
    folder = tmp_path_factory.mktemp("night")
    with pytest.MonkeyPatch.context() as patch, recording(folder / "store") as recorder:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        return Night(folder, recorder)


def refs_in(store: Store) -> Iterator[Chain]:
    """Yield every ref of a store: a folder of numbered files."""
    prefixes = {entry.key.rsplit("/", 1)[0] for entry in store.bucket.list("") if re.search(r"/\d{10}\.json$", entry.key)}
    for prefix in sorted(prefixes):
        yield Chain(store.bucket, prefix)


def addresses_in(store: Store) -> Iterator[WorkFolder]:
    for pipeline in store.bucket.folders("stages"):
        for stage in store.bucket.folders(f"stages/{pipeline}"):
            for work_id in store.bucket.folders(f"stages/{pipeline}/{stage}"):
                yield store.work_folder(pipeline, stage, work_id)


class Reader:
    """Reads a store with its readers; fails where one raises, or where something committed refers to what is not there."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: set[str] = set()

    def read_all(self) -> None:
        for ref in refs_in(self._store):
            history = ref.history()
            for revision in history:
                self._follow(revision.value)
            assert ref.read() == history[-1]
        for work_folder in addresses_in(self._store):
            self._read_address(work_folder)

    def _read_address(self, work_folder: WorkFolder) -> None:
        result = work_folder.result()
        if result is not None:
            self._follow(result.to_xcom())
        holder_of(work_folder.chain())
        HolderWatch(work_folder, owner="another").poll()
        Launches(work_folder).all()
        for attempt_id in work_folder.attempts():
            work_folder.error(attempt_id)
            work_folder.ended(attempt_id)
            with suppress_missing():
                request = work_folder.request(attempt_id)
                self._follow({"spec": request.spec_uri, **request.inputs})

    def _follow(self, value: object) -> None:
        if isinstance(value, dict):
            for item in value.values():
                self._follow(item)
        elif isinstance(value, str) and "/sha256/" in value and value not in self._seen:
            self._seen.add(value)
            # Records name the folder in which the night was written.
            uri = f"{self._store.root_uri}/{value.partition('/store/')[2]}"
            if "/manifests/" not in uri:
                self._store.objects.get_bytes(uri.rsplit("/", 1)[-1])
                return
            manifest = self._store.manifests.get(uri)
            for name, entry in manifest.files.items():
                assert len(self._store.manifests.read(manifest, name)) == entry.size_bytes


@contextmanager
def suppress_missing() -> Iterator[None]:
    """Let a request be not there: an attempt's folder may be there before its request is."""
    try:
        yield
    except DataError as err:
        if err.code != "object.missing":
            raise


def check_metrics(night: Night, store: Store, answered: list[str]) -> None:
    """Compare the points that are there with those of the whole night: none is missing of a batch whose create had returned."""
    points = list(MetricJournal(store.bucket, *METRICS_OF).after(0))
    assert points == night.points[: len(points)]
    begun = max((int(Path(key).stem) for key in answered), default=0)
    # Number 1 is the beginning of the attempt, which is no point.
    assert begun <= 1 or (points and points[-1].number >= begun)


def check(night: Night, folder: Path, points: list[int], seed: int) -> None:
    for point, store, answered in night.states(folder, points, seed):
        try:
            root = Path(store.root_uri.removeprefix("file://"))
            check_metrics(night, store, [key for key in answered if key.startswith(METRICS)])
            for key in answered:
                # Batches of metrics are merged into the first of them.
                if key.startswith(METRICS):
                    continue
                assert (root / key).read_bytes() == night.files[f"store/{key}"], f"the create of {key} had returned"
            Reader(store).read_all()
        except Exception as err:
            raise AssertionError(f"seed {seed}, after call {point} of {len(night.calls)}: {night.calls[point - 1][:2]}") from err


@pytest.mark.slow
def test_after_a_power_loss_anywhere_in_a_night_every_committed_record_is_readable_and_complete(night: Night, tmp_path: Path) -> None:
    points = random.Random(10).choices(range(1, len(night.calls) + 1), k=NUM_STATES)  # noqa: S311 - the same points in every run
    check(night, tmp_path, points, seed=10)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_after_a_power_loss_at_each_call_of_a_night_every_committed_record_is_readable_and_complete(
    night: Night, tmp_path: Path, seed: int
) -> None:
    check(night, tmp_path, list(range(1, len(night.calls) + 1)), seed)


@pytest.mark.slow
def test_a_night_writes_in_the_stores_own_folders_alone(night: Night) -> None:
    assert {key.split("/")[1] for key in night.files} <= set(TOP_FOLDERS)


@pytest.mark.slow
@pytest.mark.parametrize("dropped", ["file", "folder"])
def test_a_store_that_leaves_out_an_fsync_does_not_pass(night: Night, tmp_path: Path, dropped: str) -> None:
    def is_dropped(call: tuple[Any, ...]) -> bool:
        return call[0] == "fsync" and ("#" in call[1]) == (dropped == "file")

    careless = object.__new__(Night)
    careless.calls, careless.files = [call for call in night.calls if not is_dropped(call)], night.files
    with pytest.raises(AssertionError, match="after call"):
        check(careless, tmp_path, list(range(1, len(careless.calls) + 1, 7)), seed=1)
