"""The environment of each service of a laptop installation: an allow-list, by name, of what the service reads.

MLflow's server gets no key of Airflow's, no database and no token; Airflow's services get no token of a client.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from devstack.alerts_file import SIGNING_KEY, webhooks_of
from devstack.environment import airflow_settings, environment
from devstack.processes import MARK
from nightshift.execution.stage_environment import OF_MLFLOW, OF_TRAININGS
from nightshift.settings import Settings
from training.contracts import sha256_hex
from training.installation import MODEL_PATH, OF_CLOUDS, OF_LIBRARIES, OF_STAGES, OF_SYSTEM
from training.runtime.provenance import source_version
from training.spec.descriptors.sources import SOURCES

OF_SERVICES: Final = frozenset(
    "USER LOGNAME PYTHONPATH PYTHONWARNINGS DO_NOT_TRACK GIT_PYTHON_REFRESH "
    "MLFLOW_DISABLE_TELEMETRY MLFLOW_ALLOW_PICKLE_DESERIALIZATION".split()
)
"""Of every service, besides those of every process."""
OF_AIRFLOW: Final = frozenset(
    "AIRFLOW_HOME KUBECONFIG KUBERNETES_SERVICE_HOST KUBERNETES_SERVICE_PORT NIGHTSHIFT_STORE NIGHTSHIFT_DATABASE NIGHTSHIFT_PIPELINES "
    "NIGHTSHIFT_EXPECTATIONS NIGHTSHIFT_PLACES NIGHTSHIFT_BACKEND NIGHTSHIFT_KUBERNETES NIGHTSHIFT_AIRFLOW_PORT NIGHTSHIFT_MLFLOW_PORT "
    "NIGHTSHIFT_RETENTION NIGHTSHIFT_SLOTS NIGHTSHIFT_API_RATE".split()
)
"""Of Airflow's services, besides those of the stages that their tasks start."""
OF_MLFLOW_SERVER: Final = ("MLFLOW_SERVER_", "MLFLOW_SQLALCHEMYSTORE_")
SERVICE_PREFIXES: Final = ("NIGHTSHIFT_", *OF_CLOUDS.values())
COMPARED: Final = frozenset({"MLFLOW_TRACKING_URI", "CUDA_VISIBLE_DEVICES", "OMP_WAIT_POLICY"})
"""Further variables whose change makes running services old ones."""


def airflow_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of Airflow's services: without the places of data, which each run looks up."""
    wanted, own = environment(settings), airflow_settings(settings)
    of_kinds = {name for kind in SOURCES.usable().values() for name in kind.variables}
    names = OF_SYSTEM | OF_SERVICES | OF_STAGES | OF_AIRFLOW | own.keys() | of_kinds | webhooks_of(settings, wanted) | {SIGNING_KEY}
    prefixes = (*OF_MLFLOW, *OF_LIBRARIES, *OF_TRAININGS, *OF_CLOUDS.values())
    return {name: value for name, value in wanted.items() if name in names or name.startswith(prefixes)}


def mlflow_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of MLflow's server, without what its command line and its files say."""
    names = OF_SYSTEM | OF_SERVICES
    return {name: value for name, value in environment(settings).items() if name in names or name.startswith(OF_MLFLOW_SERVER)}


def digests(settings: Settings) -> dict[str, str]:
    """Return a digest, by name, of each setting and of the code that running services hold: where one differs, they are old."""
    values = airflow_environment(settings)
    named = COMPARED | webhooks_of(settings, values)
    wanted = {name: value for name, value in values.items() if name.startswith(SERVICE_PREFIXES) or name in named}
    # The services find the users' packages by PYTHONPATH: the user's command must find the same ones, or it sees other code.
    sys.path += [folder for folder in MODEL_PATH.value(values).split(os.pathsep) if folder and folder not in sys.path]
    plugins = sorted((settings.checkout_path / "plugins").rglob("*.py"))
    wanted["code"] = source_version() + sha256_hex(b"\0".join(path.read_bytes() for path in plugins))
    return {name: sha256_hex(value.encode("utf-8", "surrogateescape"))[:16] for name, value in wanted.items() if name != MARK}
