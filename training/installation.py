"""The one reader of environment variables. Standard library and errors only: launchers read some before anything else is loaded.

A variable is declared once, as a `Variable` at module level: here where several modules read it, else in the module that reads it. So a new
variable changes the code of the stages that read it alone (docs/architecture.md). Values in a declaration are literals:
docs/reference/environment.md is generated from them.
"""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from training.errors import SpecError, spec_error

SOURCE: Final = "environment"
MAX_DIGITS: Final = 9
CHECKOUT: Final = Path(__file__).resolve().parents[1]
"""The folder that holds training/."""

PLACEHOLDER_RULE: Final = "[A-Z][A-Z0-9_]*_URI"
"""Of a variable that a YAML may name, as a regular expression."""
OTHER_PREFIXES: Final = ("NIGHTSHIFT_", "AIRFLOW_", "MLFLOW_", "AWS_", "AZURE_", "GOOGLE_", "KUBERNETES_", "DOCKER_")
"""Of names that end in _URI and are read by others: AWS_CONTAINER_CREDENTIALS_RELATIVE_URI looks like a path."""

_PLACE: Final = re.compile(PLACEHOLDER_RULE, re.ASCII)
_BUCKET: Final = re.compile(r"(?P<scheme>s3|gs|az)://(?P<name>[^/]*)(/.*)?", re.DOTALL)
_BUCKET_NAMES: Final[Mapping[str, re.Pattern[str]]] = {
    "s3": re.compile(r"[a-z0-9](?:[a-z0-9-]|\.(?!\.)){1,61}[a-z0-9]", re.ASCII),
    "gs": re.compile(r"[a-z0-9](?:[a-z0-9_-]|\.(?!\.)){1,220}[a-z0-9]", re.ASCII),
    "az": re.compile(r"(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]", re.ASCII),
}
"""Each cloud's rule."""
_ADDRESS: Final = re.compile(r"(0x[0-9a-f]+|[0-9]+)(\.(0x[0-9a-f]+|[0-9]+))*", re.ASCII)
"""A machine's, in each way of writing one: 169.254.169.254, 0xa9fea9fe, 2852039166."""

Kind = Literal["text", "path", "URI", "names", "size", "port", "whole number", "seconds"]
SetBy = Literal["user", "Nightshift", "others"]
"""`others`: torchrun, Kubernetes or a library's own settings, which Nightshift reads too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """One environment variable. An empty value counts as not set."""

    name: str
    meaning: str
    kind: Kind = "text"
    default: str = "none"
    """In words."""
    set_by: SetBy = "user"

    def value(self, environ: Mapping[str, str] = os.environ) -> str:
        """Return the value as it is, empty where it is not set: of a secret, or of a list of paths."""
        return environ.get(self.name, "")

    def text(self, environ: Mapping[str, str] = os.environ) -> str:
        """Return the value without blanks around it, empty where it is not set."""
        return self.value(environ).strip()

    def is_set(self, environ: Mapping[str, str] = os.environ) -> bool:
        """Return whether it is there, be it empty."""
        return self.name in environ


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeNumber(Variable):
    """A number from 0."""

    kind: Kind = "whole number"
    number: int = 0
    """Where it is not set."""

    def read(self, environ: Mapping[str, str] = os.environ) -> int:
        """Return the number.

        Raises:
            SpecError: `settings.number`, with the name.
        """
        text = self.text(environ)
        if not text:
            return self.number
        if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
            raise _refused(self.name, "is not a whole number", hint=f"write digits, such as {self.number}, or unset it")
        return int(text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Seconds(Variable):
    """A number of seconds, more than 0 and at most a day."""

    kind: Kind = "seconds"
    seconds: float
    """Where it is not set."""

    def read(self, environ: Mapping[str, str] = os.environ) -> float:
        """Return the number.

        Raises:
            SpecError: `settings.number`, with the name.
        """
        text = self.text(environ)
        if not text:
            return self.seconds
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= 86_400:
            hint = f"write a number from 0.1 to 86400, such as {self.seconds:g}, or unset it"
            raise _refused(self.name, "is not a number of seconds", hint=hint)
        return value


def _refused(name: str, message: str, *, hint: str) -> SpecError:
    return spec_error(SOURCE, "settings.number", message, hint=hint, field=name)


STOP_NOTICE: Final = Seconds(
    name="NIGHTSHIFT_STOP_NOTICE_SECONDS",
    seconds=90.0,
    default="none: a last checkpoint is saved, whatever time it takes",
    meaning="the time between SIGTERM and SIGKILL. A last checkpoint that does not fit into it is left out",
    set_by="Nightshift",
)
NODE: Final = Variable(
    name="NIGHTSHIFT_NODE",
    default="the machine's name",
    set_by="Nightshift",
    meaning="name of the node that a process runs on, for messages that name a rank's node; set in the cluster's pods",
)
HOME: Final = Variable(
    name="NIGHTSHIFT_HOME", kind="path", default="`<checkout>/.local`", meaning="folder for all files of a laptop installation"
)
STORE: Final = Variable(
    name="NIGHTSHIFT_STORE",
    kind="URI",
    default="`file://$NIGHTSHIFT_HOME/store`",
    meaning="root URI of the store: `file://`, `s3://`, `gs://`, `az://`",
)
DATABASE: Final = Variable(
    name="NIGHTSHIFT_DATABASE",
    kind="URI",
    default="`sqlite:///$NIGHTSHIFT_HOME/nightshift.db`",
    meaning="ledger and `dataset_version`, as SQLAlchemy URL: `sqlite:////path/file.db` or "
    "`postgresql+psycopg2://user:password@host:port/name`. In a password, write `@ : / ? # %` as `%40 %3A %2F %3F %23 %25`. "
    "The password is never shown: errors contain the URL without it and without options. Stages and tasks wait "
    "`NIGHTSHIFT_DATABASE_WAIT_SECONDS` for a PostgreSQL that does not answer; a running trial continues without its pruner; "
    "pages and commands report the error immediately",
)
PIPELINES: Final = Variable(
    name="NIGHTSHIFT_PIPELINES",
    kind="path",
    default="`<checkout>/dags/pipelines`",
    meaning="folder of the YAML files; the DAG files are in its parent folder",
)
EXPECTATIONS: Final = Variable(
    name="NIGHTSHIFT_EXPECTATIONS", kind="path", default="`<checkout>/expectations`", meaning="folder of the Great Expectations suites"
)
MODEL_PACKAGES: Final = Variable(
    name="NIGHTSHIFT_MODEL_PACKAGES",
    kind="names",
    default="empty",
    meaning="top-level packages, comma-separated, whose classes a YAML may name as `package.module:Class`",
)
MODEL_PATH: Final = Variable(name="NIGHTSHIFT_MODEL_PATH", kind="path", default="empty", meaning="folder that contains these packages")
TRACKING: Final = Variable(
    name="MLFLOW_TRACKING_URI",
    kind="URI",
    default="`http://127.0.0.1:5000`",
    meaning="MLflow server; if set, `make run` does not start one",
)
RANK: Final = WholeNumber(name="RANK", default="0", set_by="others", meaning="torchrun: number of the process among all of a training")
WORLD_SIZE: Final = WholeNumber(
    name="WORLD_SIZE", number=1, default="1", set_by="others", meaning="torchrun: number of processes of a training"
)
LOCAL_RANK: Final = WholeNumber(
    name="LOCAL_RANK", default="0", set_by="others", meaning="torchrun: number of the process among those of its node"
)
MASTER_HOST: Final = Variable(
    name="MASTER_ADDR", default="localhost", set_by="others", meaning="torchrun: host of the first process, where the others meet it"
)
TORCHRUN_ID: Final = Variable(
    name="TORCHELASTIC_RUN_ID", set_by="others", meaning="torchrun: the process was started by it, and ends with it"
)
GPUS: Final = Variable(
    name="CUDA_VISIBLE_DEVICES",
    default="all",
    set_by="others",
    meaning="CUDA: the GPUs that trainings on this machine may use; `-1` or an empty value: none",
)
THREADS: Final = Variable(
    name="OMP_NUM_THREADS",
    default="1",
    set_by="others",
    meaning="OpenMP: threads of a process outside of its training; a training sets its own",
)
PYTHON_PATH: Final = Variable(
    name="PYTHONPATH",
    kind="path",
    default="empty",
    set_by="others",
    meaning="Python: passed on to the services; stages find packages by `NIGHTSHIFT_MODEL_PATH`",
)

OF_SYSTEM: Final = frozenset(
    "PATH HOME LANG LC_ALL TZ TMPDIR LD_LIBRARY_PATH VIRTUAL_ENV SSL_CERT_FILE REQUESTS_CA_BUNDLE "
    "HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy".split()
)
"""Of every process."""
OF_STAGES: Final = frozenset(
    "CUDA_VISIBLE_DEVICES DO_NOT_TRACK MLFLOW_DISABLE_TELEMETRY NIGHTSHIFT_HOME NIGHTSHIFT_MODEL_PACKAGES NIGHTSHIFT_MODEL_PATH "
    "NIGHTSHIFT_CODE_VERSION NIGHTSHIFT_GIT_COMMIT NIGHTSHIFT_STAGE_MEMORY NIGHTSHIFT_TABLE_MEMORY NIGHTSHIFT_DATABASE_WAIT_SECONDS "
    "NIGHTSHIFT_START_TIMEOUT_SECONDS NIGHTSHIFT_COLLECTIVE_TIMEOUT_SECONDS NIGHTSHIFT_SLOW_WORK_TIMEOUT_SECONDS "
    "NIGHTSHIFT_PREEMPTION_NOTICE NIGHTSHIFT_CLOUD_IDENTITY NIGHTSHIFT_NODE NIGHTSHIFT_SERVICE".split()
)
"""Of every stage: with the same values all are forked from one template. A test compares them with what training/ declares."""
OF_LIBRARIES: Final = ("OMP_",)
OF_CLOUDS: Final[Mapping[str, str]] = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""Scheme of a URI to the prefix of its cloud's variables."""


def home_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return `NIGHTSHIFT_HOME`, by default .local/ of the checkout."""
    return Path(HOME.text(environ) or CHECKOUT / ".local")


def node_name() -> str:
    """Return the name of this process's node: the cluster's, or the machine's own."""
    return NODE.text() or socket.gethostname()


def is_place_name(name: str) -> bool:
    """Return whether a variable of this name may say where data is."""
    return _PLACE.fullmatch(name) is not None and not name.startswith(OTHER_PREFIXES)


def is_bucket(uri: str) -> bool:
    """Return whether a URI is an object store's, with a name that its cloud allows. An address of a machine is none."""
    found = _BUCKET.fullmatch(uri)
    if found is None or _ADDRESS.fullmatch(found["name"]):
        return False
    return _BUCKET_NAMES[found["scheme"]].fullmatch(found["name"]) is not None
