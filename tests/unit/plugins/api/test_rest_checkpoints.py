"""Runs that begin at a checkpoint of an earlier run."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from nightshift.queries.checkpoints import restore_conf
from nightshift.settings import Settings
from tests.commands import command
from tests.unit.plugins.seeded_installation import AS_OF, DONE, Seeded
from training.contracts import JsonObject
from training.engine.checkpoint.catalog import named
from training.store import Store
from training.store.work_folder import StoreUri

main = command("checkpoints")

RUN = quote(f"search_ranking:{DONE}", safe="")


def path_of(name: str, run: str = RUN) -> str:
    return f"/training-runs/{run}/checkpoints/{name}/restore"


@pytest.fixture
def store(seeded: Seeded) -> Store:
    return Store(Settings.from_environment().store_uri)


def uri_of(store: Store, name: str) -> str:
    return named(store, "search_ranking", DONE, name).uri


def remove(store: Store, key: str) -> None:
    (Path(store.root_uri.removeprefix("file://")) / key).unlink()


def delete_manifest(store: Store, uri: str) -> None:
    remove(store, store.manifests.key(StoreUri(uri).digest))


def delete_block(store: Store, uri: str) -> None:
    (block,) = store.manifests.get(uri).files.values()
    remove(store, store.objects.key(block.digest))


def test_a_run_begins_at_the_checkpoint_over_the_data_and_with_the_settings_of_the_earlier_run(seeded: Seeded, store: Store) -> None:
    answer = seeded.post(path_of("epoch_3"), {})
    assert answer.status_code == 202, answer.text
    run, digest = answer.json(), StoreUri(uri_of(store, "epoch_3")).digest
    assert run["parameters"] == {"as_of": AS_OF, "train": {"learning_rate": 0.01, "from_checkpoint": digest}}
    assert (run["state"], run["triggered_by"], run["from_checkpoint"]) == ("queued", "bob", digest)
    assert answer.headers["location"] == f"/api/v1/runs/{quote(run['id'], safe='')}"
    assert seeded.get(f"/runs/{quote(run['id'], safe='')}").json()["from_checkpoint"] == digest
    assert seeded.get(f"/runs/{RUN}").json()["from_checkpoint"] is None


def test_a_run_over_another_window_begins_again_over_that_window(store: Store) -> None:
    earlier: JsonObject = {"data": {"source": {"window": "9d"}}, "train": {"learning_rate": 0.01}}
    conf = restore_conf(store, "search_ranking", DONE, "epoch_3", earlier=earlier, changes={"train": {"learning_rate": 0.1}})
    assert conf["data"] == earlier["data"]
    assert conf["train"] == {"learning_rate": 0.1, "from_checkpoint": StoreUri(uri_of(store, "epoch_3")).digest}


@pytest.mark.parametrize("name", ["3", "epoch_03", "step_300"])
def test_other_names_of_a_checkpoint_are_the_same_checkpoint(seeded: Seeded, store: Store, name: str) -> None:
    # `epoch_03` is no name that anything has.
    answer = seeded.post(path_of(name), {})
    if name == "epoch_03":
        assert (answer.status_code, answer.json()["code"]) == (404, "checkpoint.unknown")
    else:
        assert answer.json()["from_checkpoint"] == StoreUri(uri_of(store, "epoch_3")).digest


def test_the_command_prints_what_the_route_starts(seeded: Seeded, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restore", "search_ranking", DONE, "newest", "--store", store.root_uri]) == 0
    printed = capsys.readouterr()
    digest = seeded.post(path_of("newest"), {}).json()["from_checkpoint"]
    assert digest in printed.out
    assert AS_OF in printed.err


def test_a_request_may_change_keys_and_needs_no_body(seeded: Seeded) -> None:
    changed = seeded.post(path_of("5"), {"train": {"learning_rate": 0.5, "epochs": 9}})
    assert changed.status_code == 202, changed.text
    train = changed.json()["parameters"]["train"]
    assert (train["learning_rate"], train["epochs"]) == (0.5, 9)
    bare = seeded.client.post(f"/api/v1{path_of('5')}", headers={**seeded.headers("bob", "user"), "Content-Type": "application/json"})
    assert bare.status_code == 202, bare.text
    wrong = seeded.post(path_of("5"), {"train": {"learning_rate": "fast"}})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "conf.invalid")


def test_the_same_request_twice_is_one_run_and_another_checkpoint_is_another_one(seeded: Seeded) -> None:
    first, again = (seeded.post(path_of("5"), {}, headers={"Idempotency-Key": "one"}) for _ in range(2))
    assert (first.status_code, first.content) == (202, again.content)
    changed = seeded.post(path_of("5"), {"train": {"learning_rate": 0.5}}, headers={"Idempotency-Key": "one"})
    assert (changed.status_code, changed.json()["code"]) == (422, "idempotency.mismatch")
    other = seeded.post(path_of("4"), {}, headers={"Idempotency-Key": "one"})
    assert (other.status_code, other.json()["id"] == first.json()["id"]) == (202, False)


@pytest.mark.parametrize(("name", "run"), [("epoch_9", RUN), ("step_7", RUN), ("best", RUN), ("3", "search_ranking:r9")])
def test_a_checkpoint_that_never_existed_is_unknown(seeded: Seeded, name: str, run: str) -> None:
    answer = seeded.post(path_of(name, run), {})
    assert (answer.status_code, answer.json()["code"]) == (404, "checkpoint.unknown")
    assert "epoch_5" in answer.json()["errors"][0]["hint"] or DONE in answer.json()["errors"][0]["hint"]


def test_a_checkpoint_whose_name_is_not_kept_is_gone_and_the_nearest_is_named(seeded: Seeded) -> None:
    answer = seeded.post(path_of("1"), {})
    assert (answer.status_code, answer.json()["code"]) == (410, "checkpoint.deleted")
    assert "epoch_2 (step 200)" in answer.json()["hint"]


def test_a_collected_checkpoint_is_gone_and_the_nearest_usable_one_is_named(seeded: Seeded, store: Store) -> None:
    three, two, four = (uri_of(store, name) for name in ("epoch_3", "epoch_2", "epoch_4"))
    delete_manifest(store, three)
    gone = seeded.post(path_of("epoch_3"), {})
    assert (gone.status_code, gone.json()["code"]) == (410, "checkpoint.deleted")
    assert "epoch_2 (step 200)" in gone.json()["hint"]
    delete_block(store, two)
    assert "epoch_4 (step 400)" in seeded.post(path_of("epoch_3"), {}).json()["hint"]
    delete_block(store, four)
    assert "epoch_5 (step 500)" in seeded.post(path_of("epoch_4"), {}).json()["hint"]


def test_a_damaged_checkpoint_is_a_conflict_that_names_the_nearest_usable_one(seeded: Seeded, store: Store) -> None:
    delete_block(store, uri_of(store, "epoch_3"))
    answer = seeded.post(path_of("epoch_3"), {})
    assert (answer.status_code, answer.json()["code"]) == (409, "checkpoint.unreadable")
    assert "is missing" in answer.json()["detail"]
    assert "epoch_2 (step 200)" in answer.json()["hint"]
    assert not any("from_checkpoint" in str(run) for run in seeded.get("/runs").json()["items"])


@pytest.mark.parametrize("name", ["%00", "..%2f..%2fetc", "1_0", "-1", "1" + "0" * 30, "a" * 1000, "EPOCH_3", "epoch_", "%D9%A3"])
def test_an_odd_name_is_refused_before_the_store_is_asked(seeded: Seeded, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_arguments: Any, **_options: Any) -> None:
        raise AssertionError("the store was asked")

    monkeypatch.setattr("nightshift.queries.checkpoints.restorable", asked)
    assert seeded.post(path_of(name), {}).status_code in (404, 422)
    assert seeded.post(path_of("3", name), {}).status_code in (404, 422)


def test_a_run_has_its_checkpoints_with_names_sizes_and_what_can_be_restored(seeded: Seeded, store: Store) -> None:
    delete_block(store, uri_of(store, "epoch_4"))
    first, second = (seeded.get(f"/training-runs/{quote(RUN, safe='')}/checkpoints?{query}").json() for query in ("limit=3", "limit=200"))
    assert second["items"][:3] == first["items"]
    found = {each["name"]: each for each in second["items"]}
    assert list(found) == ["step_100", "epoch_2", "epoch_3", "epoch_4", "epoch_5"]
    assert {name for name, each in found.items() if not each["is_restorable"]} == {"epoch_4"}
    assert "is missing" in found["epoch_4"]["fault"]
    assert {name: found["epoch_5"][name] for name in ("names", "run", "step", "epoch", "size_bytes")} == {
        "names": ["epoch_5", "step_500", "newest"],
        "run": DONE,
        "step": 500,
        "epoch": 5,
        "size_bytes": 8,
    }
    rest = seeded.get(f"/training-runs/{quote(RUN, safe='')}/checkpoints?limit=3&cursor={first['next']}").json()
    assert ([each["name"] for each in rest["items"]], rest["next"]) == (["epoch_4", "epoch_5"], None)
    for name, each in found.items():
        assert (seeded.post(path_of(name), {}).status_code == 202) == each["is_restorable"]


def test_a_run_without_checkpoints_has_none_and_an_unknown_run_is_unknown(seeded: Seeded) -> None:
    runs = [run["id"] for run in seeded.get("/runs?pipeline=search_ranking").json()["items"]]
    assert seeded.get(f"/training-runs/{quote(runs[0], safe='')}/checkpoints").json() == {"items": [], "next": None}
    assert seeded.get("/training-runs/search_ranking:r9/checkpoints").json()["code"] == "run.unknown"
