"""A real HTTP server with the few routes of Airflow that commands call, and faults on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

DROP, HANG, LOSE_ANSWER = "drop", "hang", "lose the answer"
"""Closes the connection; answers nothing until the server closes; does the work and closes the connection."""


class AirflowServer:
    """One DAG, `search_ranking`. `faults` are used up in order, one for each request but logins: a status, or one of the above."""

    def __init__(self) -> None:
        self.faults: list[int | str] = []
        self.login_faults: list[int] = []
        self.requests: list[str] = []
        self.is_paused = True
        self.due: str | None = None
        """Of the DAG's next run by schedule."""
        self.is_stale = False
        self.unknown_for = 0
        """Questions for the DAG until Airflow has read its file for the first time."""
        self.import_errors: list[dict[str, str]] = []
        self.error_of_parsing: dict[str, str] | None = None
        """What the next parsing finds; None: the file loads."""
        self.on_pause: list[bool] = []
        self.runs: dict[str, Any] = {}
        self.run_state = "running"
        self.closing = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self.closing.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        path, _, query = path.removeprefix("/api/v2").partition("?")
        if path == "/dags/search_ranking":
            return self._dag(method, body)
        if path == "/parseDagFile/token" and method == "PUT":
            self.due = None
            self.import_errors = [self.error_of_parsing] if self.error_of_parsing else []
            self.is_stale = bool(self.import_errors)
            return 201, None
        if path == "/importErrors":
            return 200, {"import_errors": self.import_errors}
        if path == "/dags/search_ranking/dagRuns" and method == "POST":
            if body["dag_run_id"] in self.runs:
                return 409, {"detail": "Unique constraint violation"}
            self.runs[body["dag_run_id"]] = body
            return 200, body
        if path == "/dags/search_ranking/dagRuns" and method == "GET":
            found, limit = self._runs(parse_qs(query))
            return 200, {"dag_runs": found[:limit], "total_entries": len(found)}
        if path.startswith("/dags/search_ranking/dagRuns/") and method == "GET":
            run_id, _, rest = path.removeprefix("/dags/search_ranking/dagRuns/").partition("/")
            if run_id in self.runs:
                return 200, {"task_instances": []} if rest == "taskInstances" else {"dag_run_id": run_id, "state": self.run_state}
        return 404, {"detail": "not found"}

    def _runs(self, query: dict[str, list[str]]) -> tuple[list[Any], int]:
        """Return runs in one of two orders, descending by id, or the one that was made last first; and how many a page has."""
        prefix, order, limit = (query.get(name, [""])[0] for name in ("run_id_prefix_pattern", "order_by", "limit"))
        wanted = query.get("state", [])
        newest = [
            run
            for run_id, run in reversed(self.runs.items())
            if run_id.startswith(prefix) and (not wanted or run.get("state", self.run_state) in wanted)
        ]
        found = sorted(newest, key=lambda run: str(run["dag_run_id"]), reverse=True) if order == "-run_id" else newest
        return [{"state": self.run_state, **run} for run in found], int(limit)

    def _dag(self, method: str, body: Any) -> tuple[int, Any]:
        if self.unknown_for:
            self.unknown_for -= 1
            return 404, {"detail": "not found"}
        if method == "PATCH":
            self.is_paused = body["is_paused"]
            self.on_pause.append(self.is_paused)
        return 200, {"is_paused": self.is_paused, "next_dagrun_run_after": self.due, "file_token": "token", "is_stale": self.is_stale}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                if self.path == "/auth/token":
                    status = server.login_faults.pop(0) if server.login_faults else 201
                    self.send(status, {"access_token": "t"})
                    return
                server.requests.append(f"{self.command} {self.path}")
                fault = server.faults.pop(0) if server.faults else None
                if fault in (DROP, HANG):
                    if fault == HANG:
                        server.closing.wait(60)
                    self.close_connection = True
                    self.connection.close()
                    return
                if isinstance(fault, int):
                    self.send(fault, {"detail": "fault"})
                    return
                status, values = server.answer(self.command, self.path, body)
                if fault == LOSE_ANSWER:
                    self.close_connection = True
                    self.connection.close()
                    return
                self.send(status, values)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = handle_any

            def send(self, status: int, values: Any) -> None:
                content = json.dumps(values).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


@contextmanager
def airflow_server() -> Iterator[AirflowServer]:
    server = AirflowServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()
