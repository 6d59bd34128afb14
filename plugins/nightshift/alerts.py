"""Who hears of a night: a line in the log, and a JSON POST to the spec's webhook where one is set."""

from __future__ import annotations

import json
import logging
import os
import re
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any, Final, Literal

from airflow.sdk.log import mask_secret

logger = logging.getLogger("nightshift.alerts")

Alert = Callable[[Mapping[str, Any]], None]

TIMEOUT_SECONDS: Final = 10
MAX_REASON_CHARS: Final = 1000
MIN_SECRET_CHARS: Final = 6
MASK: Final = "***"
PLACEHOLDER: Final = re.compile(r"\$\{([A-Z][A-Z0-9_]*_URI)\}")
_SECRET_NAME = re.compile(r"PASSWORD|PASSWD|SECRET|TOKEN|CREDENTIAL|API_KEY|ACCESS_KEY")
_USER_INFO = re.compile(r"(?<=://)[^/\s@]+(?=@)")


def task_failed(webhook: str | None) -> Alert:
    """Return a callback for tasks that failed for good: it says which stage and why. The tasks behind it in the chain say nothing."""

    def alert(context: Mapping[str, Any]) -> None:
        ti: Any = context.get("ti")
        event = {
            **_of_run("failure", context),
            "stage": getattr(ti, "task_id", None),
            "try": getattr(ti, "try_number", None),
            "reason": str(context.get("exception") or context.get("reason") or "the process of the task was lost"),
            "url": getattr(ti, "log_url", None),
        }
        send(event, webhook)

    return alert


def run_succeeded(webhook: str | None) -> Alert:
    """Return a callback for runs that succeeded."""

    def alert(context: Mapping[str, Any]) -> None:
        send({**_of_run("success", context), "reason": "done"}, webhook)

    return alert


def deadline_missed(context: Mapping[str, Any], pipeline: str, deadline: str, webhook: str | None) -> None:
    """Report that a night is not done by its deadline; Airflow's deadline alert calls it by name."""
    run = context.get("dag_run") or {}
    send({"event": "deadline", "pipeline": pipeline, "run": run.get("dag_run_id"), "reason": f"not done by {deadline}"}, webhook)


def send(event: Mapping[str, Any], webhook: str | None) -> None:
    """Log an event, and post it. An alert that cannot be delivered is logged and fails nothing.

    Args:
        webhook: `${NAME_URI}`, as the spec has it: the address itself is a secret of the environment.
    """
    match = PLACEHOLDER.fullmatch(webhook or "")
    name = match[1] if match else ""
    address = os.environ.get(name, "").strip()
    if address:
        mask_secret(address)
    payload = json.dumps({key: masked(value, address) if isinstance(value, str) else value for key, value in event.items()}, sort_keys=True)
    logger.warning("alert: %s", payload)
    if not address:
        return
    if not address.startswith(("http://", "https://")):
        logger.warning("alert not delivered: ${%s} is no http address", name)
        return
    try:
        request = urllib.request.Request(address, payload.encode(), {"Content-Type": "application/json"})  # noqa: S310 - scheme checked
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - as above
            logger.info("alert delivered, status %s", answer.status)
    except (OSError, ValueError, HTTPException) as err:
        # The address is a secret, and errors may repeat it: the variable's name alone is said.
        logger.warning("alert not delivered to ${%s}: %s", name, type(err).__name__)


def masked(text: str, *secrets: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return `text`, cut to 1000 characters, without secrets: those given, the environment's, and who logs in inside a URL."""
    known = [*secrets, *(value for name, value in environ.items() if _SECRET_NAME.search(name.upper()))]
    # The longest first: one secret may be part of another.
    for secret in sorted(filter(lambda value: len(value) >= MIN_SECRET_CHARS, known), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return _USER_INFO.sub(MASK, text)[:MAX_REASON_CHARS]


def _of_run(kind: Literal["failure", "success"], context: Mapping[str, Any]) -> dict[str, Any]:
    run: Any = context.get("dag_run")
    dag: Any = context.get("dag")
    pipeline = getattr(run, "dag_id", None) or getattr(dag, "dag_id", None)
    return {"event": kind, "pipeline": pipeline, "run": getattr(run, "run_id", None) or context.get("run_id")}
