"""What a request that the API server forbids means: a missing right, an admission rule, or a quota that is used up."""

from __future__ import annotations

import json

import pytest

from nightshift.execution.kubernetes.client import fault
from training.contracts import ExitCode

ACCOUNT = "system:serviceaccount:airflow:airflow-scheduler"


@pytest.mark.parametrize(
    ("status", "words", "code", "hint"),
    [
        (403, f'pods is forbidden: User "{ACCOUNT}" cannot create resource "pods" in API group ""', "kubernetes.denied", "the Role"),
        (401, "Unauthorized", "kubernetes.denied", "the Role"),
        (403, 'pods "p" is forbidden: no PriorityClass with name nightly was found', "kubernetes.refused", "what the message names"),
        (403, 'pods "p" is forbidden: error looking up service account n/s: serviceaccount "s" not found', "kubernetes.refused", "make"),
        (403, 'pods "p" is forbidden: maximum memory usage per Container is 4Ti, but limit is 8Ti', "kubernetes.refused", "correct it"),
        (403, 'pods "p" is forbidden: exceeded quota: stages, requested: pods=1, used: pods=500', "kubernetes.quota", "quota.yaml"),
    ],
)
def test_request_that_is_forbidden_is_blamed_on_what_forbids_it(status: int, words: str, code: str, hint: str) -> None:
    body = json.dumps({"kind": "Status", "code": status, "message": words})
    found = fault(status, body, verb="create pod", name="p", namespace="n")
    assert (found.code, words in found.message, hint in found.hint) == (code, True, True)


def test_quota_that_is_used_up_lets_the_task_try_again() -> None:
    found = fault(403, "exceeded quota: stages", verb="create pod", name="p", namespace="n")
    assert found.exit_code == ExitCode.UNAVAILABLE
