"""Whatever is wrong with a record or an object: an error that names it, none accepted silently, no traceback."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nightshift.execution.attempt_end import Action, Ended, judge
from training.contracts import ExitCode, RunIdentity, StageRequest, StageResult
from training.errors import StoreError
from training.runtime.context import StageContext, StageOutput, StopFlag
from training.runtime.runner import run
from training.store import Store, WorkFolder, records
from training.store.launches import Launches, LaunchRecord
from training.store.leases import HolderWatch, Lease, holder_of

WORK_ID, OTHER = "f" * 64, "e" * 64
RUN = RunIdentity(dag_id="p", run_id="r", task_id="train")
LAUNCH = LaunchRecord(
    attempt_id="a1", request_uri="u", name="n", nodes=1, spot=False, cause="first", owner="p/r/train", try_number=1, generation="0"
)


def request_of(work_id: str, attempt_id: str = "a1") -> StageRequest:
    return StageRequest(
        pipeline="p",
        stage="train",
        work_id=work_id,
        attempt_id=attempt_id,
        store_uri="s",
        spec_uri="u",
        as_of=datetime(2026, 1, 1, tzinfo=UTC),
        inputs={"dataset": "u"},
        run=RUN,
    )


def result_of(work_id: str) -> StageResult:
    return StageResult(
        pipeline="p",
        stage="train",
        work_id=work_id,
        artifact_uri="u",
        digest="d" * 64,
        run=RUN,
        attempt_id="a1",
        attempts=1,
        committed_at="2026-01-01T00:00:00+00:00",
        scalars={"weights_digest": "abc"},
    )


def fill(work_folder: WorkFolder, work_id: str) -> None:
    lease = Lease.acquire(work_folder, owner=f"p/r/train-{work_id[0]}", attempt_id="a1")
    lease.commit("checkpoint", {"uri": "u", "step": 7, "of": work_id[0]})
    work_folder.create_result(result_of(work_id))
    work_folder.write_request(request_of(work_id))
    work_folder.write_error("a1", {"code": "c", "exit_code": 65, "message": work_id[0]})
    work_folder.write_ended("a1", {"phase": "ended", "code": work_id[0]})
    work_folder.write_straggler("a1", 1, {"rank": 1, "node": work_id[0]})
    Launches(work_folder).claim(replace(LAUNCH, name=work_id[0]), after=0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(str(tmp_path / "store"))
    for work_id in (WORK_ID, OTHER):
        fill(made.work_folder("p", "train", work_id), work_id)
    made.ref("champion").move({"model": "m", "weights_digest": "abc"}, expected=0)
    made.ref("other").move({"model": "m", "weights_digest": "abd"}, expected=0)
    made.ref("text").move("file:///x", expected=0)
    made.ref("other-text").move("file:///y", expected=0)
    made.objects.put_bytes(b"content")
    made.manifests.put_files("dataset", {"a": b"1"}, {})
    made.manifests.put_files("dataset", {"a": b"2"}, {})
    return made


def mine(store: Store) -> WorkFolder:
    return store.work_folder("p", "train", WORK_ID)


AT = f"stages/p/train/{WORK_ID}"
FIRST = "0000000001.json"
READERS: dict[str, Callable[[Store], object]] = {
    f"{AT}/_RESULT.json": lambda store: mine(store).result(),
    f"{AT}/attempts/a1/_REQUEST.json": lambda store: store.read_request(f"{mine(store).uri}/attempts/a1/_REQUEST.json"),
    f"{AT}/attempts/a1/_ERROR.json": lambda store: mine(store).error("a1"),
    f"{AT}/attempts/a1/_ENDED.json": lambda store: mine(store).ended("a1"),
    f"{AT}/attempts/a1/stragglers/1.json": lambda store: mine(store).stragglers("a1"),
    f"{AT}/journal/{FIRST}": lambda store: holder_of(mine(store).chain()),
    f"{AT}/journal/0000000002.json": lambda store: HolderWatch(mine(store), owner="another").poll(),
    f"{AT}/launches/{FIRST}": lambda store: Launches(mine(store)).all(),
    f"refs/champion/{FIRST}": lambda store: store.ref("champion").read(),
    f"refs/text/{FIRST}": lambda store: store.ref("text").read(),
}
OTHERS = {f"refs/champion/{FIRST}": f"refs/other/{FIRST}", f"refs/text/{FIRST}": f"refs/other-text/{FIRST}"}


def path_of(store: Store, key: str) -> Path:
    return Path(store.root_uri.removeprefix("file://")) / key


def corruptions(data: bytes, other: bytes) -> dict[str, bytes]:
    """Return damaged versions of a record, by name."""
    chance = random.Random(11)  # noqa: S311 - the same damage in every run
    found = {
        "empty": b"",
        "another record": other,
        "not UTF-8": b"\xff\xfe" + data,
        "deep JSON": b"[" * 100_000 + b"]" * 100_000,
        "deep value": b'{"kind":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "zeros": bytes(len(data)),
        "other JSON": b"[1]",
        "only the mark": b'{"_record":{"version":1,"digest":"0"}}\n',
        "a constant": b"NaN",
    }
    found |= {f"cut to {size}": data[:size] for size in {1, len(data) // 2, len(data) - 2, len(data) - 1}}
    for bit in {chance.randrange(8 * len(data)) for _ in range(150)} | set(range(8 * (len(data) - 2), 8 * len(data))):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        found[f"bit {bit}"] = bytes(flipped)
    return found


@pytest.mark.parametrize("key", READERS)
def test_each_damage_to_a_record_is_an_error_that_names_it_and_the_remedy(store: Store, key: str) -> None:
    path = path_of(store, key)
    data = path.read_bytes()
    other = path_of(store, OTHERS.get(key, key.replace(WORK_ID, OTHER))).read_bytes()
    assert data != other
    for name, damage in corruptions(data, other).items():
        path.write_bytes(damage)
        # Another reader's view: what was read before is known.
        with pytest.raises(StoreError) as caught:
            READERS[key](Store(store.root_uri))
        assert caught.value.code in {"record.damaged", "record.newer", "result.mismatch", "request.mismatch"}, name
        assert key in caught.value.message, name
        assert caught.value.hint, name
        assert len(caught.value.message) < 600, name
    path.write_bytes(data)
    READERS[key](Store(store.root_uri))


@pytest.mark.parametrize("key", [key for key in READERS if "/_" in key])
def test_a_folder_in_the_place_of_a_record_is_an_error_that_names_it(store: Store, key: str) -> None:
    path_of(store, key).unlink()
    path_of(store, key).mkdir()
    with pytest.raises(StoreError, match="is a folder") as caught:
        READERS[key](store)
    assert key in caught.value.message


def test_a_folder_in_the_place_of_a_record_is_an_error_of_the_reader_or_of_the_next_writer(store: Store) -> None:
    path_of(store, "refs/champion/0000000002.json").mkdir()
    with pytest.raises(StoreError, match=r"refs/champion/0000000002.json is a folder"):
        store.ref("champion").move({"model": "n"}, expected=1)
    path_of(store, "refs/champion/0000000002.json/x").write_bytes(b"1")
    with pytest.raises(StoreError, match=r"refs/champion/0000000002.json/x is not a record"):
        store.ref("champion").read()


def test_a_foreign_file_among_records_is_an_error_that_names_it(store: Store) -> None:
    path_of(store, f"{AT}/journal/0000000001.json~").write_bytes(b"1")
    with pytest.raises(StoreError, match=r"journal/0000000001.json~ is not a record") as caught:
        Lease.acquire(mine(store), owner="another", attempt_id="a2")
    assert caught.value.code == "record.foreign"


@pytest.mark.parametrize(
    ("key", "change"),
    [
        (f"{AT}/_RESULT.json", {"work_id": OTHER}),
        (f"{AT}/_RESULT.json", {"digest": 7}),
        (f"{AT}/_RESULT.json", {"run": {}}),
        (f"{AT}/attempts/a1/_REQUEST.json", {"attempt_id": "a2"}),
        (f"{AT}/attempts/a1/_REQUEST.json", {"spec_uri": None}),
        (f"{AT}/journal/{FIRST}", {"epoch": "1"}),
        (f"{AT}/launches/{FIRST}", {"unknown": 1}),
    ],
)
def test_a_record_with_wrong_fields_is_an_error_that_names_it(store: Store, key: str, change: dict[str, Any]) -> None:
    value = json.loads(path_of(store, key).read_bytes())
    del value["_record"]
    path_of(store, key).write_bytes(records.encode(key, {**value, **change}))
    with pytest.raises(StoreError) as caught:
        READERS[key](store)
    assert WORK_ID in caught.value.message


def test_a_newer_record_is_refused_in_words(store: Store) -> None:
    key = f"{AT}/_RESULT.json"
    path_of(store, key).write_bytes(records.encode(key, {**result_of(WORK_ID).to_xcom(), "format_version": 9}))
    with pytest.raises(StoreError, match="format 9, this version reads up to 1") as caught:
        mine(store).result()
    assert (caught.value.code, caught.value.hint) == ("record.newer", "upgrade Nightshift")


def no_work(_context: StageContext) -> StageOutput:
    raise AssertionError("a damaged request starts no work")


@pytest.mark.parametrize("damage", ["empty", "another record", "bit 800", "deep JSON", "not UTF-8"])
def test_a_damaged_request_ends_the_attempt_with_a_record_and_is_not_relaunched(store: Store, damage: str) -> None:
    path = path_of(store, f"{AT}/attempts/a2/_REQUEST.json")
    uri = mine(store).write_request(request_of(WORK_ID, "a2"))
    data = path.read_bytes()
    found = corruptions(data, path_of(store, f"{AT}/attempts/a1/_REQUEST.json").read_bytes())
    flipped = bytearray(data)
    flipped[100] ^= 1
    path.write_bytes({**found, "bit 800": bytes(flipped)}[damage])
    assert run(no_work, uri, stop=StopFlag()) is ExitCode.BAD_DATA
    # torchrun turns every end of a worker into 1.
    end = judge(Ended(exit_code=1, seconds=1.0), mine(store).error("a2"))
    assert end.action is Action.FAIL
    assert "attempts/a2/_REQUEST.json" in end.reason
    assert "clear the task" in end.reason


@pytest.mark.parametrize("damage", [b"contenx", b"", b"content and more"])
@pytest.mark.parametrize("way", ["bytes", "file"])
def test_an_altered_object_is_replaced_by_the_run_that_makes_it_again(store: Store, tmp_path: Path, damage: bytes, way: str) -> None:
    (tmp_path / "made").write_bytes(b"content")

    def make() -> str:
        return store.objects.put_bytes(b"content") if way == "bytes" else store.objects.put_file(tmp_path / "made")

    digest = make()
    path_of(store, store.objects.key(digest)).write_bytes(damage)
    with pytest.raises(StoreError, match=digest) as caught:
        store.objects.get_bytes(digest)
    assert "trigger the run again with force" in caught.value.hint
    assert make() == digest
    assert store.objects.get_bytes(digest) == b"content"
    assert store.bucket.list("altered") == [], "the mark is gone"


def test_an_object_that_is_whole_again_is_not_written_a_second_time(store: Store) -> None:
    digest = store.objects.put_bytes(b"content")
    path = path_of(store, store.objects.key(digest))
    path.write_bytes(b"contenx")
    with pytest.raises(StoreError):
        store.objects.get_bytes(digest)
    path.write_bytes(b"content")
    number = path.stat().st_ino
    store.objects.put_bytes(b"content")
    assert path.stat().st_ino == number
    assert store.bucket.list("altered") == []


def test_an_altered_manifest_is_replaced_by_the_run_that_makes_it_again(store: Store) -> None:
    uri, manifest = store.manifests.put_files("dataset", {"a": b"1"}, {})
    path_of(store, store.bucket.key(uri)).write_bytes(b"{}")
    with pytest.raises(StoreError, match="holds other bytes") as caught:
        store.manifests.get(uri)
    assert uri in caught.value.message
    assert "trigger the run again with force" in caught.value.hint
    assert store.manifests.put(manifest) == uri
    assert store.manifests.get(uri) == manifest
