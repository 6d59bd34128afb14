"""Registered models, loaded by `load_verified`, which trusts no registry. Nothing is unpickled."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from training.errors import DataError
from training.models.predictor import NamedPredictor, Predictor
from training.registry.model.files import CLIENT_FILE, check_files, check_kinds
from training.registry.model.scoring import load_checked

if TYPE_CHECKING:
    from mlflow.pyfunc import PyFuncModel


def load_verified(uri: str, *, digest: str) -> PyFuncModel:
    """Load a registered model, all of whose files are those that were registered.

    MLflow's own `load_model` imports code that is part of the model, so a user who can write to the registry or to its artifacts runs code
    where the model is loaded. Here every file is compared with its digest before anything of the model is imported. Then the model's own
    code scores, as it was registered.

    Args:
        uri: as MLflow takes it, `models:/flight_delay@champion` or `models:/flight_delay/7`; or a folder that was downloaded.
        digest: SHA-256 of the model's list of files, 64 hex digits, from the ledger: `nightshift show flight_delay` shows it
            for champion and canary. Not from the registry that is to be checked.

    Returns:
        A model whose `predict(raw_frame)` includes the preprocessing: one score per row, or a column per class with a name.

    Raises:
        DataError: `model.altered`, `model.unlisted`, `model.digest`, `model.newer`.
        UnavailableError: `mlflow.unavailable`, `mlflow.denied`.
    """
    import mlflow

    from training.registry.mlflow.versions import registry_faults

    # The model may read its files as long as this process uses it.
    scratch = Path(tempfile.mkdtemp(prefix="nightshift-model-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    local = _local_path(uri)
    if local is not None:
        # What is checked must not change before it is loaded.
        fetched = _copied(local, scratch / "model")
    else:
        with registry_faults():
            fetched = Path(mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=str(scratch)))
    (fetched / CLIENT_FILE).unlink(missing_ok=True)
    check_files(fetched, digest=digest)
    return mlflow.pyfunc.load_model(str(fetched))


def _local_path(uri: str) -> Path | None:
    """Return the path of a folder on this machine, None for what MLflow has to find."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(uri)


def _copied(folder: Path, target: Path) -> Path:
    check_kinds(folder)
    try:
        return Path(shutil.copytree(folder, target, symlinks=True))
    except OSError as err:
        raise DataError("model.altered", f"{folder} could not be copied: {err}", hint="nothing of it was loaded") from err


def _load_pyfunc(path: str) -> Predictor | NamedPredictor:
    """Load a model that was registered before models carried their code under a separate name; MLflow calls it by name."""
    return load_checked(path)
