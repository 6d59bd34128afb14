"""One model's life on a real scheduler: champion, approval, canary, rejection, a poisoned canary, the way back."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from mlflow import MlflowClient

from nightshift.client import client_of
from tests.integration.installation import Installation
from tests.integration.story_pipeline import BAD, GOOD, NEVER, StoryPipeline

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3600)]

MODEL = "story"
SHORT_CANARY = f'for: 1s, support: 200, schedule: "{NEVER}"'
LONGER_CANARY = 'for: 20s, support: 200, schedule: "* * * * *"'


@pytest.fixture(scope="module")
def story(installation: Installation) -> Story:
    return Story(installation, MODEL, approve_own=True)


class Story(StoryPipeline):
    """What a person does with Airflow's page, and sees there."""

    def night(self, days_ago: int, train: dict[str, Any], *, run_id: str) -> dict[str, Any]:
        """Run a night; return promote's scalars."""
        run = self.installation.trigger(MODEL, {"as_of": self.as_of(days_ago), "train": train}, run_id=run_id)
        assert self.installation.wait(MODEL, run) == "success", self.installation.why(MODEL, run)
        return dict(self.installation.result(MODEL, run, "promote").scalars)

    def runs(self, dag_id: str) -> list[str]:
        found = self.installation.api.get(f"/dags/{dag_id}/dagRuns", order_by="run_after")["dag_runs"]
        return [str(run["dag_run_id"]) for run in found]

    def new_run(self, dag_id: str, before: list[str]) -> str:
        """Wait for a run of `dag_id` that an event started."""
        return str(
            self.installation.until(lambda: next((run for run in self.runs(dag_id) if run not in before), None), f"a run of {dag_id}")
        )

    def answer(self, run_id: str, option: str, note: str = "") -> None:
        """Answer a request over REST, as the page of required actions does."""
        self.installation.wait_task(f"{MODEL}.approval", run_id, "ask", "deferred")
        path = f"/dags/{MODEL}.approval/dagRuns/{run_id}/taskInstances/ask/-1/hitlDetails"
        self.installation.api.patch(path, {"chosen_options": [option], "params_input": {"note": note}})

    def looks_until_settled(self) -> list[str]:
        """Wait until the canary is settled; return the runs of its DAG. The DAG is paused, and the scheduler killed, in between."""
        dag_id = f"{MODEL}.canary"
        first = self.new_run(dag_id, [])
        self.ends(dag_id, first)
        assert self.installation.result(dag_id, first, "promote").scalars["decision"] == "waiting"
        assert [run.partition("-")[0] for run in self.runs(dag_id) if run != first] == ["look"]
        # Neither costs the look that waits, whether or not its time has come by now.
        self.installation.api.patch(f"/dags/{dag_id}", {"is_paused": True})
        self.installation.kill("scheduler")
        self.installation.api.patch(f"/dags/{dag_id}", {"is_paused": False})
        return self.settled([first])

    def settled(self, looks: list[str]) -> list[str]:
        """Wait until the canary is settled; return these runs of its DAG and those since, after which none is planned."""
        dag_id = f"{MODEL}.canary"
        while self.installation.ledger.standing(MODEL).canary is not None:
            looks = [*looks, self.new_run(dag_id, looks)]
            self.ends(dag_id, looks[-1])
        assert self.runs(dag_id) == looks
        return looks

    def rolls_back(self, reason: str) -> str:
        """Order the way back as the form of a page does; return the run that carries it out."""
        with client_of(None, self.installation.environment, user="admin") as client:
            order = client.change_stage(MODEL, "1.0.0", "champion", reason=reason)
        assert order.run is not None
        return order.run.removeprefix("rollback:")

    def ends(self, dag_id: str, run_id: str) -> None:
        assert self.installation.wait(dag_id, run_id) == "success", self.installation.why(dag_id, run_id)

    @property
    def seats(self) -> tuple[str | None, str | None]:
        """(champion, canary) by the ledger, which MLflow's aliases repeat."""
        standing = self.installation.ledger.standing(MODEL)
        seats = tuple(None if seat is None else seat.version for seat in (standing.champion, standing.canary))
        aliases = MlflowClient(self.installation.mlflow_uri).get_registered_model(MODEL).aliases
        assert (aliases.get("champion"), aliases.get("canary")) == seats
        return seats  # type: ignore[return-value]

    @property
    def outcomes(self) -> list[tuple[str, str, str]]:
        return [(entry.version, entry.outcome, entry.action) for entry in self.installation.ledger.history(MODEL)]

    def events(self, alias: str) -> list[str]:
        """Return the versions of the events of a model's asset, oldest first."""
        assets = self.installation.api.get("/assets", name_pattern=f"{MODEL}@{alias}")["assets"]
        if not assets:
            return []
        found = self.installation.api.get("/assets/events", asset_id=assets[0]["id"], order_by="timestamp")["asset_events"]
        return [event["extra"]["version"] for event in found]


def test_a_models_life(story: Story) -> None:
    # Night 1: nobody is champion, so the minimum decides alone.
    first = story.night(5, BAD, run_id="night-1")
    assert (first["decision"], first["action"], first["semantic_version"]) == ("accepted", "promoted", "1.0.0")
    assert story.seats == ("1", None)
    assert story.events("champion") == ["1"]

    # No canary: no run of its DAG is there, and none is planned.
    assert story.runs(f"{MODEL}.canary") == []

    # Night 2: better, and a person is asked. The canary is open for longer than its first look, which begins with it.
    story.change("approval: automatic", "approval: required")
    story.change(SHORT_CANARY, LONGER_CANARY)
    second = story.night(4, GOOD, run_id="night-2")
    assert second["decision"] == "needs_approval", second["reasons"]
    assert story.seats == ("1", None)
    asked = story.new_run(f"{MODEL}.approval", [])
    story.answer(asked, "Approve", note="checked with the shop")
    story.ends(f"{MODEL}.approval", asked)
    # ... then it is canary, is judged on the days since, and is champion after its time.
    judged = story.looks_until_settled()
    assert story.outcomes[1:] == [
        ("2", "needs_approval", "recorded"),
        ("2", "approved", "canary"),
        ("2", "accepted", "promoted"),
    ]
    assert story.seats == ("2", None)
    approved = story.installation.ledger.history(MODEL)[2]
    assert approved.decided_by == "admin"
    assert "checked with the shop" in approved.reasons[-1].words

    # Its first look may come before its second is over, and then it waits for the next.
    story.change(LONGER_CANARY, LONGER_CANARY.replace("20s", "1s"))

    # Night 3: worse, and nobody is even asked.
    third = story.night(3, BAD, run_id="night-3")
    assert third["decision"] == "rejected"
    assert story.seats == ("2", None)
    assert story.runs(f"{MODEL}.approval") == [asked]

    # Somebody has the gates ask instead of reject, and approves what should not be: the canary shows it.
    story.change(
        "severity: {naive_baseline: warn}",
        "severity: {naive_baseline: warn, improvement: approve, significance: approve}",
    )
    fourth = story.night(2, {**BAD, "seed": 5}, run_id="night-4")
    assert fourth["decision"] == "needs_approval", fourth["reasons"]
    again = story.new_run(f"{MODEL}.approval", [asked])
    story.answer(again, "Approve")
    story.ends(f"{MODEL}.approval", again)
    story.settled(judged)
    assert story.outcomes[-2:] == [("4", "approved", "canary"), ("4", "rolled_back", "canary_ended")]
    assert story.seats == ("2", None)

    # The way back by hand.
    back = story.rolls_back("complaints from the shop")
    story.ends("rollback", back)
    # Users of other models may read the runs of this DAG.
    assert "complaints" not in json.dumps(story.installation.xcom("rollback", back, "rollback"))
    assert "complaints" not in story.installation.log("rollback", back, "rollback")
    assert story.outcomes[-1] == ("1", "rolled_back", "rolled_back")
    assert story.seats == ("1", None)
    assert story.events("champion") == ["1", "2", "1"]
    assert story.events("canary") == ["2", "4"]

    # A year later: every step, by whom and why; the reports that they rest on; the lives of the versions.
    assert [entry.decided_by for entry in story.installation.ledger.history(MODEL)][-1] == "admin"
    shown = story.installation.command(sys.executable, "-m", "nightshift.console", "show", MODEL)
    for words in ("complaints from the shop", "checked with the shop", "canary", "rejected"):
        assert words in shown
    report = story.installation.links(MODEL, "night-2", "evaluate")["Report"]
    assert report is not None
    page = story.installation.store.reports.find(MODEL, report.rsplit("/", 1)[-1])
    assert page is not None
    assert "needs approval" in page.decode().lower()
    client = MlflowClient(story.installation.mlflow_uri)
    lives = {str(v.version): v.tags["lifecycle"] for v in client.search_model_versions(f"name = '{MODEL}'")}
    assert lives == {"1": "champion", "2": "archived", "3": "candidate", "4": "archived"}


def test_a_canary_of_simulated_nights_is_looked_at_as_of_the_next_one(installation: Installation) -> None:
    life = StoryPipeline(installation, "simulated", approve_own=True)
    life.change("canary: {for: 1s", "canary: {for: 1d")

    def night(days_ago: int, train: dict[str, Any]) -> str:
        return installation.services("run", life.name, "--night", life.as_of(days_ago)[:10], "--conf", json.dumps({"train": train}))

    night(5, BAD)
    night(4, GOOD)
    standing = installation.ledger.standing(life.name)
    assert (standing.champion and standing.champion.version, standing.canary and standing.canary.version) == ("1", "2")
    # By the clock it is canary for seconds; by the nights, for the day that its rules ask for.
    said = night(3, BAD)
    assert "canary    promoted: simulated time: as of " in said
    standing = installation.ledger.standing(life.name)
    assert (standing.champion and standing.champion.version, standing.canary) == ("2", None)
    promoted = installation.ledger.history(life.name)[-1]
    assert (promoted.version, promoted.action, promoted.evidence["simulated"]) == ("2", "promoted", True)
