"""Airflow's settings and fixtures of the unit tests."""

from tests.unit.conftest import airflow_database, installation

__all__ = ["airflow_database", "installation"]
