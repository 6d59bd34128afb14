"""An installation with DAGs, runs and decisions."""

from tests.unit.plugins.conftest import airflow_dags, context_of, execute, seeded, settings, shop, store

__all__ = ["airflow_dags", "context_of", "execute", "seeded", "settings", "shop", "store"]
