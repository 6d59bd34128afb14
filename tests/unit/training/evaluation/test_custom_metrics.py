"""Metrics of the spec's own: only of allowed packages, and what they do wrong is told with their name."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from training.errors import DataError, SpecError
from training.evaluation.custom_metrics import load_own_metrics
from training.installation import MODEL_PACKAGES

MODULE = """
import numpy as np

def bias(labels, scores, groups):
    return np.mean(scores - labels)

def fails(labels, scores, groups):
    raise ZeroDivisionError("no clicks")

def speaks(labels, scores, groups):
    return "good"

def endless(labels, scores, groups):
    return float("inf")

NUMBER = 3
"""
ROWS = np.array([0.0, 1]), np.array([0.5, 0.8]), None


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taste_of_tests").mkdir()
    (tmp_path / "taste_of_tests" / "__init__.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "taste_of_tests", raising=False)
    monkeypatch.setenv(MODEL_PACKAGES.name, "taste_of_tests")


def test_function_of_an_allowed_package_is_a_metric() -> None:
    found = load_own_metrics({"bias": "taste_of_tests:bias"})["bias"](*ROWS)
    assert found == pytest.approx(0.15)
    assert type(found) is float


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("os:getcwd", "metric.place"),
        ("taste_of_tests", "metric.place"),
        ("taste_of_tests:absent", "metric.unknown"),
        ("taste_of_tests:NUMBER", "metric.unknown"),
        ("taste_of_tests.absent:bias", "metric.unknown"),
    ],
)
def test_what_is_no_function_of_an_allowed_package_is_refused(place: str, code: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_own_metrics({"mine": place})
    assert caught.value.code == code


@pytest.mark.parametrize(("name", "words"), [("fails", "ZeroDivisionError: no clicks"), ("speaks", "returned 'good', a str")])
def test_failure_and_an_answer_that_is_no_number_are_reported_with_the_metrics_name(name: str, words: str) -> None:
    metric = load_own_metrics({"mine": f"taste_of_tests:{name}"})["mine"]
    with pytest.raises(DataError) as caught:
        metric(*ROWS)
    assert caught.value.code == "metric.failed"
    assert f"the metric mine (taste_of_tests:{name})" in caught.value.message
    assert words in caught.value.message


def test_infinite_answer_is_no_value() -> None:
    assert math.isnan(load_own_metrics({"mine": "taste_of_tests:endless"})["mine"](*ROWS))
