"""Where the server is, and who asks: environment, or the installation on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import httpx

from nightshift.client.client import TIMEOUT_SECONDS, Client
from nightshift.mlflow_account import CREDENTIALS_FILE, LAPTOP_USER
from nightshift.settings import LOCAL_HOST, Settings
from training.errors import DeniedError, UnavailableError
from training.installation import Variable

SERVER: Final = Variable(
    name="NIGHTSHIFT_SERVER", meaning="address of the api-server that commands ask, for example `https://airflow.example.com`"
)
TOKEN: Final = Variable(name="NIGHTSHIFT_TOKEN", meaning="token of Airflow that commands send to NIGHTSHIFT_SERVER")
USERNAME: Final = LAPTOP_USER
PASSWORD_KEYS: Final = {USERNAME: "airflow_password", "approver": "approver_password"}
"""Users of a laptop installation, and where the file has their passwords."""
NO_LOGIN: Final = "set NIGHTSHIFT_SERVER and NIGHTSHIFT_TOKEN; on a laptop: make start"


def client_of(server: str | None = None, environ: Mapping[str, str] = os.environ, *, user: str = USERNAME) -> Client:
    """Return a client of a server, or of the laptop installation whose home the environment names.

    Args:
        server: its address; None: NIGHTSHIFT_SERVER, and without that the laptop installation.
        user: of the laptop installation; a server knows the user by the token.

    Raises:
        DeniedError: `access.unauthenticated`: there is no token for the server, or no laptop installation.
    """
    address = server or SERVER.text(environ)
    if address:
        given = TOKEN.text(environ)
        if not given:
            message = f"there is no token for {address}"
            raise DeniedError("access.unauthenticated", message, hint="set NIGHTSHIFT_TOKEN to a token of its /auth/token")
        return Client(address, lambda: given)
    settings = Settings.from_environment(environ)
    local = f"http://{LOCAL_HOST}:{settings.airflow_port}"
    return Client(local, _login(local, settings.home / CREDENTIALS_FILE, user), is_local=True)


def _login(server: str, path: Path, user: str) -> Callable[[], str]:
    def token() -> str:
        try:
            password = str(json.loads(path.read_text(encoding="utf-8"))[PASSWORD_KEYS[user]])
        except (OSError, ValueError, KeyError) as err:
            message = f"no server is named, and {path} has no login of an installation"
            raise DeniedError("access.unauthenticated", message, hint=NO_LOGIN) from err
        # trust_env off: a proxy of the environment cannot reach this machine's own ports.
        try:
            answer = httpx.post(
                f"{server}/auth/token", json={"username": user, "password": password}, timeout=TIMEOUT_SECONDS, trust_env=False
            )
        except httpx.TransportError as err:
            raise UnavailableError("server.unreachable", f"{server}: {err}", hint="check --server, or start the services") from err
        if answer.status_code != httpx.codes.CREATED:
            raise DeniedError("access.unauthenticated", f"{server} refused the login of {path}", hint="make stop, make start")
        return str(answer.json()["access_token"])

    return token
