"""Which rules of the restricted Pod Security profile a pod breaks, and which of ours: a pure function over plain JSON.

After "Pod Security Standards" of the Kubernetes documentation; ours are a read-only root, no token, amounts, and no secrets in plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

VOLUMES = frozenset({"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"})
PROFILES = frozenset({"RuntimeDefault", "Localhost"})
ADDABLE = frozenset({"NET_BIND_SERVICE"})
SECRET = re.compile(r"(?i)PASSWORD|SECRET|TOKEN|ACCESS_KEY|CREDENTIAL")


def violations(pod_spec: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a pod's `spec`, one line per fault; empty for one that may run."""
    return [*_of_pod(pod_spec), *(fault for container in _containers(pod_spec) for fault in _of_container(container, pod_spec))]


def _containers(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*spec.get("containers", []), *spec.get("initContainers", []), *spec.get("ephemeralContainers", [])]


def _of_pod(spec: Mapping[str, Any]) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield f"{name} is set"
    for volume in spec.get("volumes", []):
        kinds = set(volume) - {"name"}
        if not kinds <= VOLUMES:
            yield f"volume {volume['name']} is {', '.join(sorted(kinds - VOLUMES))}"
    if (spec.get("securityContext") or {}).get("sysctls"):
        yield "sysctls are set"
    if spec.get("automountServiceAccountToken") is not False:
        yield "automountServiceAccountToken is not false"


def _of_container(container: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[str]:
    name = container["name"]
    own, pods = container.get("securityContext") or {}, spec.get("securityContext") or {}
    if own.get("privileged"):
        yield f"{name}: privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation is not false"
    if own.get("runAsNonRoot", pods.get("runAsNonRoot")) is not True:
        yield f"{name}: runAsNonRoot is not true"
    if own.get("runAsUser", pods.get("runAsUser")) == 0:
        yield f"{name}: runAsUser is 0"
    if (own.get("seccompProfile") or pods.get("seccompProfile") or {}).get("type") not in PROFILES:
        yield f"{name}: no seccomp profile"
    capabilities = own.get("capabilities") or {}
    if "ALL" not in capabilities.get("drop", []):
        yield f"{name}: capabilities are not dropped"
    if not set(capabilities.get("add", [])) <= ADDABLE:
        yield f"{name}: capabilities are added"
    if own.get("procMount", "Default") != "Default":
        yield f"{name}: procMount"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield f"{name}: hostPort"
    yield from _ours(container, own)


def _ours(container: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    name, resources = container["name"], container.get("resources") or {}
    if own.get("readOnlyRootFilesystem") is not True:
        yield f"{name}: the root is writable"
    for amount in ("cpu", "memory"):
        if amount not in resources.get("requests", {}):
            yield f"{name}: asks for no {amount}"
    if "memory" not in resources.get("limits", {}):
        yield f"{name}: no limit of memory"
    for variable in container.get("env", []):
        if SECRET.search(variable["name"]) and variable.get("value"):
            yield f"{name}: {variable['name']} in plain text"
