"""A double of the part of Kubernetes' API that Nightshift calls, over real HTTP, with faults on demand.

What it does not prove: that a real API server, scheduler, Job controller or kubelet behaves like this. The states that it plays were
recorded from a real cluster (recordings/, by tests/kubernetes/record.py), but when they follow each other here is the test's doing: no
admission, no quota, no RBAC, no node. tests/kubernetes runs the same operators on a real one.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]
CREATED = "2026-02-01T02:00:00Z"
LOST = 0
"""A fault: the request is carried out, and the connection is closed without an answer."""
STALLED = -1
"""A fault: no answer at all until the double is closed."""
CUT = -2
"""A fault: the request is carried out, and the connection is closed in the middle of the answer."""


def pod_status(phase: str, **state: Any) -> Json:
    """Return a pod's status with the state of its container."""
    container = {"name": "stage", "image": "stage:1", "imageID": "", "ready": "running" in state, "restartCount": 0, "state": state}
    return {"phase": phase, "startTime": CREATED, "containerStatuses": [container]}


RUNNING = pod_status("Running", running={"startedAt": CREATED})
SUCCEEDED = pod_status("Succeeded", terminated={"exitCode": 0, "reason": "Completed"})


def failed(exit_code: int, reason: str = "Error") -> Json:
    return pod_status("Failed", terminated={"exitCode": exit_code, "reason": reason})


def evicted() -> Json:
    said = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    return {**failed(143), "conditions": [said]}


class KubernetesApi:
    """The double. `objects` is what is in the cluster, by (plural, name); a test changes it as a controller would."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        self.creates: Counter[tuple[str, str]] = Counter()
        self.deletes: Counter[tuple[str, str]] = Counter()
        self.faults: list[int | None] = []
        """What becomes of each of the next requests: None for nothing, an HTTP status, or one of the faults above."""
        self.is_graceful = False
        """Whether a pod that runs and is deleted stays until `finish_deletions`, as its processes save what they have."""
        self.denied = ""
        self.refused_rights: set[str] = set()
        """`verb resource` that this account may not do, as the cluster answers it when asked."""
        self.api_versions = {"apps/v1", "batch/v1"}
        """Groups of the API, with their version."""
        self.admission: Callable[[Json], str] = lambda made: ""
        """Why an admission rule forbids an object; empty where none does."""
        self.logs: dict[str, bytes] = {}
        self.alive_together = 0
        """Most launches that were in the cluster at once."""
        self.on_create: Callable[[str, Json], None] = lambda plural, made: None
        self.closed = threading.Event()
        self._lock = threading.RLock()
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def kubeconfig(self, path: Path) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "double", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}}],
            "users": [{"name": "airflow", "user": {"token": "t"}}],
            "contexts": [{"name": "double", "context": {"cluster": "double", "user": "airflow"}}],
            "current-context": "double",
        }
        path.write_text(json.dumps(config), encoding="utf-8")
        return path

    def take_fault(self) -> int | None:
        with self._lock:
            return self.faults.pop(0) if self.faults else None

    def names(self, plural: str = "pods") -> list[str]:
        with self._lock:
            return sorted(name for kind, name in self.objects if kind == plural)

    def set_status(self, name: str, status: Json, plural: str = "pods") -> None:
        with self._lock:
            self.objects[plural, name]["status"] = status

    def remove(self, name: str, plural: str = "pods") -> None:
        """What a node's loss, a user or the garbage collector does."""
        with self._lock:
            self.objects.pop((plural, name), None)
            if plural == "jobs":
                for key in [
                    key for key, item in self.objects.items() if item["metadata"].get("labels", {}).get("nightshift.io/launch") == name
                ]:
                    del self.objects[key]

    def finish_deletions(self) -> None:
        """Let the grace period of everything that is being deleted end."""
        with self._lock:
            for plural, name in [key for key, item in self.objects.items() if "deletionTimestamp" in item["metadata"]]:
                self.remove(name, plural)

    def serve(self, method: str, path: str, query: dict[str, list[str]], body: Json | None) -> tuple[int, Any]:
        if path.endswith("/selfsubjectaccessreviews"):
            asked = (body or {})["spec"]["resourceAttributes"]
            right = f"{asked['verb']} {asked['resource']}" + (f"/{asked['subresource']}" if asked["subresource"] else "")
            return 201, {"status": {"allowed": right not in self.refused_rights}}
        if path == "/apis/":
            return 200, {"groups": [_group(version) for version in sorted(self.api_versions)]}
        parts = path.strip("/").split("/")
        at = parts.index("namespaces") + 2
        plural, name = parts[at], (parts[at + 1] if len(parts) > at + 1 else "")
        with self._lock:
            resource = "/".join([plural, *parts[at + 2 :]])
            if self.denied and self.denied == f"{method} {resource}":
                return 403, _status(403, f'{resource} is forbidden: User "airflow" cannot do that')
            if resource == "pods/log":
                return 200, self.logs.get(name, b"")
            if method == "POST":
                if words := self.admission(body or {}):
                    return 403, _status(403, words)
                return (201, body) if "dryRun" in query else self._create(plural, body or {})
            if method == "GET" and not name:
                selector = dict(item.split("=") for item in query.get("labelSelector", [""])[0].split(",") if item)
                found = [item for (kind, _), item in sorted(self.objects.items()) if kind == plural and _matches(item, selector)]
                return 200, {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": found}
            if (plural, name) not in self.objects:
                return 404, _status(404, f'{plural} "{name}" not found')
            found_one = self.objects[plural, name]
            if method == "DELETE":
                self.deletes[plural, name] += 1
                self._delete(plural, name)
            return 200, found_one

    def _delete(self, plural: str, name: str) -> None:
        item = self.objects[plural, name]
        if self.is_graceful and plural == "pods" and item.get("status", {}).get("phase") == "Running":
            item["metadata"]["deletionTimestamp"] = CREATED
        else:
            self.remove(name, plural)

    def _create(self, plural: str, made: Json) -> tuple[int, Any]:
        name = made["metadata"]["name"]
        if (plural, name) in self.objects:
            return 409, _status(409, f'{plural} "{name}" already exists')
        made["metadata"] |= {"uid": f"uid-{name}-{self.creates[plural, name]}", "creationTimestamp": CREATED}
        made.setdefault("status", {"phase": "Pending"} if plural == "pods" else {})
        self.objects[plural, name] = made
        self.creates[plural, name] += 1
        launches = [name for kind, name in self.objects if kind in ("pods", "jobs") and "-member-" not in name]
        self.alive_together = max(self.alive_together, len(launches))
        self.on_create(plural, made)
        return 201, made


class _Handler(BaseHTTPRequestHandler):
    api: KubernetesApi
    protocol_version = "HTTP/1.1"
    # One packet an answer: two would wait for the client's delayed acknowledgement.
    wbufsize = -1

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        fault = self.api.take_fault()
        if fault is not None and fault > 0:
            self._answer(fault, _status(fault, "the server is not well"))
            return
        # Whoever hung up for lack of an answer is not answered later.
        self.close_connection = fault is not None
        if fault == STALLED:
            self.api.closed.wait(60)
            return
        status, answer = self.api.serve(self.command, parts.path, parse_qs(parts.query), body)
        if fault != LOST:
            self._answer(status, answer, cut=fault == CUT)

    def _answer(self, status: int, answer: Any, *, cut: bool = False) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(answer, bytes) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)

    do_GET = do_POST = do_DELETE = _handle

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _status(code: int, message: str) -> Json:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}


def _group(group_version: str) -> Json:
    name, _, version = group_version.rpartition("/")
    served = {"groupVersion": group_version, "version": version}
    return {"name": name, "versions": [served], "preferredVersion": served}


def _matches(item: Json, selector: dict[str, str]) -> bool:
    labels = item["metadata"].get("labels") or {}
    return all(labels.get(name) == value for name, value in selector.items())
