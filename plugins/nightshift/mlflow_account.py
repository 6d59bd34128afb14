"""The account at MLflow's server, by the variables that MLflow's client reads too: its import takes seconds."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Final

from nightshift.settings import Settings
from training.installation import TRACKING, Variable

CREDENTIALS_FILE: Final = "credentials.json"
"""In NIGHTSHIFT_HOME: passwords of a laptop installation."""
LAPTOP_USER: Final = "admin"
MLFLOW_USER: Final = Variable(
    name="MLFLOW_TRACKING_USERNAME", set_by="others", meaning="MLflow: account at the server, with `MLFLOW_TRACKING_PASSWORD`"
)
MLFLOW_PASSWORD: Final = Variable(name="MLFLOW_TRACKING_PASSWORD", set_by="others", meaning="MLflow: password of the account")
MLFLOW_TOKEN: Final = Variable(name="MLFLOW_TRACKING_TOKEN", set_by="others", meaning="MLflow: bearer token, where there is no account")


def account_header(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the header of MLflow's account, as MLflow's client makes it of the same variables; empty: there is none."""
    if username := MLFLOW_USER.value(environ):
        return basic(username, MLFLOW_PASSWORD.value(environ))
    token = MLFLOW_TOKEN.value(environ)
    return {"Authorization": f"Bearer {token}"} if token else {}


def laptop_variables(settings: Settings) -> dict[str, str]:
    """Return what a process must have to reach the MLflow of a laptop installation; empty: there is no such installation."""
    try:
        made = json.loads((settings.home / CREDENTIALS_FILE).read_text(encoding="utf-8"))
        password = str(made["mlflow_password"])
    except (OSError, ValueError, KeyError):
        return {}
    return {TRACKING.name: settings.mlflow_uri, MLFLOW_USER.name: LAPTOP_USER, MLFLOW_PASSWORD.name: password}


def basic(username: str, password: str) -> dict[str, str]:
    """Return the header of an account."""
    return {"Authorization": f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"}
