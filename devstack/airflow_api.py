"""The few calls of Airflow's REST API that a laptop installation makes, and its health.

A request that can be repeated without harm is repeated for a minute: the supervisor restarts a dead API server within seconds,
and a slow one or a locked SQLite database answers later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception_type, retry_if_result, stop_after_delay, wait_random_exponential

from training.contracts import JsonValue
from training.errors import DeniedError, NightshiftError, UnavailableError, shown

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS: Final = 20.0
RETRY_SECONDS: Final = 60.0
MAX_PAUSE_SECONDS: Final = 2.0
BUSY_STATUSES: Final = frozenset({429, 500, 502, 503, 504})
"""500 is among them: Airflow answers so while SQLite is locked."""
NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout)


class AirflowApi:
    """A logged-in client; it logs in again when its token has run out."""

    def __init__(
        self,
        base_url: str,
        username: str,
        password: str,
        *,
        is_running: Callable[[], bool] = lambda: True,
        timeout_seconds: float = TIMEOUT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Make a client; it connects with its first call.

        Args:
            is_running: False ends the repeating early: nothing will restart the server.
            timeout_seconds: of one request, for each read and write.
            retry_seconds: no request is repeated after so long.
        """
        self.base_url = base_url.rstrip("/")
        self._credentials = {"username": username, "password": password}
        self._is_running = is_running
        self._retry_seconds = retry_seconds
        # trust_env off: a proxy of the environment cannot reach this machine's own ports.
        self._client = httpx.Client(base_url=self.base_url, timeout=timeout_seconds, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def keep_up(self) -> None:
        """Ask `is_running`, which may start again what serves the answers, while requests still succeed: without a supervisor
        nothing restarts the scheduler either, and a run that is followed would never end.
        """
        self._is_running()

    def health(self) -> dict[str, str]:
        """Return each part's status (`healthy`, `unhealthy` or None as text); empty while it does not answer."""
        try:
            response = self._client.get("/api/v2/monitor/health")
            values = response.json() if response.status_code == httpx.codes.OK else {}
        except (httpx.HTTPError, ValueError):
            return {}
        return {part: str(value.get("status")) for part, value in values.items()}

    def find(self, path: str, **query: str | int | list[str]) -> Any:
        """GET `/api/v2{path}`; None when there is no such thing."""
        response = self._request("GET", path, params=query)
        return None if response.status_code == httpx.codes.NOT_FOUND else self._body(response)

    def get(self, path: str, **query: str | int | list[str]) -> Any:
        """GET `/api/v2{path}`; raises `airflow.refused` when there is no such thing."""
        return self._body(self._request("GET", path, params=query))

    def post(self, path: str, body: dict[str, JsonValue]) -> Any:
        """POST `/api/v2{path}`; repeated only while it could not be sent."""
        return self._body(self._request("POST", path, json=body))

    def create(self, path: str, body: dict[str, JsonValue]) -> bool:
        """POST something whose name is in the body, which makes it safe to repeat; return False if it was there already (409)."""
        response = self._request("POST", path, repeatable=True, json=body)
        if response.status_code == httpx.codes.CONFLICT:
            return False
        self._body(response)
        return True

    def patch(self, path: str, body: dict[str, JsonValue]) -> Any:
        return self._body(self._request("PATCH", path, json=body))

    def put(self, path: str) -> Any:
        return self._body(self._request("PUT", path))

    def delete(self, path: str) -> None:
        self._body(self._request("DELETE", path))

    def _request(self, method: str, path: str, *, repeatable: bool | None = None, **arguments: Any) -> httpx.Response:
        if repeatable is None:
            repeatable = method != "POST"
        retry = retry_if_exception_type(httpx.TransportError if repeatable else NEVER_SENT)
        retrying = Retrying(
            retry=(retry | retry_if_result(lambda response: response.status_code in BUSY_STATUSES)) if repeatable else retry,
            stop=self._gives_up,
            wait=wait_random_exponential(multiplier=0.2, max=MAX_PAUSE_SECONDS),
            before_sleep=self._say_once,
            retry_error_callback=_last_answer,
        )
        try:
            response: httpx.Response = retrying(self._send, method, path, **arguments)
        except httpx.HTTPError as err:
            why = str(err) or type(err).__name__
            raise UnavailableError("airflow.unreachable", f"{method} {self.base_url}/api/v2{path}: {why}", hint="make status") from err
        return response

    def _gives_up(self, state: RetryCallState) -> bool:
        return stop_after_delay(self._retry_seconds)(state) or not self._is_running()

    def _say_once(self, state: RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome is not None:
            failure = state.outcome.exception()
            why = f"HTTP status {state.outcome.result().status_code}" if failure is None else str(failure) or type(failure).__name__
            logger.warning("Airflow at %s does not answer (%s); retrying for %.0f s", self.base_url, why, self._retry_seconds)

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        if "Authorization" not in self._client.headers:
            self._log_in()
        response = self._client.request(method, f"/api/v2{path}", **arguments)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            self._log_in()
            response = self._client.request(method, f"/api/v2{path}", **arguments)
        return response

    def _log_in(self) -> None:
        response = self._client.post("/auth/token", json=self._credentials)
        if response.status_code in BUSY_STATUSES:
            # Nothing of the request itself was sent: this is as good as a connection that failed.
            raise httpx.ConnectError(f"the login answered {response.status_code}")
        if response.status_code != httpx.codes.CREATED:
            raise DeniedError(
                "airflow.login", f"Airflow at {self.base_url} refused the login ({response.status_code})", hint="make stop, make run"
            )
        self._client.headers["Authorization"] = f"Bearer {response.json()['access_token']}"

    def _body(self, response: httpx.Response) -> Any:
        if response.is_success:
            return response.json() if response.content else None
        where = f"{response.request.method} {response.request.url.path}"
        raise NightshiftError(
            "airflow.refused",
            f"Airflow answered {response.status_code} to {where}: {shown(response.text)}",
            details={"status": response.status_code, "body": response.text},
        )


def _last_answer(state: RetryCallState) -> Any:
    """Return the last attempt's response, or raise its error."""
    return state.outcome.result() if state.outcome is not None else None
