"""The files of a registered model in MLflow's format: few, since each is a request when it is registered, and when it is loaded."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import mlflow
import yaml  # type: ignore[import-untyped]
from mlflow.models import Model

from training.registry.model.code import model_code, write_code
from training.registry.model.files import write_list
from training.runtime.provenance import version_of
from training.store import Manifest, Store

DESCRIPTION: Final = "MLmodel"
DATA: Final = "data"
CONDA: Final = "conda.yaml"
PYTHON: Final = "python_env.yaml"
HISTORY: Final = "history.json"
"""Of an artifact of a model. Nothing scores by it, and its numbers are the metrics of the training's MLflow run."""
BUILD_PACKAGES: Final = ("pip", "setuptools", "wheel")


def save_model(store: Store, manifest: Manifest, folder: Path, *, inputs: Mapping[str, str]) -> str:
    """Write the files of a registered model into a new folder, its code included; return the SHA-256 of their list.

    Raises:
        SpecError: `model.not_isolated`.
        StoreError: `object.missing`, the weights are not in the store any more; `object.damaged`.
    """
    data = store.manifests.fetch(manifest, folder / DATA)
    (data / HISTORY).unlink(missing_ok=True)
    facts = json.loads((data / "model.json").read_bytes())
    code = model_code(facts["family"], facts.get("requirements", ()))
    archive = write_code(code, folder)
    description = Model(metadata={"inputs": dict(inputs), "model_digest": manifest.digest})
    mlflow.pyfunc.add_to_model(
        # MLflow puts what `code` names on `sys.path`, also where it is an archive.
        description,
        loader_module=code.name,
        data=DATA,
        code=archive.name,
        conda_env=CONDA,
        python_env=PYTHON,
    )
    description.model_size_bytes = sum(path.stat().st_size for path in data.iterdir())
    description.save(str(folder / DESCRIPTION))
    for name, environment in _environments([f"mlflow=={mlflow.__version__}", *code.requirements]).items():
        (folder / name).write_text(yaml.safe_dump(environment, sort_keys=False), encoding="utf-8")
    return write_list(folder)


def _environments(requirements: Sequence[str]) -> dict[str, object]:
    """Return what MLflow installs for a model, by file: for conda, and for virtualenv, uv and images.

    MLflow's own `save_model` repeats the packages in requirements.txt, and compares them with every installed one, which takes 0.6 s.
    """
    installed = {name: version_of(name) for name in BUILD_PACKAGES}
    build = [f"{name}=={version}" if version else name for name, version in installed.items()]
    python, pip = platform.python_version(), f"pip<={installed['pip']}" if installed["pip"] else "pip"
    conda = {"name": "mlflow-env", "channels": ["conda-forge"], "dependencies": [f"python={python}", pip, {"pip": list(requirements)}]}
    return {CONDA: conda, PYTHON: {"python": python, "build_dependencies": build, "dependencies": list(requirements)}}
