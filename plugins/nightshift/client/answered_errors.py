"""The errors that answers of a server describe."""

from __future__ import annotations

from typing import Final

import httpx

from training.errors import DeniedError, NightshiftError, Problem, SpecError, UnavailableError, shown

AIRFLOW_PREFIX: Final = "/api/v2"
BUSY: Final = frozenset({429, 500, 502, 503, 504})
PROXY_BUSY: Final = frozenset({502, 503, 504})
"""What a proxy answers, in words of its own, while the server behind it restarts."""


def error_of(response: httpx.Response) -> NightshiftError:
    """Return the error that an answer describes: a problem of ours, or words of Airflow, of a proxy or of another server."""
    try:
        body = response.json()
        code, detail, hint = str(body["code"]), str(body["detail"]), str(body.get("hint", ""))
        errors = [
            Problem(code=str(each["code"]), message=str(each["message"]), hint=str(each.get("hint", "")), field=str(each["field"]))
            for each in body.get("errors", [])
        ]
    except (ValueError, KeyError, TypeError):
        where = f"{response.request.method} {response.request.url}"
        if (detail := _detail(response)) and response.request.url.path.startswith(AIRFLOW_PREFIX):
            return DeniedError(
                "airflow.refused", f"{where} answered {response.status_code}: {detail}", hint="check the name and the user's rights"
            )
        message = f"{where} answered {response.status_code}: {shown(response.text)}"
        if response.status_code in PROXY_BUSY:
            return UnavailableError("server.unreachable", message, hint="check --server, or start the services")
        return NightshiftError("server.refused", message, hint="is this the address of an api-server with Nightshift's plugin?")
    if response.status_code in BUSY:
        return UnavailableError(code, detail, hint=hint)
    if response.status_code == httpx.codes.UNPROCESSABLE_ENTITY and errors:
        return SpecError("request", errors)
    return DeniedError(code, detail, hint=hint)


def _detail(response: httpx.Response) -> str:
    """Return why Airflow's own API refuses; empty where this is no answer of it."""
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return ""
