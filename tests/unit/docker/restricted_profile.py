"""Which rules of the restricted Pod Security profile a pod breaks, and which of ours: a pure function over plain JSON.

After "Pod Security Standards" of the Kubernetes documentation; ours are a read-only root, no token, amounts, and no secrets in plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

VOLUMES = frozenset({"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"})
PROFILES = frozenset({"RuntimeDefault", "Localhost"})
ADDABLE = frozenset({"NET_BIND_SERVICE"})
SELINUX_TYPES = frozenset({"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"})
SAFE_SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    }
)
APPARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"
SECRET = re.compile(r"(?i)PASSWORD|PASSWD|SECRET|TOKEN(?!IZER)|CREDENTIAL|(^|_)KEY(_|$)")


def violations(pod_spec: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> list[str]:
    """Return what is wrong with a pod's `spec` and, where given, its `metadata`, one line per fault; empty for one that may run."""
    return [
        *_of_metadata(metadata or {}),
        *_of_pod(pod_spec),
        *(fault for container in _containers(pod_spec) for fault in _of_container(container, pod_spec)),
    ]


def _of_metadata(metadata: Mapping[str, Any]) -> Iterator[str]:
    for name, value in (metadata.get("annotations") or {}).items():
        if name.startswith(APPARMOR_ANNOTATION) and value != "runtime/default" and not value.startswith("localhost/"):
            yield f"annotation {name} is {value}"


def _containers(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [container for kind in ("containers", "initContainers", "ephemeralContainers") for container in spec.get(kind) or []]


def _of_pod(spec: Mapping[str, Any]) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield f"{name} is set"
    for volume in spec.get("volumes") or []:
        kinds = set(volume) - {"name"}
        if not kinds <= VOLUMES:
            yield f"volume {volume['name']} is {', '.join(sorted(kinds - VOLUMES))}"
    if spec.get("automountServiceAccountToken") is not False:
        yield "automountServiceAccountToken is not false"
    yield from _of_pods_context(spec.get("securityContext") or {})


def _of_pods_context(context: Mapping[str, Any]) -> Iterator[str]:
    for sysctl in context.get("sysctls") or []:
        if sysctl["name"] not in SAFE_SYSCTLS:
            yield f"sysctl {sysctl['name']} is not a safe one"
    # What a pod says is judged even where each container says otherwise: a container added later would inherit it.
    if context.get("runAsNonRoot") is False:
        yield "pod: runAsNonRoot is false"
    if context.get("runAsUser") == 0:
        yield "pod: runAsUser is 0"
    if (context.get("seccompProfile") or {}).get("type", "RuntimeDefault") not in PROFILES:
        yield "pod: no seccomp profile"
    yield from _confinement("pod", context)


def _confinement(name: str, context: Mapping[str, Any]) -> Iterator[str]:
    selinux = context.get("seLinuxOptions") or {}
    if selinux.get("type", "") not in SELINUX_TYPES:
        yield f"{name}: SELinux type {selinux['type']}"
    if selinux.get("user") or selinux.get("role"):
        yield f"{name}: SELinux user or role"
    if (context.get("appArmorProfile") or {}).get("type", "RuntimeDefault") not in PROFILES:
        yield f"{name}: no AppArmor profile"
    if (context.get("windowsOptions") or {}).get("hostProcess"):
        yield f"{name}: hostProcess"


def _of_container(container: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[str]:
    name = container["name"]
    own, pods = container.get("securityContext") or {}, spec.get("securityContext") or {}
    if own.get("privileged"):
        yield f"{name}: privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation is not false"
    if own.get("runAsNonRoot", pods.get("runAsNonRoot")) is not True:
        yield f"{name}: runAsNonRoot is not true"
    if own.get("runAsUser") == 0:
        yield f"{name}: runAsUser is 0"
    if (own.get("seccompProfile") or pods.get("seccompProfile") or {}).get("type") not in PROFILES:
        yield f"{name}: no seccomp profile"
    capabilities = own.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or []):
        yield f"{name}: capabilities are not dropped"
    if not set(capabilities.get("add") or []) <= ADDABLE:
        yield f"{name}: capabilities are added"
    if own.get("procMount", "Default") != "Default":
        yield f"{name}: procMount"
    yield from _hosts(name, container)
    yield from _confinement(name, own)
    yield from _ours(container, own)


def _hosts(name: str, container: Mapping[str, Any]) -> Iterator[str]:
    if any(port.get("hostPort") for port in container.get("ports") or []):
        yield f"{name}: hostPort"
    if any(_names_a_host(handler) for handler in _handlers(container)):
        yield f"{name}: a probe or hook names a host"


def _handlers(container: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    hooks = container.get("lifecycle") or {}
    probes = (container.get(kind) for kind in ("livenessProbe", "readinessProbe", "startupProbe"))
    return [handler for handler in (*probes, hooks.get("postStart"), hooks.get("preStop")) if handler]


def _names_a_host(handler: Mapping[str, Any]) -> bool:
    return any((handler.get(kind) or {}).get("host") for kind in ("httpGet", "tcpSocket"))


def _ours(container: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    name, resources = container["name"], container.get("resources") or {}
    if own.get("readOnlyRootFilesystem") is not True:
        yield f"{name}: the root is writable"
    for amount in ("cpu", "memory"):
        if amount not in resources.get("requests", {}):
            yield f"{name}: asks for no {amount}"
    if "memory" not in resources.get("limits", {}):
        yield f"{name}: no limit of memory"
    for variable in container.get("env") or []:
        if SECRET.search(variable["name"]) and variable.get("value"):
            yield f"{name}: {variable['name']} in plain text"
