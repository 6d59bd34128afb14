"""Who hears of a night: a line in the log, and a JSON POST to the spec's webhook where one is set."""

from __future__ import annotations

import json
import logging
import os
import re
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final

logger = logging.getLogger("nightshift.alerts")

TIMEOUT_SECONDS: Final = 10
PLACEHOLDER: Final = re.compile(r"\$\{([A-Z][A-Z0-9_]*_URI)\}")


def run_alert(kind: str, webhook: str | None) -> Callable[[Mapping[str, Any]], None]:
    """Return a DAG callback that reports `kind` (`failure`, `success`)."""

    def alert(context: Mapping[str, Any]) -> None:
        run = context.get("dag_run")
        send(
            {
                "event": kind,
                "pipeline": getattr(run, "dag_id", None),
                "run": getattr(run, "run_id", None),
                "reason": str(context.get("reason") or context.get("exception") or "")[:1000],
            },
            webhook,
        )

    return alert


def deadline_missed(context: Mapping[str, Any], pipeline: str, deadline: str, webhook: str | None) -> None:
    """Report that a night is not done by its deadline; called by Airflow's deadline alert."""
    run = context.get("dag_run") or {}
    send({"event": "deadline", "pipeline": pipeline, "run": run.get("dag_run_id"), "reason": f"not done by {deadline}"}, webhook)


def send(event: Mapping[str, Any], webhook: str | None) -> None:
    """Log an event, and post it. An alert that cannot be delivered is logged and fails nothing."""
    logger.warning("alert: %s", json.dumps(event, sort_keys=True))
    match = PLACEHOLDER.fullmatch(webhook or "")
    address = os.environ.get(match[1]) if match else None
    if not address or not address.startswith(("http://", "https://")):
        return
    request = urllib.request.Request(address, json.dumps(event).encode(), {"Content-Type": "application/json"})  # noqa: S310 - scheme checked
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - as above
            logger.info("alert delivered, status %s", answer.status)
    except OSError as err:
        # The address is a secret: its name alone is said.
        logger.warning("alert not delivered to ${%s}: %s", match[1] if match else "", type(err).__name__)
