"""The few calls of Airflow's REST API that a laptop installation makes, and its health."""

from __future__ import annotations

from typing import Any, Final

import httpx

from training.errors import DeniedError, NightshiftError, UnavailableError, shown

TIMEOUT_SECONDS: Final = 20.0


class AirflowApi:
    """A logged-in client; it logs in again when its token has run out."""

    def __init__(self, base_url: str, username: str, password: str) -> None:
        self.base_url = base_url.rstrip("/")
        self._credentials = {"username": username, "password": password}
        # trust_env off: a proxy of the environment cannot reach this machine's own ports.
        self._client = httpx.Client(base_url=self.base_url, timeout=TIMEOUT_SECONDS, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def health(self) -> dict[str, str]:
        """Return each part's status (`healthy`, `unhealthy` or None as text); empty while nobody answers."""
        try:
            response = self._client.get("/api/v2/monitor/health")
            values = response.json() if response.status_code == httpx.codes.OK else {}
        except (httpx.HTTPError, ValueError):
            return {}
        return {part: str(value.get("status")) for part, value in values.items()}

    def find(self, path: str, **query: str | int) -> Any:
        """GET `/api/v2{path}`; None when there is no such thing."""
        response = self._request("GET", path, params=query)
        return None if response.status_code == httpx.codes.NOT_FOUND else self._body(response)

    def get(self, path: str, **query: str | int) -> Any:
        """GET `/api/v2{path}`; raises `airflow.refused` when there is no such thing."""
        return self._body(self._request("GET", path, params=query))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._body(self._request("POST", path, json=body))

    def patch(self, path: str, body: dict[str, Any]) -> Any:
        return self._body(self._request("PATCH", path, json=body))

    def put(self, path: str) -> Any:
        return self._body(self._request("PUT", path))

    def delete(self, path: str) -> None:
        self._body(self._request("DELETE", path))

    def _request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            if "Authorization" not in self._client.headers:
                self._log_in()
            response = self._client.request(method, f"/api/v2{path}", **arguments)
            if response.status_code == httpx.codes.UNAUTHORIZED:
                self._log_in()
                response = self._client.request(method, f"/api/v2{path}", **arguments)
        except httpx.HTTPError as err:
            raise UnavailableError("airflow.unreachable", f"{method} {self.base_url}/api/v2{path}: {err}", hint="make status") from err
        return response

    def _log_in(self) -> None:
        response = self._client.post("/auth/token", json=self._credentials)
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
