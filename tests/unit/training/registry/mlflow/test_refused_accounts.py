"""An account that MLflow's server refuses: what the user reads."""

from __future__ import annotations

import pytest
import requests
from mlflow.utils.request_utils import augmented_raise_for_status
from mlflow.utils.rest_utils import verify_rest_response

from training.errors import UnavailableError
from training.registry.mlflow.versions import registry_faults


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (401, b"You are not authenticated", "mlflow.denied"),
        (403, b'{"error_code": "PERMISSION_DENIED", "message": "Permission denied"}', "mlflow.denied"),
        (500, b"no room", "mlflow.unavailable"),
    ],
)
def test_an_account_that_mlflow_refuses_is_named_with_its_variables_and_the_answer(status: int, body: bytes, code: str) -> None:
    answer = requests.Response()
    answer.status_code, answer._content = status, body
    for asked in (lambda: verify_rest_response(answer, "/api/2.0/mlflow/runs/get"), lambda: augmented_raise_for_status(answer)):
        with pytest.raises(UnavailableError) as caught, registry_faults():
            asked()  # type: ignore[no-untyped-call]
        assert (caught.value.code, "MLFLOW_TRACKING_PASSWORD" in caught.value.hint) == (code, code == "mlflow.denied")
        assert any(words in caught.value.message for words in ("not authenticated", "Permission denied", "no room"))
