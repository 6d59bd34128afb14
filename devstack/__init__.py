"""A laptop installation: Airflow, MLflow and what keeps them running; `python -m devstack --help`."""
