"""Everything that a laptop installation sets: Airflow's configuration, MLflow's, the demo's places, and the secrets made once.

Airflow reads its environment before its file: `$NIGHTSHIFT_HOME/airflow/airflow.cfg` is free for settings that are not set here.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from devstack.alerts_file import noted_alerts
from devstack.locking import locked
from nightshift.json_files import read_object
from nightshift.settings import Settings
from nightshift.slots import parallelism
from nightshift.source_uris import noted_places
from training.errors import DeniedError, NightshiftError, shown
from training.installation import MODEL_PATH, PLACEHOLDER_RULE, PYTHON_PATH, Variable, is_place_name

USERNAME: Final = "admin"
"""Starts the runs; the same name is MLflow's account."""
APPROVER: Final = "approver"
"""Airflow's second user: the user who started a run may not approve its model."""
HOST: Final = "127.0.0.1"
SHOP_PLACE: Final = Variable(
    name="SHOP_URI", kind="URI", default="the simulated shop in `$NIGHTSHIFT_HOME`", meaning="where search_ranking's clicks are"
)
SHOP: Final = SHOP_PLACE.name
PATH: Final = Variable(
    name="PATH", kind="path", set_by="others", meaning="of the shell: where programs are; services get the environment's own first"
)
CREDENTIALS_FILE: Final = "credentials.json"
FERNET_KEY: Final = "fernet_key"
SECRETS: Final[Mapping[str, Callable[[], str]]] = {
    "airflow_password": lambda: secrets.token_urlsafe(12),
    "approver_password": lambda: secrets.token_urlsafe(12),
    "mlflow_password": lambda: secrets.token_urlsafe(12),
    "mlflow_secret_key": lambda: secrets.token_urlsafe(64),
    "jwt_secret": lambda: secrets.token_urlsafe(64),
    "api_secret_key": lambda: secrets.token_urlsafe(64),
    FERNET_KEY: lambda: base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
}
"""What is made once, by name, and how."""

MLFLOW_ACCOUNTS_FILE: Final = "accounts.ini"
MLFLOW_ACCOUNTS_DATABASE: Final = "accounts.db"
MLFLOW_DATABASE: Final = "mlflow.db"
SET_BY_MAKE: Final = frozenset({"PYTHONPATH"})
"""What the Makefile exports to its own commands: `make env` runs with it, and the shell that evaluates its lines does not."""
DAY_SECONDS: Final = 86_400
NEVER_SECONDS: Final = 10 * 365 * DAY_SECONDS
TASK_TOKEN_SECONDS: Final = 30 * DAY_SECONDS
DAG_BUNDLE: Final = {"name": "dags-folder", "classpath": "nightshift.airflow_ext.dag_bundle.PipelineBundle", "kwargs": {}}

QUIET_WARNINGS: Final = ",".join(
    ("ignore:Using `httpx` with `starlette", "ignore:starlette.middleware.wsgi is deprecated", "ignore:Could not import graphviz")
)
"""Of libraries about libraries; they would stand in every command's output."""


_SECRET = re.compile(r"[!-~]+( [!-~]+)*")
_FERNET_KEY = re.compile(r"[A-Za-z0-9_-]{43}=")
PLACEHOLDER = re.compile(rf"\$\{{({PLACEHOLDER_RULE})\}}", re.ASCII)


def airflow_home(settings: Settings) -> Path:
    return settings.home / "airflow"


def mlflow_home(settings: Settings) -> Path:
    return settings.home / "mlflow"


def airflow_url(settings: Settings) -> str:
    return f"http://{HOST}:{settings.airflow_port}"


def mlflow_url(settings: Settings) -> str:
    return f"http://{HOST}:{settings.mlflow_port}"


def dags_path(settings: Settings) -> Path:
    """Folder of the DAG files: each reads its pipeline from the folder of pipelines next to it."""
    return settings.pipelines_path.parent


def shop_root(settings: Settings) -> Path:
    """Folder of the demo's data."""
    return settings.home / "data" / "shop"


def credentials(settings: Settings) -> dict[str, str]:
    """Return the installation's secrets, made at the first call and kept in a file that its user alone can read.

    Commands that make them at the same time get the same ones; one that an older installation lacks is added.

    Raises:
        NightshiftError: `services.credentials`, the file is damaged; `home.write`, it cannot be written.
    """
    path = settings.home / CREDENTIALS_FILE
    known = _read_secrets(path)
    if SECRETS.keys() <= known.keys():
        return known
    with locked(path.with_suffix(".lock")):
        known = _read_secrets(path)
        made = {name: make() for name, make in SECRETS.items() if name not in known}
        if made:
            write_private(path, json.dumps({**known, **made}, indent=1))
    return {**known, **made}


def _read_secrets(path: Path) -> dict[str, str]:
    code, hint = "services.credentials", "make stop, delete the file, make start: new secrets are made, and the logins change"
    known = read_object(path, code=code, hint=hint) or {}
    for name, value in known.items():
        # The value stays out of the message.
        if not isinstance(value, str) or not _SECRET.fullmatch(value) or (name == FERNET_KEY and not _FERNET_KEY.fullmatch(value)):
            raise NightshiftError(code, f"{path} is damaged: the value of {shown(name)} is empty or malformed", hint=hint)
    return known


def owns_mlflow(settings: Settings) -> bool:
    """Return whether the MLflow server is this installation's own: its account is then known here."""
    return settings.mlflow_uri == mlflow_url(settings)


def prepare_home(settings: Settings) -> None:
    """Make the folders and files that the services expect; no other user of this machine can read them."""
    make_private_folder(settings.home)
    for folder in (airflow_home(settings), mlflow_home(settings), settings.home / "logs", settings.home / "data"):
        folder.mkdir(parents=True, exist_ok=True)
    secret = credentials(settings)
    passwords = {USERNAME: secret["airflow_password"], APPROVER: secret["approver_password"]}
    write_private(airflow_home(settings) / "passwords.json", json.dumps(passwords))
    _write_mlflow_accounts(settings, secret["mlflow_password"])


def make_private_folder(path: Path) -> None:
    """Make a folder that its user alone can enter, which hides all that is below it; one that exists is closed to others.

    Raises:
        DeniedError: `home.owner`, the folder is another user's.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        path.chmod(0o700)
    except PermissionError as err:
        raise DeniedError(
            "home.owner", f"{path} belongs to another user: {err.strerror}", hint="choose another NIGHTSHIFT_HOME, or delete the folder"
        ) from err


def _write_mlflow_accounts(settings: Settings, password: str) -> None:
    """Write what MLflow's server makes its account from. It does so in a new database only, so another password starts a new one."""
    folder = mlflow_home(settings)
    path, database = folder / MLFLOW_ACCOUNTS_FILE, folder / MLFLOW_ACCOUNTS_DATABASE
    text = f"""[mlflow]
default_permission = NO_PERMISSIONS
database_uri = sqlite:///{database}
admin_username = {USERNAME}
admin_password = {password}
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
# Hashing the password again for each of the hundreds of files of a model takes longer than sending them.
auth_cache_ttl_seconds = 300
"""
    if not _holds(path, text):
        database.unlink(missing_ok=True)
        write_private(path, text)


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode("utf-8")
    except OSError:
        return False


def airflow_settings(settings: Settings) -> dict[str, str]:
    """Return Airflow's configuration as environment variables."""
    home, secret = airflow_home(settings), credentials(settings)
    values = {
        "core": {
            "executor": "devstack.executor.SleepTolerantLocalExecutor",
            "parallelism": str(parallelism(settings)),
            "load_examples": "False",
            "dags_folder": str(dags_path(settings)),
            "plugins_folder": str(settings.checkout_path / "plugins"),
            "dag_discovery_safe_mode": "False",
            "dags_are_paused_at_creation": "True",
            "execution_api_server_url": f"{airflow_url(settings)}/execution/",
            # The default looks up the host's full name in DNS, which takes seconds without a DNS server.
            "hostname_callable": "socket.gethostname",
            "simple_auth_manager_users": f"{USERNAME}:admin,{APPROVER}:user",
            "simple_auth_manager_passwords_file": str(home / "passwords.json"),
            "fernet_key": secret["fernet_key"],
        },
        "database": {"sql_alchemy_conn": f"sqlite:///{home / 'airflow.db'}", "sql_alchemy_connect_args": "devstack.sqlite.CONNECT_ARGS"},
        "scheduler": {
            # Between two tasks the scheduler sleeps for so long; a second of it times eight stages would be felt.
            "scheduler_idle_sleep_time": "0.1",
            # A loop examines first the runs in which a task ended. With the default of 20 one of a full night takes three times as long.
            "max_dagruns_per_loop_to_schedule": str(parallelism(settings)),
            # A killed scheduler costs so long: Airflow's own interval is five minutes.
            "orphaned_tasks_check_interval": "10",
            "scheduler_health_check_threshold": "12",
            "scheduler_heartbeat_sec": "3",
            # Airflow's own check counts the hours in which the laptop slept; the executor's does not and takes its place.
            "task_instance_heartbeat_timeout": str(NEVER_SECONDS),
        },
        "dag_processor": {
            "dag_bundle_config_list": json.dumps([DAG_BUNDLE]),
            # The bundle requests a parse of what has changed; Airflow itself parses each file once a day.
            "min_file_process_interval": str(DAY_SECONDS),
            "parsing_processes": "1",
        },
        "api": {
            "host": HOST,
            "port": str(settings.airflow_port),
            "base_url": airflow_url(settings),
            "workers": "1",
            "instance_name": "Nightshift",
            "secret_key": secret["api_secret_key"],
        },
        "api_auth": {"jwt_secret": secret["jwt_secret"]},
        # A running task whose token expired while the laptop slept is refused and ends.
        "execution_api": {"jwt_expiration_time": str(TASK_TOKEN_SECONDS)},
        "logging": {
            "base_log_folder": str(home / "logs"),
            "colored_console_log": "False",
            # Airflow sets the modes of task logs itself, regardless of the umask.
            "file_task_handler_new_folder_permissions": "0o700",
            "file_task_handler_new_file_permissions": "0o600",
        },
    }
    flat = {f"AIRFLOW__{section.upper()}__{name.upper()}": value for section, entries in values.items() for name, value in entries.items()}
    return {"AIRFLOW_HOME": str(home), **flat}


def environment(settings: Settings, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of every service and of a prepared shell.

    Args:
        inherited: what to start from, None: this process's own; another Airflow's settings in it are dropped.
    """
    base = {name: value for name, value in (os.environ if inherited is None else inherited).items() if not name.startswith("AIRFLOW_")}
    checkout = settings.checkout_path
    path = (PATH.value(base) or os.defpath).split(os.pathsep)
    programs = [str(Path(sys.executable).parent), str(checkout / "devstack" / "bin")]
    own = f"{MODEL_PATH.value(base)}{os.pathsep}{PYTHON_PATH.value(base)}"
    places = dict.fromkeys([str(checkout), str(checkout / "plugins"), *filter(None, own.split(os.pathsep))])
    ours = {
        "NIGHTSHIFT_HOME": str(settings.home),
        "NIGHTSHIFT_STORE": settings.store_uri,
        "NIGHTSHIFT_DATABASE": settings.database_url,
        "NIGHTSHIFT_PIPELINES": str(settings.pipelines_path),
        "NIGHTSHIFT_EXPECTATIONS": str(settings.expectations_path),
        "NIGHTSHIFT_AIRFLOW_PORT": str(settings.airflow_port),
        "NIGHTSHIFT_MLFLOW_PORT": str(settings.mlflow_port),
        "MLFLOW_TRACKING_URI": settings.mlflow_uri,
        "PYTHONPATH": os.pathsep.join(places),
        "PYTHONWARNINGS": QUIET_WARNINGS,
        "PATH": os.pathsep.join([*(folder for folder in programs if folder not in path), *path]),
        "DO_NOT_TRACK": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "GIT_PYTHON_REFRESH": "quiet",
    }
    # What a shell has set to nothing is noted no more by the command that runs in it.
    given = {name: value for name, value in base.items() if value.strip() or not is_place_name(name)}
    sources = {SHOP: shop_root(settings).as_uri(), **noted_places(settings.home)}
    return {**sources, **noted_alerts(settings.home), **given, **airflow_settings(settings), **ours, **mlflow_account(settings)}


def mlflow_account(settings: Settings) -> dict[str, str]:
    """Return the variables with which MLflow's clients log in; none for a server that is not this installation's own."""
    if not owns_mlflow(settings):
        return {}
    return {"MLFLOW_TRACKING_USERNAME": USERNAME, "MLFLOW_TRACKING_PASSWORD": credentials(settings)["mlflow_password"]}


def shell_lines(settings: Settings) -> str:
    """Return `export` lines for what differs from the shell's environment; a shell evaluates them."""
    wanted = sorted(environment(settings).items())
    return "\n".join(
        f"export {name}={shlex.quote(value)}" for name, value in wanted if name in SET_BY_MAKE or os.environ.get(name) != value
    )


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step by one that its user alone can read; a reader never sees half of it.

    Raises:
        NightshiftError: `home.write`, a full disk, a read-only folder, or a folder in the file's place.
    """
    try:
        descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600, O_EXCL
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(draft).replace(path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    except OSError as err:
        hint = "free space on the disk, check the folder's owner and mode, and move away what is in the file's place"
        raise NightshiftError("home.write", f"{path} cannot be written: {err.strerror}", hint=hint) from err
