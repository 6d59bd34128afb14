"""The checker itself: each rule is broken once."""

import copy
from typing import Any

import pytest

from tests.unit.docker.restricted_profile import violations

GOOD: dict[str, Any] = {
    "automountServiceAccountToken": False,
    "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "c",
            "image": "i",
            "env": [{"name": "PLAIN", "value": "x"}, {"name": "A_TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
            "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
        }
    ],
    "volumes": [{"name": "tmp", "emptyDir": {}}],
}


def test_a_pod_that_keeps_every_rule_has_no_violations() -> None:
    assert violations(GOOD) == []


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("hostNetwork", True, "hostNetwork is set"),
        ("hostPID", True, "hostPID is set"),
        ("hostIPC", True, "hostIPC is set"),
        ("volumes.0", {"name": "tmp", "hostPath": {"path": "/"}}, "volume tmp is hostPath"),
        ("securityContext.sysctls", [{"name": "kernel.msgmax", "value": "1"}], "sysctl kernel.msgmax is not a safe one"),
        ("securityContext.seLinuxOptions", {"type": "spc_t"}, "pod: SELinux type spc_t"),
        ("securityContext.windowsOptions", {"hostProcess": True}, "pod: hostProcess"),
        ("containers.0.securityContext.seLinuxOptions", {"user": "system_u"}, "c: SELinux user or role"),
        ("containers.0.securityContext.appArmorProfile", {"type": "Unconfined"}, "c: no AppArmor profile"),
        ("containers.0.livenessProbe", {"httpGet": {"host": "10.0.0.1", "port": 80}}, "c: a probe or hook names a host"),
        ("containers.0.lifecycle", {"preStop": {"tcpSocket": {"host": "10.0.0.1", "port": 80}}}, "c: a probe or hook names a host"),
        ("automountServiceAccountToken", None, "automountServiceAccountToken is not false"),
        ("containers.0.securityContext.privileged", True, "c: privileged"),
        ("containers.0.securityContext.allowPrivilegeEscalation", None, "c: allowPrivilegeEscalation is not false"),
        ("securityContext.runAsNonRoot", None, "c: runAsNonRoot is not true"),
        ("containers.0.securityContext.runAsNonRoot", False, "c: runAsNonRoot is not true"),
        ("securityContext.runAsUser", 0, "pod: runAsUser is 0"),
        ("containers.0.securityContext.runAsUser", 0, "c: runAsUser is 0"),
        ("securityContext.seccompProfile", None, "c: no seccomp profile"),
        ("containers.0.securityContext.seccompProfile", {"type": "Unconfined"}, "c: no seccomp profile"),
        ("containers.0.securityContext.capabilities", {"drop": ["NET_RAW"]}, "c: capabilities are not dropped"),
        ("containers.0.securityContext.capabilities", {"drop": ["ALL"], "add": ["SYS_ADMIN"]}, "c: capabilities are added"),
        ("containers.0.securityContext.procMount", "Unmasked", "c: procMount"),
        ("containers.0.ports", [{"containerPort": 1, "hostPort": 1}], "c: hostPort"),
        ("containers.0.securityContext.readOnlyRootFilesystem", False, "c: the root is writable"),
        ("containers.0.resources.requests", {"memory": "1Gi"}, "c: asks for no cpu"),
        ("containers.0.resources.limits", {}, "c: no limit of memory"),
        ("containers.0.env", [{"name": "DB_PASSWORD", "value": "x"}], "c: DB_PASSWORD in plain text"),
        ("containers.0.env", [{"name": "AWS_ACCESS_KEY_ID", "value": "x"}], "c: AWS_ACCESS_KEY_ID in plain text"),
        ("containers.0.env", [{"name": "API_KEY", "value": "x"}], "c: API_KEY in plain text"),
    ],
)
def test_each_rule_is_seen_when_it_is_broken(path: str, value: Any, said: str) -> None:
    pod = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    at: Any = pod
    for part in parents:
        at = at[int(part)] if part.isdigit() else at[part]
    at[int(last) if last.isdigit() else last] = value
    assert violations(pod) == [said]


def test_what_a_pod_says_is_judged_even_where_its_container_says_otherwise() -> None:
    pod = copy.deepcopy(GOOD)
    pod["securityContext"] = {"runAsNonRoot": False, "runAsUser": 0, "seccompProfile": {"type": "Unconfined"}}
    pod["containers"][0]["securityContext"] |= {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    assert violations(pod) == ["pod: runAsNonRoot is false", "pod: runAsUser is 0", "pod: no seccomp profile"]


@pytest.mark.parametrize("kind", ["initContainers", "ephemeralContainers"])
def test_other_kinds_of_containers_are_judged_too(kind: str) -> None:
    pod = copy.deepcopy(GOOD)
    pod[kind] = [{**copy.deepcopy(GOOD["containers"][0]), "name": "other"}]
    pod[kind][0]["securityContext"]["privileged"] = True
    assert violations(pod) == ["other: privileged"]


def test_an_annotation_that_switches_apparmor_off_is_seen() -> None:
    annotation = "container.apparmor.security.beta.kubernetes.io/c"
    assert violations(GOOD, {"annotations": {annotation: "runtime/default"}}) == []
    assert violations(GOOD, {"annotations": {annotation: "unconfined"}}) == [f"annotation {annotation} is unconfined"]


@pytest.mark.parametrize("sysctl", ["net.ipv4.tcp_keepalive_time", "net.ipv4.ip_local_port_range"])
def test_what_the_profile_allows_is_no_violation(sysctl: str) -> None:
    pod = copy.deepcopy(GOOD)
    pod["securityContext"]["sysctls"] = [{"name": sysctl, "value": "1"}]
    pod["containers"][0]["securityContext"]["capabilities"]["add"] = ["NET_BIND_SERVICE"]
    pod["containers"][0]["env"].append({"name": "TOKENIZERS_PARALLELISM", "value": "false"})
    assert violations(pod) == []
