"""Makes the files of a registered model from the store once more, and loads them once, in a process of its own: it runs the model's code.

python -m training.registry.model.rebuild < ORDER

ORDER is JSON: `store`, `model_uri`, `inputs` (columns to types), `folder` (a new one). The last line of the output is the SHA-256 of the
list of files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from training.command_line import exit_code_of
from training.contracts import ExitCode
from training.errors import DataError, UnavailableError
from training.installation import CHECKOUT, OF_CLOUDS, OF_LIBRARIES, OF_STAGES, OF_SYSTEM, PYTHON_PATH
from training.process import liveness
from training.store import Store

LIMIT_SECONDS: Final = 600.0
LOOK_SECONDS: Final = 1.0
MAX_WORDS: Final = 500


def rebuilt(store: Store, model_uri: str, folder: Path, *, inputs: Mapping[str, str]) -> str:
    """Make the files of a model in a new folder, in a child that also loads them; return the SHA-256 of their list.

    Raises:
        DataError: `registry.rebuild`, its weights are gone, its code cannot be carried, or it cannot be loaded.
        UnavailableError: the store does not answer.
    """
    order = {"store": store.bucket.root_uri, "model_uri": model_uri, "inputs": dict(inputs), "folder": str(folder)}
    with subprocess.Popen(
        [sys.executable, "-m", "training.registry.model.rebuild"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(store),
    ) as child:
        text, errors = _ended(child, json.dumps(order))
    if child.returncode == 0:
        return text.splitlines()[-1]
    said = [line.removeprefix("error: ") for line in errors.splitlines() if line.startswith("error: ")]
    words = said[-1][:MAX_WORDS] if said else f"its process ended with exit code {child.returncode}"
    if child.returncode == ExitCode.UNAVAILABLE:
        raise UnavailableError("mlflow.unavailable", f"the model cannot be made from the store now: {words}", hint="it is tried again")
    raise DataError("registry.rebuild", f"the model cannot be made from the store: {words}", hint="roll back to another version")


def child_environment(store: Store, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what the child sees: the model's code has no business with the ledger, with MLflow's account or with Airflow's keys."""
    cloud = OF_CLOUDS.get(urlsplit(store.bucket.root_uri).scheme)
    names, prefixes = OF_SYSTEM | OF_STAGES, (*OF_LIBRARIES, *([cloud] if cloud else []))
    found = {name: value for name, value in inherited.items() if name in names or name.startswith(prefixes)}
    return {**found, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), *filter(None, [PYTHON_PATH.value(inherited)])])}


def _ended(child: subprocess.Popen[str], order: str) -> tuple[str, str]:
    """Return the child's outputs; one that takes too long is killed."""
    until = time.monotonic() + LIMIT_SECONDS
    given: str | None = order
    while True:
        try:
            return child.communicate(given, timeout=LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            given = None
            liveness.moved()
            if time.monotonic() > until:
                child.kill()


def main() -> int:
    """Carry out the order of the standard input; return the exit code."""
    return exit_code_of(_carry_out)


def _carry_out() -> int:
    import mlflow

    from training.registry.mlflow.saved_model import save_model

    order = json.load(sys.stdin)
    store, folder = Store(order["store"]), Path(order["folder"])
    digest = save_model(store, store.manifests.get(order["model_uri"], kind="model"), folder, inputs=order["inputs"])
    try:
        mlflow.pyfunc.load_model(str(folder))
    except Exception as err:
        # Whatever the model's code raises.
        message = f"it was made and cannot be loaded: {type(err).__name__}: {err}"
        raise DataError("model.unloadable", message, hint="the code of today no longer loads it: roll back to another version") from err
    sys.stdout.write(f"{digest}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
