"""A registered model is loaded only as it was registered: every file is compared before anything of it is imported."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path

import mlflow
import numpy as np
import pytest

from tests.unit.training.evaluation.model_files import FRAME, model_folder
from training.errors import DataError
from training.models.predictor import load_predictor
from training.registry import serving
from training.registry.mlflow.versions import register_candidate
from training.registry.model.code import PREFIX
from training.registry.model.files import LIST_NAME, check_files, write_list
from training.registry.serving import load_verified
from training.store import Store

CANARY = "import pathlib; pathlib.Path({path!r}).touch()\n"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A model as MLflow's artifacts hold it, and the digest that was noted when it was registered."""
    folder = tmp_path_factory.mktemp("registered")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        patch.setenv("MLFLOW_REGISTRY_URI", f"sqlite:///{folder}/mlflow.db")
        patch.chdir(folder)
        store = Store(str(folder / "store"))
        files = {path.name: path.read_bytes() for path in model_folder(folder / "model").iterdir()}
        _uri, manifest = store.manifests.put_files("model", files, {"weights_digest": "w1"})
        registered = register_candidate(store, "orders", manifest, inputs={"value": "double"}, run=None, tags={})
        assert register_candidate(store, "orders", manifest, inputs={"value": "double"}, run=None, tags={}) == registered
        verified = load_verified("models:/orders/1", digest=registered.artifact_digest)
        assert np.array_equal(verified.predict(FRAME), load_predictor(folder / "model").predict(FRAME))
        fetched = Path(mlflow.artifacts.download_artifacts(artifact_uri="models:/orders/1", dst_path=str(folder / "fetched")))
    (fetched / serving.CLIENT_FILE).unlink(missing_ok=True)
    return fetched, registered.artifact_digest


@pytest.fixture
def model(saved: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of the model that a test may change."""
    return Path(shutil.copytree(saved[0], tmp_path / "model"))


@pytest.mark.slow
def test_a_model_as_it_was_registered_scores_as_the_stores_files_do(saved: tuple[Path, str]) -> None:
    found = load_verified(str(saved[0]), digest=saved[1]).predict(FRAME)
    assert found.shape == (len(FRAME),)
    assert np.std(found) > 0


def in_code(model: Path, canary: Path) -> None:
    (path,) = model.glob("*.zip")
    with zipfile.ZipFile(path) as archive:
        texts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in texts.items():
            archive.writestr(name, CANARY.format(path=str(canary)).encode() + text if name.endswith(".py") else text)


def as_a_new_module(model: Path, canary: Path) -> None:
    (model / "sitecustomize.py").write_text(CANARY.format(path=str(canary)), encoding="utf-8")


def in_mlmodel(model: Path, canary: Path) -> None:
    (model / "evil.py").write_text(CANARY.format(path=str(canary)), encoding="utf-8")
    text = (model / "MLmodel").read_text(encoding="utf-8")
    (model / "MLmodel").write_text(
        text.replace(f"loader_module: {PREFIX}", "loader_module: evil # ").replace(f"code: {PREFIX}", "code: . # "), encoding="utf-8"
    )


def with_a_list_of_its_own(model: Path, canary: Path) -> None:
    in_code(model, canary)
    write_list(model)


def in_the_data(model: Path, canary: Path) -> None:
    next((model / "data").rglob("weights.ubj")).write_bytes(b"other weights")


@pytest.mark.slow
@pytest.mark.parametrize("change", [in_code, as_a_new_module, in_mlmodel, with_a_list_of_its_own, in_the_data])
def test_a_replaced_model_is_refused_before_anything_of_it_is_imported(
    change: Callable[[Path, Path], None], model: Path, saved: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = tmp_path / "canary"
    change(model, canary)
    # Whatever MLflow would import: it is not even asked.
    monkeypatch.setattr(mlflow.pyfunc, "load_model", lambda *_args, **_named: pytest.fail("loaded"))
    with pytest.raises(DataError) as caught:
        load_verified(str(model), digest=saved[1])
    assert caught.value.code == "model.altered"
    assert not canary.exists()


def test_a_missing_file_and_all_others_that_differ_are_named_at_once(model: Path, saved: tuple[Path, str]) -> None:
    (model / "MLmodel").unlink()
    (model / "more.txt").touch()
    with pytest.raises(DataError, match=r"more\.txt is not listed; MLmodel is missing"):
        load_verified(str(model), digest=saved[1])


def test_a_link_in_place_of_a_file_is_refused(model: Path, saved: tuple[Path, str]) -> None:
    path = next((model / "data").rglob("model.json"))
    path.symlink_to(path.rename(model.parent / "model.json"))
    with pytest.raises(DataError, match=r"model\.json is a symbolic link"):
        check_files(model, digest=saved[1])


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def endless_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path.parent)


def deep(path: Path) -> None:
    for _ in range(200):
        path = path / "n"
    path.mkdir(parents=True)


@pytest.mark.parametrize("place", ["MLmodel", "more", "data/more", LIST_NAME])
@pytest.mark.parametrize("make", [fifo, unix_socket, endless_device, loop, deep])
def test_what_is_no_regular_file_is_refused_without_being_opened(
    model: Path, saved: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], place: str
) -> None:
    (model / place).unlink(missing_ok=True)
    monkeypatch.chdir(model)  # A socket's path is short.
    make(Path(place))
    monkeypatch.setattr(Path, "open", lambda *_args, **_named: pytest.fail("opened"))
    monkeypatch.setattr(shutil, "copytree", lambda *_args, **_named: pytest.fail("copied"))
    for uri in (str(model), model.as_uri()):
        with pytest.raises(DataError, match=r"a symbolic link|a FIFO|a socket|folders deep") as caught:
            load_verified(uri, digest=saved[1])
        assert caught.value.code == "model.altered"


def test_file_in_place_of_the_models_folder_is_refused(model: Path, saved: tuple[Path, str]) -> None:
    for path in (model / "MLmodel", model / "missing"):
        with pytest.raises(DataError, match="is not a folder") as caught:
            load_verified(str(path), digest=saved[1])
        assert caught.value.code == "model.unlisted"


LISTED_NAMES = ["n" * 300, "n/" * 3000, "/etc/hostname", "data/../../model.json", "nul\\u0000"]


@pytest.mark.parametrize("name", LISTED_NAMES, ids=["long", "deep", "absolute", "outside", "NUL"])
def test_listed_name_that_is_none_below_the_model_is_missing(model: Path, name: str) -> None:
    (model / LIST_NAME).write_text(f'{{"files": {{"{name}": {{"sha256": "0"}}}}, "format_version": 1}}', encoding="utf-8")
    with pytest.raises(DataError, match=" is missing") as caught:
        check_files(model, digest=None, below=name[:1])
    assert caught.value.code == "model.altered"


def test_file_of_another_size_is_refused_without_being_read(model: Path, saved: tuple[Path, str]) -> None:
    with (model / "MLmodel").open("r+b") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(DataError, match="MLmodel has other content"):
        check_files(model, digest=saved[1])


def test_a_model_without_a_list_of_files_is_not_loaded_as_verified(model: Path, saved: tuple[Path, str]) -> None:
    (model / LIST_NAME).unlink()
    with pytest.raises(DataError) as caught:
        load_verified(str(model), digest=saved[1])
    assert caught.value.code == "model.unlisted"


@pytest.mark.parametrize(
    "entry", ['"x"', "{}", "null", "1" + "}" * 3, "[" * 100_000], ids=["text", "no digest", "null", "not JSON", "very deep"]
)
def test_damaged_list_of_files_is_refused_with_a_code(model: Path, entry: str) -> None:
    (model / LIST_NAME).write_text(f'{{"files": {{"MLmodel": {entry}}}, "format_version": 1}}', encoding="utf-8")
    with pytest.raises(DataError, match="is damaged") as caught:
        check_files(model, digest=None)
    assert caught.value.code == "model.altered"


def test_folder_in_place_of_the_list_of_files_is_no_list(model: Path, saved: tuple[Path, str]) -> None:
    (model / LIST_NAME).unlink()
    (model / LIST_NAME).mkdir()
    with pytest.raises(DataError) as caught:
        check_files(model, digest=saved[1])
    assert caught.value.code == "model.unlisted"


@pytest.mark.parametrize("digest", ["", "0" * 63, "Z" * 64, "sha256:" + "0" * 57])
def test_what_is_not_a_digest_is_refused(model: Path, digest: str) -> None:
    with pytest.raises(DataError) as caught:
        load_verified(str(model), digest=digest)
    assert caught.value.code == "model.digest"


def test_mlflows_loader_refuses_damaged_data(model: Path) -> None:
    weights = next((model / "data").rglob("weights.ubj"))
    assert serving._load_pyfunc(str(weights.parent)).predict(FRAME).shape == (len(FRAME),)
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"weights\.ubj has other content") as caught:
        serving._load_pyfunc(str(weights.parent))
    assert caught.value.code == "model.altered"


def test_mlflows_loader_reads_a_model_of_an_earlier_version_and_says_that_it_is_not_checked(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (model / LIST_NAME).unlink()
    weights = next((model / "data").rglob("weights.ubj"))
    with caplog.at_level(logging.WARNING):
        assert serving._load_pyfunc(str(weights.parent)).predict(FRAME).shape == (len(FRAME),)
    assert "they are not checked" in caplog.text
