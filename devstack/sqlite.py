"""How Airflow opens its SQLite database on a laptop; Airflow imports this by name."""

from __future__ import annotations

from typing import Any, Final

CONNECT_ARGS: Final[dict[str, Any]] = {"timeout": 60}
"""Seconds to wait for another component's write. The driver's five are too few for a command that runs while a scheduler is busy."""
