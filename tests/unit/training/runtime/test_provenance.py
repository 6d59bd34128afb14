"""What a model says of the libraries that it was trained with."""

from __future__ import annotations

import importlib.metadata

import pytest

from training.runtime import provenance
from training.runtime.provenance import environment

INSTALLED = {"torch": "2.13.0", "numpy": "2.4.0"}


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        ({"xgboost-cpu": "3.2.0"}, {"xgboost-cpu": "3.2.0"}),
        ({"xgboost": "3.2.0"}, {"xgboost": "3.2.0"}),
        ({"xgboost-cpu": "3.2.0", "xgboost": "3.1.0"}, {"xgboost-cpu": "3.2.0"}),
        ({}, {"xgboost-cpu": "absent"}),
    ],
)
def test_environment_names_the_xgboost_that_is_installed(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], expected: dict[str, str]
) -> None:
    def version(name: str) -> str:
        try:
            return {**INSTALLED, **installed}[name]
        except KeyError:
            raise importlib.metadata.PackageNotFoundError(name) from None

    monkeypatch.setattr(provenance.importlib.metadata, "version", version)
    found = environment(("xgboost-cpu",))
    assert {name: found[name] for name in found if name.startswith("xgboost")} == expected
    assert found["torch"] == "2.13.0"
    assert found["mlflow"] == "absent"
