"""`nightshift checkpoints`: real trainings' checkpoints, listed and exported by the command's own entry point."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch.distributed import HashStore  # type: ignore[attr-defined]

from tests.commands import command
from tests.unit.training.engine.loop_bench import LoopBench, stop_after
from tests.unit.training.large.checkpoint.test_sharded_resume import Parts
from training.contracts import ExitCode, StageResult
from training.engine.parallel.gang import Gang
from training.errors import PreemptedError
from training.large.checkpoint.savers import Savers
from training.store import point_at
from training.store.checkpoint_records import WITHDRAWN
from training.store.work_folder import StoreUri

main = command("checkpoints")


@pytest.fixture(params=[1, 2], ids=["whole", "sharded"])
def saved(request: pytest.FixtureRequest, bench: LoopBench) -> LoopBench:
    """A finished training of two epochs, saved in each format."""
    context = bench.context()
    bench.work_folder.write_request(context.request)
    if request.param == 1:
        bench.train(epochs=2, stage=context)
    else:
        checkpoints = bench.checkpoints(context, savers=Savers(0, 1, HashStore()))
        bench.train(epochs=2, stage=context, checkpoints=checkpoints, strategy=Parts(Gang(0, 1, torch.device("cpu"))))
    assert bench.store.manifests.get(bench.saved[-1]["uri"]).meta.get("format", 1) == request.param
    return bench


def run(bench: LoopBench, *arguments: object) -> int:
    command, *rest = map(str, arguments)
    return main([command, "p", *rest, "--store", bench.store.root_uri])


def listed(bench: LoopBench, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(bench, "list", "--json") == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


def read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


def state_of(bench: LoopBench, number: int) -> dict[str, torch.Tensor]:
    """Return the tensors of the checkpoint that the journal names, as a training restores them."""
    entries = [entry.number for entry in bench.work_folder.chain().history() if entry.value["kind"] == "checkpoint"]
    return bench.checkpoints(bench.context()).restore(entries[number]).state


def block_of(bench: LoopBench, number: int) -> Path:
    """Return a file of the store with a block of a checkpoint."""
    entry = next(iter(bench.store.manifests.get(bench.saved[number]["uri"]).files.values()))
    return Path(bench.store.root_uri.removeprefix("file://")) / bench.store.objects.key(entry.digest)


def test_list_has_each_checkpoint_with_its_names_and_position(saved: LoopBench, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = listed(saved, capsys)
    assert (first["run"], first["epoch"], first["is_restorable"]) == ("r", 1, True)
    assert {"epoch_1", f"step_{first['step']}"} <= set(first["names"])
    assert "newest" not in first["names"]
    assert {"epoch_2", "newest"} <= set(second["names"])
    assert second["step"] == 2 * first["step"]
    assert second["uri"] == saved.saved[-1]["uri"]
    assert second["layout"] == "data=1"
    assert second["size_bytes"] >= sum(tensor.nbytes for tensor in state_of(saved, 1).values())
    assert run(saved, "list", "r") == 0
    assert "epoch_2" in capsys.readouterr().out


def test_run_that_reused_the_training_has_the_checkpoints_of_the_run_that_trained(
    saved: LoopBench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request, uri = saved.context().request, "store://made"
    result = StageResult(
        pipeline="p",
        stage="train",
        work_id=request.work_id,
        artifact_uri=uri,
        digest="d" * 64,
        run=request.run,
        attempt_id="a1",
        attempts=1,
        committed_at="2026-02-01T02:00:00+00:00",
    )
    assert saved.work_folder.create_result(result)
    point_at(saved.store.run_ref("p", "later", "reused/train"), uri)
    point_at(saved.store.run_ref("p", "other", "reused/train"), "store://deleted")
    assert run(saved, "list", "later", "--json") == 0
    assert json.loads(capsys.readouterr().out) == listed(saved, capsys)
    assert run(saved, "restore", "later", "epoch_1") == 0
    capsys.readouterr()
    file = tmp_path / "out.safetensors"
    assert run(saved, "export", "later", "best", file) == 0
    assert read(file)[1]["nightshift.run"] == "r"
    assert run(saved, "restore", "other", "epoch_1") == ExitCode.BAD_SPEC
    assert "run 'other' of 'p' has no checkpoint 'epoch_1'" in capsys.readouterr().err


def test_list_says_which_checkpoint_cannot_be_used(saved: LoopBench, capsys: pytest.CaptureFixture[str]) -> None:
    block_of(saved, 0).unlink()
    first, second = listed(saved, capsys)
    assert not first["is_restorable"]
    assert "is missing" in first["fault"]
    assert second["is_restorable"]
    assert run(saved, "restore", "r", "epoch_1") == ExitCode.BAD_DATA
    assert "is missing" in capsys.readouterr().err


def test_withdrawn_checkpoint_has_no_name_and_is_neither_newest_nor_usable(
    saved: LoopBench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = saved.context().lease
    assert lease is not None
    lease.commit(WITHDRAWN, {"after_step": saved.saved[0]["step"]})
    first, second = listed(saved, capsys)
    assert (first["is_restorable"], "newest" in first["names"]) == (True, True)
    assert (second["is_restorable"], second["names"], second["fault"]) == (False, [], "was withdrawn: replicas of the model differed")
    file = tmp_path / "out.safetensors"
    assert run(saved, "export", "r", f"step_{second['step']}", file) == ExitCode.BAD_SPEC
    assert run(saved, "export", "r", "newest", file) == 0
    assert read(file)[1]["nightshift.step"] == str(first["step"])


@pytest.mark.parametrize("name", ["epoch_1", "1"])
def test_exported_weights_are_those_that_a_training_restores(saved: LoopBench, tmp_path: Path, name: str) -> None:
    file = tmp_path / "out.safetensors"
    assert run(saved, "export", "r", name, file) == 0
    tensors, metadata = read(file)
    wanted = {name.removeprefix("module/"): tensor for name, tensor in state_of(saved, 0).items() if name.startswith("module/")}
    assert tensors.keys() == wanted.keys()
    assert all(torch.equal(tensors[name], tensor) and tensors[name].dtype == tensor.dtype for name, tensor in wanted.items())
    assert (metadata["nightshift.run"], metadata["nightshift.epoch"]) == ("r", "1")
    assert metadata["nightshift.step"] == str(saved.saved[0]["step"])
    assert metadata["nightshift.dataset"]
    assert [path.name for path in tmp_path.glob("*.safetensors*")] == ["out.safetensors"], "no temporary file is left"


def test_all_has_every_tensor_of_the_checkpoint(saved: LoopBench, tmp_path: Path) -> None:
    file = tmp_path / "out.safetensors"
    assert run(saved, "export", "r", "newest", file, "--what", "all") == 0
    tensors, wanted = read(file)[0], state_of(saved, 1)
    assert tensors.keys() == wanted.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in wanted.items())


def test_existing_file_stays_without_force(saved: LoopBench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.safetensors"
    file.write_text("mine")
    assert run(saved, "export", "r", "best", file) == ExitCode.DENIED
    assert file.read_text() == "mine"
    assert "export.exists" in capsys.readouterr().err
    assert run(saved, "export", "r", "best", file, "--force") == 0
    assert read(file)[0]


@pytest.mark.parametrize(
    ("reason", "exit_code", "code"),
    [
        (errno.EACCES, ExitCode.DENIED, "export.denied"),
        (errno.ENOSPC, ExitCode.UNAVAILABLE, "export.unwritten"),
    ],
)
def test_file_that_cannot_be_written_is_named_and_nothing_is_left(
    saved: LoopBench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    reason: int,
    exit_code: ExitCode,
    code: str,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr("training.engine.checkpoint.safetensors_export.os.fsync", refuse)
    file = tmp_path / "out.safetensors"
    assert run(saved, "export", "r", "best", file) == exit_code
    said = capsys.readouterr().err
    assert code in said
    assert f"{file}" in said
    assert not list(tmp_path.glob("*out.safetensors*"))


def test_folder_that_is_missing_is_named(saved: LoopBench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(saved, "export", "r", "best", tmp_path / "missing" / "out.safetensors") == ExitCode.UNAVAILABLE
    assert "export.unwritten" in capsys.readouterr().err


def test_checkpoint_before_the_first_epoch_has_no_best_weights_to_export(
    bench: LoopBench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = bench.context()
    bench.work_folder.write_request(context.request)
    with pytest.raises(PreemptedError):
        stop_after(bench.loop(stage=context), 2).train()
    assert run(bench, "export", "r", "newest", tmp_path / "out.safetensors", "--what", "best") == ExitCode.BAD_DATA
    said = capsys.readouterr().err
    assert "checkpoint.empty" in said
    assert "no tensors of best; it has: module, optimizer" in said
    assert not list(tmp_path.glob("*out.safetensors*"))


def test_altered_block_is_refused_and_no_file_is_left(saved: LoopBench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    block = block_of(saved, 1)
    data = bytearray(block.read_bytes())
    data[0] ^= 1
    block.write_bytes(data)
    assert run(saved, "export", "r", "newest", tmp_path / "out.safetensors", "--what", "all") == ExitCode.BAD_DATA
    assert "object.altered" in capsys.readouterr().err
    assert not list(tmp_path.glob("*out.safetensors*"))


@pytest.mark.parametrize(("who", "name"), [("r", "epoch_9"), ("other", "newest"), ("../p", "newest")])
def test_unknown_name_or_run_is_refused(saved: LoopBench, tmp_path: Path, who: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(saved, "export", who, name, tmp_path / "out.safetensors") == ExitCode.BAD_SPEC
    assert "checkpoint.unknown" in capsys.readouterr().err


def test_training_whose_checkpoints_were_all_withdrawn_begins_at_its_start_again(saved: LoopBench) -> None:
    start, last = saved.saved[0], saved.saved[-1]
    context = saved.context()
    assert context.lease is not None
    context.lease.commit("withdrawn", {"after_step": 0})
    checkpoints = saved.checkpoints(context)
    assert checkpoints.newest_entry() == 0
    checkpoints.begin_at(StoreUri(start["uri"]).digest)
    assert checkpoints.restore(checkpoints.newest_entry()).meta["step"] == start["step"]
    checkpoints.begin_at(StoreUri(last["uri"]).digest)
    assert checkpoints.restore(checkpoints.newest_entry()).meta["step"] == start["step"], "it has one of its own"


def test_imported_weights_are_restored_with_an_optimizer_of_zeros(
    saved: LoopBench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.safetensors"
    assert run(saved, "export", "r", "epoch_1", file) == 0
    capsys.readouterr()
    assert run(saved, "import", "r", file) == 0
    digest = json.loads(capsys.readouterr().out)["train"]["from_checkpoint"]
    lease = saved.context().lease
    assert lease is not None
    lease.commit("checkpoint", {"uri": saved.store.bucket.uri(saved.store.manifests.key(digest)), "step": 0, "epoch": 0})
    found = {name: tensor.clone() for name, tensor in state_of(saved, 1).items() if not name.startswith("best/")}
    checkpoints = saved.checkpoints(saved.context())
    meta = checkpoints.restore_into(checkpoints.newest_entry(), found).meta
    assert (meta["step"], meta["epoch"]) == (0, 0)
    weights = read(file)[0]
    assert all(torch.equal(found[f"module/{name}"], tensor) for name, tensor in weights.items())
    assert not any(tensor.any() for name, tensor in found.items() if name.startswith("optimizer/"))
