"""XGBoost's parameters."""

from types import SimpleNamespace
from typing import Any

import pytest

from training.models.boosted_trees.module import _parameters
from training.runtime.provenance import CHECKOUT
from training.spec import parse_spec

TEXT = (CHECKOUT / "dags/pipelines/flight_delay.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(("placement", "threads"), [("", 2), ("  placement: {cpus: 5}\n", 5), ("  placement: {cpus: 0.5}\n", 1)])
def test_threads_are_those_of_the_placement_and_two_without_one(placement: str, threads: int) -> None:
    context: Any = SimpleNamespace(spec=parse_spec(TEXT.replace("  early_stopping: 20\n", f"  early_stopping: 20\n{placement}").encode()))
    assert _parameters(context)["nthread"] == threads
