"""Trainings that begin at a checkpoint of another one: `train.from_checkpoint`, as `nightshift checkpoints restore` prints it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.commands import command
from tests.training_bench import Bench
from training.contracts import ExitCode
from training.engine.checkpoint.catalog import opened
from training.engine.checkpoint.safetensors_export import export
from training.errors import SpecError
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, load_spec
from training.spec.covered_keys import spec_part
from training.spec.reader.overrides import apply_overrides
from training.store.work_folder import StoreUri

main = command("checkpoints")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """With one finished training of two epochs, named `first`."""
    folder = tmp_path_factory.mktemp("train")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{folder}/nightshift.db")
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        patch.setattr("training.engine.tracking.tracker.CLOSE_SECONDS", 0.5)
        made = Bench(folder)
        assert made.train("first") is ExitCode.DONE
        return made


@pytest.fixture(autouse=True)
def _settings(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr("training.engine.tracking.tracker.CLOSE_SECONDS", 0.5)
    monkeypatch.setattr(bench, "spec", bench.spec)


def conf_of(bench: Bench, name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["restore", "search_ranking", "r", name, "--store", bench.store.root_uri]) == 0
    conf: dict[str, Any] = json.loads(capsys.readouterr().out)
    return conf


def changed(bench: Bench, conf: dict[str, Any]) -> PipelineSpec:
    """Return the spec with the conf's keys: its places are filled in, so that it cannot be read as a YAML again."""
    train = bench.spec.train.model_validate({**bench.spec.train.model_dump(mode="json", by_alias=True), **conf["train"]})
    return bench.spec.model_copy(update={"train": train})


def test_training_from_the_first_epoch_has_the_bits_of_the_undisturbed_one(
    bench: Bench, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    conf = conf_of(bench, "1", capsys)
    assert conf == conf_of(bench, "epoch_1", capsys)
    bench.spec = changed(bench, conf)
    assert bench.train("restored") is ExitCode.DONE
    assert bench.weights("restored") == bench.weights("first")
    result = bench.work_folder("train", "restored").result()
    assert result is not None
    assert result.scalars["resumed_from"] == conf["train"]["from_checkpoint"]
    first, restored = bench.checkpoints("first"), bench.checkpoints("restored")
    # Of all tensors, with the optimizer's: the URI is their digest.
    assert [saved["uri"] for saved in restored] == [saved["uri"] for saved in first]
    assert f"resuming after step {first[0]['step']}" in caplog.text


def test_trigger_takes_the_printed_conf_and_refuses_what_is_no_digest(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    spec = load_spec(CHECKOUT / "dags/pipelines/search_ranking.yaml")
    conf = conf_of(bench, "epoch_1", capsys)
    found, parameters = apply_overrides(spec, conf)
    assert found.train.from_checkpoint == conf["train"]["from_checkpoint"]
    assert parameters.overrides == {"train.from_checkpoint": conf["train"]["from_checkpoint"]}
    with pytest.raises(SpecError) as caught:
        apply_overrides(spec, {"train": {"from_checkpoint": "../../etc/passwd"}})
    assert caught.value.code == "digest.invalid"


def test_another_learning_rate_changes_what_comes_after_the_checkpoint(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    conf = conf_of(bench, "epoch_1", capsys)
    conf["train"]["learning_rate"] = 0.0001
    bench.spec = changed(bench, conf)
    assert bench.train("slower") is ExitCode.DONE
    first, slower = bench.checkpoints("first"), bench.checkpoints("slower")
    assert slower[0]["uri"] == first[0]["uri"]
    assert slower[1]["uri"] != first[1]["uri"]


def test_checkpoint_is_part_of_the_work_id_of_the_training_alone(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (changed(bench, conf_of(bench, name, capsys)) for name in ("epoch_1", "epoch_2"))
    parts = [spec_part(spec, "train") for spec in (bench.spec, one, two)]
    assert len({json.dumps(part, sort_keys=True) for part in parts}) == 3
    assert spec_part(one, "prepare") == spec_part(bench.spec, "prepare")


def exported(bench: Bench, folder: Path) -> Path:
    file = folder / "weights.safetensors"
    assert main(["export", "search_ranking", "r", "epoch_1", str(file), "--store", bench.store.root_uri]) == 0
    return file


def taken(bench: Bench, file: Path) -> int:
    return main(["import", "search_ranking", "r", str(file), "--store", bench.store.root_uri])


def test_training_begins_at_step_zero_with_the_imported_weights(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    file = exported(bench, tmp_path)
    capsys.readouterr()
    assert taken(bench, file) == 0
    conf = json.loads(capsys.readouterr().out)
    bench.spec = changed(bench, {"train": {**conf["train"], "learning_rate": 1e-30}})
    caplog.set_level(logging.INFO)
    assert bench.train("imported") is ExitCode.DONE
    assert "resuming after step 0" in caplog.text
    first, *_, last = bench.checkpoints("imported")
    assert (first["step"], last["epoch"]) == (0, 2)
    _, saved = opened(bench.store, last["uri"])
    export(saved, bench.store.objects, tmp_path / "after", what="module", metadata={})
    before, after = load_file(file), load_file(tmp_path / "after")
    # Without decay and with no learning rate to speak of, the weights stay what they were.
    assert all(torch.allclose(after[name], tensor, rtol=1e-6, atol=1e-9) for name, tensor in before.items())


@pytest.mark.parametrize("fault", ["missing", "extra", "shape", "dtype"])
def test_tensors_of_another_model_are_refused(bench: Bench, tmp_path: Path, fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = load_file(exported(bench, tmp_path))
    name = sorted(tensors)[0]
    tensor = tensors.pop(name)
    tensors |= {
        "missing": {},
        "extra": {name: tensor, "planted": torch.zeros(3)},
        "shape": {name: torch.zeros(1, 7)},
        "dtype": {name: tensor.half()},
    }[fault]
    save_file(tensors, tmp_path / "other")
    assert taken(bench, tmp_path / "other") == ExitCode.BAD_DATA
    error = capsys.readouterr().err
    assert "weights.other" in error
    assert ("planted" if fault == "extra" else name) in error


@pytest.mark.parametrize("fault", ["truncated", "pickle", "dtype", "overlap", "huge header", "empty", "folder"])
def test_file_that_is_no_safetensors_is_refused(bench: Bench, tmp_path: Path, fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = exported(bench, tmp_path)
    content, planted = file.read_bytes(), tmp_path / "planted"
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    one, two = [name for name in header if name != "__metadata__"][:2]
    if fault == "overlap":
        header[two] = header[one]
    elif fault == "dtype":
        header[one]["dtype"] = "F4"
    text = json.dumps(header).encode()
    torch.save({one: torch.zeros(3)}, tmp_path / "pickle")
    changed_header = len(text).to_bytes(8, "little") + text + content[8 + length :]
    if fault == "folder":
        planted.mkdir()
    else:
        planted.write_bytes(
            {
                "truncated": content[:-1],
                "pickle": (tmp_path / "pickle").read_bytes(),
                "huge header": (2**63).to_bytes(8, "little") + content[8:],
                "empty": b"",
            }.get(fault, changed_header)
        )
    assert taken(bench, planted) == ExitCode.BAD_DATA
    assert "weights.unreadable" in capsys.readouterr().err


def test_checkpoint_of_another_batch_size_is_refused(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.spec = changed(bench, {"train": {**conf_of(bench, "epoch_1", capsys)["train"], "batch_size": 120}})
    assert bench.train("other batches") is ExitCode.BAD_SPEC
    error = bench.work_folder("train", "other batches").error("a1")
    assert error is not None
    assert error["code"] == "checkpoint.mismatch"


def test_missing_checkpoint_ends_the_training_and_it_does_not_begin_at_the_start(bench: Bench) -> None:
    bench.spec = changed(bench, {"train": {"from_checkpoint": "0" * 64}})
    assert bench.train("missing") is ExitCode.BAD_DATA
    assert not bench.checkpoints("missing")


def test_damaged_checkpoint_is_not_restored(bench: Bench) -> None:
    conf = {"train": {"from_checkpoint": StoreUri(bench.checkpoints("first")[1]["uri"]).digest}}
    bench.spec = changed(bench, conf)
    manifests = [bench.store.manifests.get(saved["uri"]) for saved in bench.checkpoints("first")]
    digest = ({entry.digest for entry in manifests[1].files.values()} - {entry.digest for entry in manifests[0].files.values()}).pop()
    block = Path(bench.store.root_uri.removeprefix("file://")) / bench.store.objects.key(digest)
    content = block.read_bytes()
    try:
        block.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert bench.train("damaged") is ExitCode.BAD_DATA
        assert not bench.checkpoints("damaged")
    finally:
        block.write_bytes(content)
