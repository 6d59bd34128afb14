"""A candidate that asks for approval, answered on Airflow's own page by the laptop's second user."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import httpx
import pytest

from devstack.airflow_api import AirflowApi
from devstack.environment import APPROVER, USERNAME, airflow_url, credentials
from tests.integration.installation import Installation
from tests.unit.training.pages.report_browser import Browser, BrowserError

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH (Debian's package: chromium)"),
]
ONCE_A_YEAR = "0 2 1 2 *"
"""Its slot is the night that is run; the schedule starts no other one meanwhile."""


def test_make_runs_candidate_is_approved_by_the_second_user_and_not_by_who_started_the_run(
    installation: Installation, tmp_path: Path
) -> None:
    name = installation.add_pipeline("asked", schedule=ONCE_A_YEAR)
    path = installation.dags / "pipelines" / f"{name}.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("approval: automatic", "approval: required"), encoding="utf-8")
    # What `make run` calls: it ends with the page and the login of who may answer.
    text = installation.services("run", name, "--night", "2026-02-01")
    assert "decision  needs approval" in text
    secret = credentials(installation.settings)
    found = re.search(r"^approve   (\S+)\n +login (\S+) / (\S+)$", text, re.MULTILINE)
    assert found is not None, text
    url, user, password = found.groups()
    assert (user, password) == (APPROVER, secret["approver_password"])

    # Who started the run is refused at once, and the question stays.
    run_id = httpx.URL(url).path.split("/runs/")[1].split("/")[0]
    api = AirflowApi(airflow_url(installation.settings), USERNAME, secret["airflow_password"])
    token = httpx.post(f"{api.base_url}/auth/token", json={"username": USERNAME, "password": secret["airflow_password"]}, timeout=60)
    answered = httpx.patch(
        f"{api.base_url}/api/v2/dags/{name}.approval/dagRuns/{run_id}/taskInstances/ask/-1/hitlDetails",
        headers={"Authorization": f"Bearer {token.json()['access_token']}"},
        json={"chosen_options": ["Approve"], "params_input": {}},
        timeout=60,
    )
    assert answered.status_code == 403
    assert len(installation.ledger.open_requests(name)) == 1

    browser = Browser(str(CHROMIUM), tmp_path / "profile")
    try:
        browser.open(url, width=1400)
        await_in(installation, browser, "!!document.querySelector('input[name=username]')")
        for field, value in (("username", user), ("password", password)):
            browser.evaluate(f"document.querySelector('input[name={field}]').focus()")
            browser.call("Input.insertText", text=value)
        browser.press("Enter", 13, "\r")
        await_in(installation, browser, "document.body?.innerText.includes('May answer: approver; not admin, who started the run.')")
        button = "[...document.querySelectorAll('button')].find(e => e.innerText.trim() === 'Approve' && !e.disabled)"
        # Without a note: the form must not ask for one.
        await_in(installation, browser, f"(found => !!found && (found.click(), true))({button})")
        installation.until(lambda: not installation.ledger.open_requests(name), "answer in the ledger", timeout_seconds=180)
        await_in(installation, browser, "document.body?.innerText.includes('from approver')")
    finally:
        browser.close()

    last = installation.ledger.history(name)[-1]
    assert (last.outcome, last.action, last.decided_by) == ("approved", "promoted", APPROVER)
    assert last.reasons[-1].words == f"approved by {APPROVER}"
    # Followed again, the run says how it was answered.
    assert f"approval  approved: approved by {APPROVER}" in installation.services("follow", name, "night-2026-02-01")


def await_in(installation: Installation, browser: Browser, expression: str) -> None:
    def why() -> str:
        return json.dumps(browser.evaluate("document.body?.innerText"))[:2000]

    def look() -> bool:
        try:
            return bool(browser.evaluate(expression))
        except BrowserError:
            # Airflow's page sends its reader on to the login: the next look is at that one.
            return False

    installation.until(look, expression, timeout_seconds=120, why=why)
