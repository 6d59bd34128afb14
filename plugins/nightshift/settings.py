"""What an installation sets, by environment variables, each with its default: docs/reference/environment.md has the table."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, overload

from training.errors import Problem, SpecError, shown
from training.installation import (
    DATABASE,
    EXPECTATIONS,
    HOME,
    MODEL_PACKAGES,
    OTHER_PREFIXES,
    PIPELINES,
    STORE,
    TRACKING,
    Variable,
    is_bucket,
    is_place_name,
)
from training.runtime.provenance import CHECKOUT

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from training.registry.ledger.ledger import Ledger
    from training.store import Store

SOURCE: Final = "environment"
LOCAL_HOST: Final = "127.0.0.1"
LOCAL: Final = "local"
"""The backend whose stages are processes of this machine."""
BACKEND: Final = Variable(
    name="NIGHTSHIFT_BACKEND", default="`local`", meaning="where stages run: `local`, `kubernetes`, or an installed backend"
)
KUBERNETES: Final = Variable(
    name="NIGHTSHIFT_KUBERNETES",
    kind="path",
    meaning="path of the file that describes the cluster; start from docker/kubernetes/placement.yaml",
)
NAMED_PLACES: Final = Variable(
    name="NIGHTSHIFT_PLACES",
    kind="names",
    default="those noted in `$NIGHTSHIFT_HOME/sources.json`",
    meaning="`…_URI` variables, comma-separated, that YAML files may name as places of data: `SHOP_URI,FLIGHTS_URI`. Where the laptop's "
    "commands note places, they need not be listed (docs/data.md)",
)
SLOTS: Final = Variable(
    name="NIGHTSHIFT_SLOTS",
    default="by cores and memory; in a cluster `cpu:4,train:1`",
    meaning="slots of Airflow's pools, comma-separated: `cpu:12,train:4`. Pools that are not named keep their default (docs/operating.md)",
)
AIRFLOW_PORT: Final = Variable(name="NIGHTSHIFT_AIRFLOW_PORT", kind="port", default="8080", meaning="Airflow's port, on 127.0.0.1")
MLFLOW_PORT: Final = Variable(name="NIGHTSHIFT_MLFLOW_PORT", kind="port", default="5000", meaning="MLflow's port, on 127.0.0.1")

_STORE = re.compile(r"file:///[^/?#].*|[a-z0-9]+://[^?#@]*")
_DATABASE = re.compile(r"(sqlite|postgresql)(\+[a-z0-9_]+)?://.*", re.DOTALL)
_TRACKING = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")
_BACKEND = re.compile(r"[a-z][a-z0-9_-]{0,30}")
_SLOTS = re.compile(r"(?P<pool>[A-Za-z0-9_.-]{1,100}):(?P<number>[1-9][0-9]{0,3})")
_PACKAGE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """One installation."""

    checkout_path: Path
    home: Path
    """Everything that a laptop installation writes."""
    store_uri: str
    database_url: str
    """Ledger and dataset versions, an SQLAlchemy URL; may hold a password, so it is never logged."""
    pipelines_path: Path
    expectations_path: Path
    backend: str
    """Where stages run; `nightshift.execution.backend` knows which there are."""
    kubernetes_path: Path | None
    """The file that says what the installation's cluster is like."""
    model_packages: tuple[str, ...]
    """Top-level packages whose classes a YAML may name."""
    places: tuple[str, ...]
    """Variables that a YAML may name as places of data, besides those noted."""
    slots: tuple[tuple[str, int], ...]
    """Pools of Airflow whose number of slots is given, with it."""
    mlflow_uri: str
    airflow_port: int
    mlflow_port: int

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Read the settings; an empty variable is an unset one.

        Raises:
            SpecError: every variable that is wrong (`settings.path`, `settings.store`, `settings.database`, `settings.mlflow`,
                `settings.port`, `settings.backend`, `settings.packages`, `settings.places`,
                `settings.slots`).
        """
        reader = _SettingsReader(environ)
        home = reader.path(HOME, CHECKOUT / ".local")
        mlflow_port = reader.port(MLFLOW_PORT, 5000)
        settings = cls(
            checkout_path=CHECKOUT,
            home=home,
            store_uri=reader.store(STORE, home / "store"),
            database_url=reader.matching(
                DATABASE,
                f"sqlite:///{home / 'nightshift.db'}",
                _DATABASE,
                Problem(
                    code="settings.database",
                    message="is not an SQLAlchemy URL of SQLite or PostgreSQL",
                    hint="sqlite:////path or postgresql://…",
                ),
            ),
            pipelines_path=reader.path(PIPELINES, CHECKOUT / "dags" / "pipelines"),
            expectations_path=reader.path(EXPECTATIONS, CHECKOUT / "expectations"),
            backend=reader.matching(
                BACKEND,
                LOCAL,
                _BACKEND,
                Problem(code="settings.backend", message="is not a backend", hint="local or kubernetes"),
            ),
            kubernetes_path=reader.path(KUBERNETES, None),
            model_packages=reader.packages(MODEL_PACKAGES),
            places=reader.places(NAMED_PLACES),
            slots=reader.slots(SLOTS),
            mlflow_uri=reader.matching(
                TRACKING,
                f"http://{LOCAL_HOST}:{mlflow_port}",
                _TRACKING,
                Problem(
                    code="settings.mlflow",
                    message="is not an http address",
                    hint=f"http://{LOCAL_HOST}:5000; the account in MLFLOW_TRACKING_USERNAME and …_PASSWORD",
                ),
            ),
            airflow_port=reader.port(AIRFLOW_PORT, 8080),
            mlflow_port=mlflow_port,
        )
        if reader.problems:
            raise SpecError(SOURCE, reader.problems)
        return settings

    def ledger(self) -> Ledger:
        """Open the ledger, which loads SQLAlchemy: a DAG file needs none of it.

        Raises:
            SpecError, DataError, UnavailableError: as `training.database.connect`.
        """
        from training.registry.ledger.ledger import Ledger

        return Ledger(self.database_url)

    def store(self) -> Store:
        """Open the store, which asks it nothing yet."""
        from training.store import Store

        return Store(self.store_uri)

    def database(self) -> Engine:
        """Open the database; as `ledger`."""
        from training.database import connect

        return connect(self.database_url)


class _SettingsReader:
    """Reads variables and gathers what is wrong with them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.problems: list[Problem] = []

    @overload
    def path(self, variable: Variable, default: Path) -> Path: ...

    @overload
    def path(self, variable: Variable, default: None) -> Path | None: ...

    def path(self, variable: Variable, default: Path | None) -> Path | None:
        text = variable.text(self._environ)
        if not text:
            return default
        if not text.startswith("/"):
            # Services, tasks and shells have different working folders.
            self._refuse("settings.path", variable.name, "is not an absolute path", hint="begin it with /")
            return default
        return Path(os.path.normpath(text))

    def port(self, variable: Variable, default: int) -> int:
        text = variable.text(self._environ)
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= 65535):
            self._refuse("settings.port", variable.name, "is not a valid port", hint="a number from 1 to 65535")
            return default
        return int(text)

    def store(self, variable: Variable, default: Path) -> str:
        text = variable.text(self._environ)
        if not text:
            return default.as_uri()
        uri = Path(os.path.normpath(text)).as_uri() if text.startswith("/") else text.rstrip("/")
        uri = uri.replace(" ", "%20") if uri.startswith("file:") else uri
        if not _STORE.fullmatch(uri) or not (uri.startswith("file:") or is_bucket(uri)):
            # It may hold keys: the value stays out of the message.
            hint = "/folder, file:///folder, s3://bucket/prefix; keys have variables of their own"
            self._refuse("settings.store", variable.name, "is not a place for a store", hint=hint)
        return uri

    def matching(self, variable: Variable, default: str, pattern: re.Pattern[str], refusal: Problem) -> str:
        text = variable.text(self._environ)
        if not text:
            return default
        if not pattern.fullmatch(text):
            # URLs may hold a password: the value stays out of the message.
            self._refuse(refusal.code, variable.name, refusal.message, hint=refusal.hint)
        return text

    def packages(self, variable: Variable) -> tuple[str, ...]:
        found = self._names(variable)
        for part in found:
            if not _PACKAGE.fullmatch(part):
                self._refuse("settings.packages", variable.name, f"{shown(part)} is not a top-level package", hint="names, comma-separated")
        return found

    def places(self, variable: Variable) -> tuple[str, ...]:
        found = self._names(variable)
        if not all(is_place_name(name) for name in found):
            # What is not a name may be a value.
            message = "has what is not the name of a place of data"
            hint = f"names in capitals that end in _URI, comma-separated; none of {', '.join(f'{prefix}…' for prefix in OTHER_PREFIXES)}"
            self._refuse("settings.places", variable.name, message, hint=hint)
        return found

    def slots(self, variable: Variable) -> tuple[tuple[str, int], ...]:
        found: dict[str, int] = {}
        for part in self._names(variable):
            match = _SLOTS.fullmatch(part)
            if match is None:
                self._refuse("settings.slots", variable.name, f"{shown(part)} is not a pool with its slots", hint="write cpu:12,train:4")
            elif match["pool"] in found:
                self._refuse("settings.slots", variable.name, f"names the pool {match['pool']} twice", hint="name it once")
            else:
                found[match["pool"]] = int(match["number"])
        return tuple(found.items())

    def _names(self, variable: Variable) -> tuple[str, ...]:
        return tuple(part for piece in variable.text(self._environ).split(",") if (part := piece.strip()))

    def _refuse(self, code: str, name: str, message: str, *, hint: str) -> None:
        self.problems.append(Problem(code=code, message=message, hint=hint, field=name))
