"""A typed client of the REST API: `Client`. It needs no Airflow."""

from nightshift.client.client import Client
from nightshift.client.login import client_of

__all__ = ["Client", "client_of"]
