"""Alerts: what is said, where it goes, and what never leaves."""

import base64
import binascii
import hmac
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.slack.notifications.slack import SlackNotifier
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk.log import mask_secret, redact

from nightshift.airflow_ext.alerts import announce, deadline_missed, event_text, redacted, run_succeeded, send, signed, task_failed
from training.spec.pipeline_spec import Alerts, Email, Slack

CONTEXT = {
    "dag_run": SimpleNamespace(dag_id="search_ranking", run_id="night-2026-02-01"),
    "ti": SimpleNamespace(task_id="validate", try_number=1, log_url="http://airflow.test:8080/dags/search_ranking"),
    "exception": RuntimeError("[checks.failed] volume fell by 60 %"),
}

TOLD = Alerts(webhook="${ALERTS_URI}")


@pytest.fixture
def headers() -> list[dict[str, str]]:
    """The headers of each request to the webhook, names in lower case."""
    return []


@pytest.fixture
def posted(headers: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """The body of each request to the webhook; ALERTS_URI is its address."""
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            headers.append({name.lower(): value for name, value in self.headers.items()})
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("ALERTS_URI", f"http://127.0.0.1:{server.server_port}/hook-of-ours")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield received
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_failure_says_which_stage_and_why(posted: list[dict[str, Any]]) -> None:
    task_failed(TOLD)(CONTEXT)
    assert posted == [
        {
            "event": "failure",
            "pipeline": "search_ranking",
            "run": "night-2026-02-01",
            "stage": "validate",
            "try": 1,
            "reason": "[checks.failed] volume fell by 60 %",
            "url": "http://airflow.test:8080/dags/search_ranking",
        }
    ]


def test_success_and_deadline_are_alerted(posted: list[dict[str, Any]]) -> None:
    run_succeeded(TOLD.model_copy(update={"on": ("success",)}))({"dag": SimpleNamespace(dag_id="search_ranking"), "run_id": "r1"})
    deadline_missed({"dag_run": {"dag_run_id": "r1"}}, pipeline="search_ranking", deadline="07:00 UTC", alerts=TOLD.model_dump(mode="json"))
    assert posted == [
        {"event": "success", "pipeline": "search_ranking", "run": "r1", "reason": "done"},
        {"event": "deadline", "pipeline": "search_ranking", "run": "r1", "reason": "not done by 07:00 UTC"},
    ]


def test_without_a_webhook_the_alert_is_in_the_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("ALERTS_URI", raising=False)
    with caplog.at_level(logging.INFO, "nightshift.airflow_ext.alerts"):
        task_failed(TOLD)(CONTEXT)
        task_failed(Alerts())(CONTEXT)
    assert len(caplog.messages) == 2
    assert all("volume fell by 60 %" in message for message in caplog.messages)


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/secret-path", "file:///etc/passwd", "http://[broken/secret-path"])
def test_what_cannot_be_delivered_fails_nothing_and_names_no_address(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ALERTS_URI", address)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with caplog.at_level(logging.INFO, "nightshift.airflow_ext.alerts"):
        send({"event": "failure", "reason": f"could not read {address}"}, "${ALERTS_URI}")
    assert "not delivered" in caplog.messages[-1]
    assert "${ALERTS_URI}" in caplog.messages[-1]
    assert "secret-path" not in caplog.text
    assert "passwd" not in caplog.text


def test_secrets_of_the_environment_of_urls_and_of_the_caller_are_redacted() -> None:
    environ = {"AWS_SECRET_ACCESS_KEY": "abcdef123", "SHOP_TOKEN": "short", "HOME": "/home/ada"}
    text = redacted("abcdef123 at s3://ada:pass@bucket/x, short, /home/ada, hook", "hook", environ=environ)
    assert text == "*** at s3://***@bucket/x, short, /home/ada, hook"
    assert redacted("the hook-of-ours", "hook-of-ours", environ={}) == "the ***"
    assert len(redacted("x" * 5000, environ={})) == 1000


def test_secret_that_airflow_knows_is_absent_from_webhook_log_and_message(
    posted: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    mask_secret("pw-of-a-connection-7f3a")
    event = {"event": "failure", "pipeline": "p", "reason": "login with pw-of-a-connection-7f3a failed"}
    send(event, "${ALERTS_URI}")
    assert posted == [{"event": "failure", "pipeline": "p", "reason": "login with *** failed"}]
    assert "7f3a" not in caplog.text
    assert event_text(event) == "Nightshift: failure, p\nlogin with *** failed"


def test_airflow_alone_keeps_secrets_of_the_environment_and_passwords_in_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "swordfish-4711")
    text = "swordfish-4711 at postgresql://ada:swordfish-4712@db/x"
    assert redact(text) == text
    assert redacted(text) == "*** at postgresql://***@db/x"


def test_secret_that_is_the_beginning_of_another_leaves_no_rest_of_it() -> None:
    environ = {"A_TOKEN": "abcdef", "B_TOKEN": "abcdef-ghijkl", "C_TOKEN": "ghijkl"}
    assert redacted("abcdef-ghijkl, abcdef", environ=environ) == "***, ***"


def test_event_that_is_not_configured_is_not_sent(posted: list[dict[str, Any]]) -> None:
    announce({"event": "promoted", "pipeline": "p"}, Alerts(on=("failure",), webhook="${ALERTS_URI}"))
    assert posted == []


def test_signature_is_the_one_of_the_published_vector_of_standard_webhooks() -> None:
    environ = {"NIGHTSHIFT_WEBHOOK_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
    headers = signed(b'{"test": 2432232314}', 1_614_265_330.7, "msg_p5jXN8AQM9LWM0D4loKWxJek", environ)
    assert headers["webhook-id"] == "msg_p5jXN8AQM9LWM0D4loKWxJek"
    assert headers["webhook-timestamp"] == "1614265330"
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("field", ["id", "timestamp", "payload", "secret"])
def test_signature_changes_with_id_time_body_and_secret(field: str) -> None:
    def signature(payload: bytes = b"{}", now: float = 1.0, message_id: str = "msg_1", key: str = "of both sides") -> str:
        return signed(payload, now, message_id, {"NIGHTSHIFT_WEBHOOK_SECRET": key})["webhook-signature"]

    changed = {
        "id": signature(message_id="msg_2"),
        "timestamp": signature(now=2.0),
        "payload": signature(b"{ }"),
        "secret": signature(key="of one side"),
    }
    assert changed[field] != signature()


def test_secret_that_is_any_text_is_the_key_and_signs_as_its_base64_does() -> None:
    encoded = base64.b64encode(b"of both sides").decode()
    plain, padded, bare = (
        signed(b"{}", 1.0, "msg_1", {"NIGHTSHIFT_WEBHOOK_SECRET": secret})["webhook-signature"]
        for secret in ("of both sides", f"whsec_{encoded}", f"whsec_{encoded.rstrip('=')}")
    )
    assert plain == padded == bare


def test_nothing_is_signed_without_a_secret() -> None:
    assert signed(b"{}", 1.0, "msg_1", {}) == {}


def test_receiver_can_verify_what_is_posted_and_each_message_has_its_own_id(
    posted: list[dict[str, Any]], headers: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_WEBHOOK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    for _ in range(2):
        send({"event": "success", "pipeline": "p"}, "${ALERTS_URI}")
    for body, found in zip(posted, headers, strict=True):
        content = f"{found['webhook-id']}.{found['webhook-timestamp']}.{json.dumps(body)}".encode()
        assert found["webhook-signature"] == "v1," + base64.b64encode(hmac.digest(key, content, "sha256")).decode()
    assert headers[0]["webhook-id"] != headers[1]["webhook-id"]


@pytest.mark.parametrize("secret", ["whsec_", "whsec_not base64!", "whsec_abcde"])
def test_malformed_standard_secret_sends_nothing_and_names_the_variable(
    secret: str, posted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_WEBHOOK_SECRET", secret)
    send({"event": "success", "pipeline": "p"}, "${ALERTS_URI}")
    assert posted == []
    assert "alert not delivered: the part of NIGHTSHIFT_WEBHOOK_SECRET after whsec_ is not base64" in caplog.text
    with pytest.raises(binascii.Error):
        signed(b"{}", 1.0, "msg_1", {"NIGHTSHIFT_WEBHOOK_SECRET": secret})


def test_slack_and_mail_get_the_event_in_words_and_not_as_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[dict[str, Any]] = []

    def slack_of(self: SlackNotifier, context: object) -> None:
        called.append({"text": self.text, "channel": self.channel, "connection": self.slack_conn_id})

    def mail_of(self: SmtpNotifier, context: object) -> None:
        called.append({"to": self.to, "subject": self.subject, "html": self.html_content})

    monkeypatch.setattr(SlackNotifier, "notify", slack_of)
    monkeypatch.setattr(SmtpNotifier, "notify", mail_of)
    alerts = Alerts(slack=Slack(channel="#models"), email=Email(to=("a@b.test",)))
    announce({"event": "rejected", "pipeline": "p", "model": "m", "version": "1.0.1", "reason": "{{ 7 * 7 }} <b>"}, alerts)
    slack, mail = called
    assert slack == {
        "text": "Nightshift: rejected, p, version 1.0.1 of m\n{{ 7 * 7 }} &lt;b&gt;",
        "channel": "#models",
        "connection": "slack_default",
    }
    assert mail == {
        "to": ["a@b.test"],
        "subject": "Nightshift: rejected, p, version 1.0.1 of m",
        "html": "Nightshift: rejected, p, version 1.0.1 of m<br>{{ 7 * 7 }} &lt;b&gt;",
    }


def test_a_channel_that_fails_is_logged_without_what_it_said_and_the_next_one_is_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def fails(self: SlackNotifier, context: object) -> None:
        raise RuntimeError("token xoxb-secret is wrong")

    monkeypatch.setattr(SlackNotifier, "notify", fails)
    monkeypatch.setattr(SmtpNotifier, "notify", lambda self, context: told.append(self.subject))
    announce({"event": "promoted", "pipeline": "p"}, Alerts(slack=Slack(channel="#models"), email=Email(to=("a@b.test",))))
    assert told == ["Nightshift: promoted, p"]
    assert "alert not delivered by Slack: RuntimeError" in caplog.text
    assert "xoxb" not in caplog.text
