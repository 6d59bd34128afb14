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
        ("securityContext.sysctls", [{"name": "a", "value": "b"}], "sysctls are set"),
        ("automountServiceAccountToken", None, "automountServiceAccountToken is not false"),
        ("containers.0.securityContext.privileged", True, "c: privileged"),
        ("containers.0.securityContext.allowPrivilegeEscalation", None, "c: allowPrivilegeEscalation is not false"),
        ("securityContext.runAsNonRoot", None, "c: runAsNonRoot is not true"),
        ("securityContext.runAsUser", 0, "c: runAsUser is 0"),
        ("securityContext.seccompProfile", {"type": "Unconfined"}, "c: no seccomp profile"),
        ("containers.0.securityContext.capabilities", {"drop": ["NET_RAW"]}, "c: capabilities are not dropped"),
        ("containers.0.securityContext.capabilities", {"drop": ["ALL"], "add": ["SYS_ADMIN"]}, "c: capabilities are added"),
        ("containers.0.securityContext.procMount", "Unmasked", "c: procMount"),
        ("containers.0.ports", [{"containerPort": 1, "hostPort": 1}], "c: hostPort"),
        ("containers.0.securityContext.readOnlyRootFilesystem", False, "c: the root is writable"),
        ("containers.0.resources.requests", {"memory": "1Gi"}, "c: asks for no cpu"),
        ("containers.0.resources.limits", {}, "c: no limit of memory"),
        ("containers.0.env", [{"name": "DB_PASSWORD", "value": "x"}], "c: DB_PASSWORD in plain text"),
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
