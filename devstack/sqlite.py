"""How Airflow opens its SQLite database on a laptop; Airflow imports this by name."""

from __future__ import annotations

from typing import Final

from training.contracts import JsonValue

CONNECT_ARGS: Final[dict[str, JsonValue]] = {"timeout": 60}
"""Seconds to wait for another component's write. The driver's five are too few for a command that runs while a scheduler is busy."""
