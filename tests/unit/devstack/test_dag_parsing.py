"""The wait for the dag-processor ends after 90 s in which it could have parsed, and after 15 minutes in any case."""

from __future__ import annotations

from typing import cast

import pytest

from devstack.airflow_api import AirflowApi
from devstack.dag_parsing import MAX_SECONDS, PARSE_SECONDS, ParseLimit


class Health:
    """Airflow's health, as a test sets it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.dag_processor = "healthy"

    def health(self) -> dict[str, str]:
        return {"dag_processor": self.dag_processor} if self.dag_processor else {}

    def limit(self) -> ParseLimit:
        return ParseLimit(cast("AirflowApi", self), clock=lambda: self.now)


def test_wait_for_a_healthy_dag_processor_ends_after_its_limit() -> None:
    airflow = Health()
    limit = airflow.limit()
    airflow.now = PARSE_SECONDS
    assert not limit.is_spent()
    airflow.now += 1
    assert limit.is_spent()


@pytest.mark.parametrize("state", ["unhealthy", ""], ids=["stopped", "no answer"])
def test_dag_processor_that_was_away_has_the_whole_time_once_it_is_back(state: str) -> None:
    airflow = Health()
    limit = airflow.limit()
    airflow.dag_processor, airflow.now = state, PARSE_SECONDS + 1
    assert not limit.is_spent()
    airflow.dag_processor, airflow.now = "healthy", 2 * PARSE_SECONDS
    assert not limit.is_spent()
    airflow.now = 2 * PARSE_SECONDS + 2
    assert limit.is_spent()


def test_dag_processor_that_stays_away_ends_the_wait_at_last() -> None:
    airflow = Health()
    limit = airflow.limit()
    airflow.dag_processor = "unhealthy"
    while airflow.now < MAX_SECONDS:
        airflow.now += PARSE_SECONDS / 2
        spent = limit.is_spent()
    assert not spent
    airflow.now += 1
    assert limit.is_spent()
