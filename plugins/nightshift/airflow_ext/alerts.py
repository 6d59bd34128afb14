"""Alerts about runs and decisions: a line in the log, a JSON POST to the spec's webhook, Slack and e-mail, as the spec configures."""

from __future__ import annotations

import base64
import binascii
import hmac
import html
import json
import logging
import os
import time
import urllib.request
import uuid
from collections.abc import Callable, Collection, Mapping
from http.client import HTTPException
from typing import Any, Final, Literal

from airflow.sdk.log import mask_secret, redact  # type: ignore[attr-defined]  # for mypy, `redact` is not exported

from training.contracts import JsonObject
from training.installation import Variable
from training.sanitizing import MASK, for_slack, for_terminal, masked
from training.spec.pipeline_spec import Alerts
from training.spec.uris import webhook_variable

logger = logging.getLogger("nightshift.airflow_ext.alerts")

Event = Mapping[str, object]
"""What happened: `event` (its kind, as `alerts.on` lists them), `pipeline`, `run`, `reason` and more; written as JSON."""
Alert = Callable[[Mapping[str, object]], None]

REGISTRY: Final = "registry"
"""The event that no `alerts.on` leaves out: an alias of MLflow that the ledger did not set."""
TIMEOUT_SECONDS: Final = 10
MAX_REASON_CHARS: Final = 1000
WEBHOOK_SECRET: Final = Variable(
    name="NIGHTSHIFT_WEBHOOK_SECRET",
    meaning="key for the signature of requests to `alerts.webhook`: `whsec_` and base64, or any text (docs/promotion.md)",
)
STANDARD_PREFIX: Final = "whsec_"
"""Of a secret in the form of Standard Webhooks; the rest is the key in base64."""


def task_failed(alerts: Alerts) -> Alert:
    """Return a callback for tasks that failed for good: it says which stage and why. The tasks behind it in the chain say nothing."""

    def alert(context: Mapping[str, object]) -> None:
        ti: Any = context.get("ti")
        event = {
            **_of_run("failure", context),
            "stage": getattr(ti, "task_id", None),
            "try": getattr(ti, "try_number", None),
            "reason": str(context.get("exception") or context.get("reason") or "the process of the task was lost"),
            "url": getattr(ti, "log_url", None),
        }
        announce(event, alerts)

    return alert


def run_succeeded(alerts: Alerts) -> Alert:
    """Return a callback for runs that succeeded."""

    def alert(context: Mapping[str, object]) -> None:
        announce({**_of_run("success", context), "reason": "done"}, alerts)

    return alert


def deadline_missed(context: Mapping[str, object], pipeline: str, deadline: str, alerts: JsonObject) -> None:
    """Report that a run is not done by its deadline; Airflow's deadline alert calls it by name.

    Args:
        alerts: the spec's section, as JSON.
    """
    run = context.get("dag_run")
    run_id = run.get("dag_run_id") if isinstance(run, Mapping) else None
    event = {"event": "deadline", "pipeline": pipeline, "run": run_id, "reason": f"not done by {deadline}"}
    announce(event, Alerts.model_validate(dict(alerts)))


def announce(event: Event, alerts: Alerts, *, unlogged: Collection[str] = ()) -> bool:
    """Log an event, and send it to the spec's channels if they subscribe to it; return whether one took it.

    A failed delivery is logged and fails no task. What was found about MLflow's aliases (`registry`) is sent to every channel.

    Args:
        unlogged: keys that are sent and not logged, where others may read the log.
    """
    if event["event"] not in (*alerts.on, REGISTRY):
        return False
    is_taken = send(event, alerts.webhook, unlogged=unlogged)
    for channel, deliver in (("Slack", _to_slack), ("e-mail", _by_email)):
        try:
            is_taken = deliver(event, alerts) or is_taken
        except Exception as err:
            # Notifiers raise what their libraries raise, and a run is worth more than its alert.
            logger.warning("alert not delivered by %s: %s", channel, type(err).__name__)
    return is_taken


def send(event: Event, webhook: str | None, *, unlogged: Collection[str] = ()) -> bool:
    """Log an event, and post it; return whether it was taken. With `NIGHTSHIFT_WEBHOOK_SECRET` set, it is signed.

    A failed delivery is logged and fails no task.

    Args:
        webhook: `${NAME_URI}`, as in the spec: the address itself is a secret of the environment.
        unlogged: keys that are sent and not logged.
    """
    name = webhook_variable(webhook)
    address = os.environ.get(name, "").strip()
    if address:
        mask_secret(address)
    shown = {key: redacted(value, address) if isinstance(value, str) else value for key, value in event.items()}
    payload = json.dumps(shown, sort_keys=True)
    logger.warning("alert: %s", json.dumps({key: value for key, value in shown.items() if key not in unlogged}, sort_keys=True))
    if not address:
        return False
    if not address.startswith(("http://", "https://")):
        logger.warning("alert not delivered: ${%s} is not an http address", name)
        return False
    try:
        signature = signed(payload.encode(), time.time(), f"msg_{uuid.uuid4().hex}")
    except binascii.Error:
        logger.warning("alert not delivered: the part of %s after %s is not base64", WEBHOOK_SECRET.name, STANDARD_PREFIX)
        return False
    try:
        request = urllib.request.Request(address, payload.encode(), {"Content-Type": "application/json", **signature})  # noqa: S310 - scheme checked
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - as above
            logger.info("alert delivered, status %s", answer.status)
            return True
    except (OSError, ValueError, HTTPException) as err:
        # The address is a secret, and errors may repeat it, so only the name of the variable is logged.
        logger.warning("alert not delivered to ${%s}: %s", name, type(err).__name__)
        return False


def signed(payload: bytes, now: float, message_id: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the headers that authenticate a payload; none if the installation has no secret for it.

    `webhook-id`, `webhook-timestamp` and `webhook-signature` follow Standard Webhooks 1.0.0: `v1,` and the base64 of the HMAC-SHA256 of
    `<id>.<timestamp>.<payload>`. A secret without `whsec_` is the key itself, in UTF-8. Not by the package `standardwebhooks`, which
    decodes a secret that is not base64 without an error, to another key than the receiver's.

    Args:
        now: seconds since 1970.
        message_id: unique for each message.

    Raises:
        binascii.Error: the secret begins with `whsec_`, and the rest is empty or not base64.
    """
    secret = WEBHOOK_SECRET.value(environ)
    if not secret:
        return {}
    timestamp = str(int(now))
    digest = hmac.digest(_signing_key(secret), f"{message_id}.{timestamp}.".encode() + payload, "sha256")
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def _signing_key(secret: str) -> bytes:
    if not secret.startswith(STANDARD_PREFIX):
        return secret.encode()
    encoded = secret.removeprefix(STANDARD_PREFIX)
    if not encoded:
        raise binascii.Error("no key")
    # Receivers' libraries accept a key without padding.
    return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)


def _to_slack(event: Event, alerts: Alerts) -> bool:
    if alerts.slack is None:
        return False
    from airflow.providers.slack.notifications.slack import SlackNotifier

    # `notify` and not a call: a call renders templates, and what a run says of itself is not a template.
    notifier = SlackNotifier(
        slack_conn_id=alerts.slack.connection, channel=alerts.slack.channel, text=for_slack(event_text(event)), unfurl_links=False
    )
    notifier.notify({})  # type: ignore[no-untyped-call]
    return True


def _by_email(event: Event, alerts: Alerts) -> bool:
    if alerts.email is None:
        return False
    from airflow.providers.smtp.notifications.smtp import SmtpNotifier

    body = "<br>".join(html.escape(line) for line in event_text(event).splitlines())
    notifier = SmtpNotifier(to=list(alerts.email.to), subject=headline(event), html_content=body, smtp_conn_id=alerts.email.connection)
    notifier.notify({})
    return True


def headline(event: Event) -> str:
    """Return an event in a line."""
    version = f", version {event['version']} of {event.get('model')}" if event.get("version") else ""
    stage = f", stage {event['stage']}" if event.get("stage") else ""
    return f"Nightshift: {str(event['event']).replace('_', ' ')}, {event.get('pipeline')}{version}{stage}"


def event_text(event: Event) -> str:
    """Return an event as people read it, without secrets."""
    lines = [headline(event), str(event.get("reason") or "")]
    lines += [f"{name}: {event[name]}" for name in ("run", "decided_by", "url", "report") if event.get(name)]
    return "\n".join(redacted(for_terminal(line)) for line in lines if line)


def redacted(text: str, *secrets: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return `text`, at most 1000 characters, without secrets.

    Airflow's redaction removes what Airflow knows in this process: passwords of connections, sensitive variables, what tasks passed to
    `mask_secret`. It knows neither secrets in the environment nor those of URLs and connections, nor `secrets`: `training.sanitizing` does.
    """
    # Airflow replaces secrets in any order, and one may be part of another: it comes last.
    return str(redact(masked(text, *secrets, environ=environ), replacement=MASK))[:MAX_REASON_CHARS]


def _of_run(kind: Literal["failure", "success"], context: Mapping[str, object]) -> Event:
    run: Any = context.get("dag_run")
    dag: Any = context.get("dag")
    pipeline = getattr(run, "dag_id", None) or getattr(dag, "dag_id", None)
    return {"event": kind, "pipeline": pipeline, "run": getattr(run, "run_id", None) or context.get("run_id")}
