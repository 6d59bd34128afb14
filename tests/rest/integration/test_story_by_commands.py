"""The story of a model (champion, approval, canary, rejection, the way back) told through the command line alone, and the API alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from nightshift.client import Client, client_of
from tests.integration.installation import ROOT, RUN_SECONDS, Installation
from tests.integration.story_pipeline import BAD, GOOD, NEVER, StoryPipeline
from training.errors import DeniedError

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3600)]

APPROVER = "approver"


class ByCommands:
    """Tells the story with `nightshift …` in processes of their own."""

    def __init__(self, installation: Installation, name: str) -> None:
        self._name = name
        self._environment = installation.environment

    def night(self, as_of: str, train: dict[str, Any]) -> str:
        """Run a night; return its decision."""
        settings = [f"--set=train.{key}={value}" for key, value in train.items()]
        run = self._json("runs", "start", self._name, "--as-of", as_of, *settings, "--wait")
        assert run["state"] == "success", self._said("logs", run["id"])
        (promote,) = (stage for stage in run["stages"] if stage["name"] == "promote")
        # What a person would look at.
        assert self._name in self._said("status", run["id"])
        return str(promote["scalars"]["decision"])

    def champion(self) -> str:
        return str(self._json("show", self._name)[self._name]["standing"]["champion"]["version"])

    def outcomes(self) -> list[tuple[str, str, str]]:
        return [(each["version"], each["outcome"], each["decided_by"]) for each in self._json("show", self._name)[self._name]["decisions"]]

    def approve(self, version: str, user: str, note: str) -> str:
        """Return `approved`, `refused` (the user may not), or nothing while the question is not asked yet."""
        done = self._run("approve", self._name, version, "--note", note, "--wait", "--user", user)
        if done.returncode == 74 and "[approval.not_asked]" in done.stderr:
            return ""
        assert done.returncode in (0, 77), done.stderr
        assert (done.returncode == 77) == ("[approval.self]" in done.stderr)
        return "refused" if done.returncode else "approved"

    def roll_back(self, reason: str) -> None:
        assert "champion is version" in self._said("rollback", self._name, "--reason", reason, "--yes")

    def _json(self, *arguments: str) -> Any:
        return json.loads(self._said(*arguments, "--json"))

    def _said(self, *arguments: str) -> str:
        done = self._run(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "nightshift.console", *arguments]
        return subprocess.run(command, env=self._environment, cwd=ROOT, capture_output=True, text=True, check=False)


class ByApi:
    """Tells the story with requests to the REST API."""

    def __init__(self, installation: Installation, name: str) -> None:
        self._name = name
        self._environment = installation.environment

    def night(self, as_of: str, train: dict[str, Any]) -> str:
        with self._client() as client:
            run = client.wait(client.start_run(self._name, as_of=as_of, overrides={"train": train}).id)
        assert run.state == "success", run
        return str(next(stage for stage in run.stages if stage.name == "promote").scalars["decision"])

    def champion(self) -> str:
        with self._client() as client:
            holder = client.model(self._name).champion
        return "" if holder is None else holder.version

    def outcomes(self) -> list[tuple[str, str, str]]:
        with self._client() as client:
            return [(each.version, each.outcome, each.decided_by) for each in client.decisions(self._name)][::-1]

    def approve(self, version: str, user: str, note: str) -> str:
        with self._client(user) as client:
            try:
                client.answer(self._name, version, "approve", note=note)
            except DeniedError as err:
                if err.code == "approval.self":
                    return "refused"
                raise
        return "approved"

    def roll_back(self, reason: str) -> None:
        with self._client() as client:
            earlier = next(each for each in client.decisions(self._name) if each.action == "promoted" and each.version != self.champion())
            order = client.change_stage(self._name, earlier.semantic_version, "champion", reason=reason)
            assert not order.is_done

    def _client(self, user: str = "admin") -> Client:
        return client_of(None, self._environment, user=user)


@pytest.mark.parametrize("teller", [ByCommands, ByApi])
def test_a_models_life(installation: Installation, teller: Callable[[Installation, str], Any]) -> None:
    name = f"story_{teller.__name__.lower()}"
    pipeline = StoryPipeline(installation, name, approve_own=False)
    # The first look comes within seconds of the approval, perhaps before the canary's time is over; another follows within a minute.
    pipeline.change(NEVER, "* * * * *")
    tell = teller(installation, name)
    # Airflow finds the file, and a person switches it on.
    installation.unpause(name)

    # Night 1: nobody is champion. Night 2: better, and a person is asked, who is not the one that started the run.
    assert tell.night(pipeline.as_of(5), BAD) == "accepted"
    assert tell.champion() == "1"
    pipeline.change("approval: automatic", "approval: required")
    assert tell.night(pipeline.as_of(4), GOOD) == "needs_approval"
    assert installation.until(lambda: tell.approve("2", "admin", "my own"), "the question", timeout_seconds=300) == "refused"
    assert tell.champion() == "1"
    assert tell.approve("2", APPROVER, "seen with Eve") == "approved"

    # It is canary, is judged on the days since, and is champion.
    looks = partial(installation.why_each, f"{name}.canary")
    installation.until(lambda: tell.champion() == "2" or None, "the canary's promotion", timeout_seconds=RUN_SECONDS, why=looks)
    asked, approved, judged = tell.outcomes()[1:]
    assert (asked[:2], approved, judged[:2]) == (("2", "needs_approval"), ("2", "approved", APPROVER), ("2", "accepted"))

    # Night 3: worse, and nobody is even asked.
    assert tell.night(pipeline.as_of(3), BAD) == "rejected"
    assert tell.champion() == "2"

    # The way back.
    tell.roll_back("complaints from the shop")
    rollbacks = partial(installation.why_each, "rollback")
    installation.until(lambda: tell.champion() == "1" or None, "the rollback", timeout_seconds=RUN_SECONDS, why=rollbacks)
    assert tell.outcomes()[-1][:2] == ("1", "rolled_back")
