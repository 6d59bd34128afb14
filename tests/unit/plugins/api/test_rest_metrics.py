"""Metrics of a training over the REST API: pages and events with the same ids, until the training has ended."""

from __future__ import annotations

import json
import threading
import time
from typing import Any
from urllib.parse import quote

import pytest
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models import DagRun, TaskInstance  # noqa: TID251 - the state that the scheduler writes
from airflow.utils.session import create_session
from sqlalchemy import update

from nightshift.api import event_stream
from nightshift.api.v1 import metrics as routes
from nightshift.queries import metric_feed
from nightshift.settings import Settings
from tests.unit.plugins.seeded_installation import API, DONE, STUDY_DIGEST, STUDY_RUN, Seeded
from training.errors import UnavailableError
from training.store import Bucket
from training.store.metric_journal import JournalWriter, MetricJournal, encode, trial_journal

PATH = f"/training-runs/{quote(f'search_ranking:{DONE}', safe='')}/metrics"
STREAM = {"Accept": "text/event-stream"}


def journal(run_id: str = DONE, pipeline: str = "search_ranking") -> MetricJournal:
    return MetricJournal(Bucket(Settings.from_environment().store_uri), pipeline, run_id)


def write(writer: JournalWriter, steps: range) -> None:
    writer.append([("train_loss", 1.0 / (step + 1), step, 1_770_000_000_000 + step) for step in steps])


def set_state(run_state: str, task_state: str | None) -> None:
    with create_session() as session:
        session.execute(update(DagRun).where(DagRun.run_id == DONE).values(state=run_state))
        session.execute(update(TaskInstance).where(TaskInstance.run_id == DONE, TaskInstance.task_id == "train").values(state=task_state))


def events_of(text: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the points of a stream, whose ids are checked, and the names of other events."""
    points, others = [], []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in fields:
            others.append(fields["event"])
        elif "data" in fields:
            point = json.loads(fields["data"])
            assert fields["id"] == point["id"]
            points.append(point)
    return points, others


def test_a_page_and_a_stream_have_the_same_points_and_go_on_from_the_same_ids(seeded: Seeded) -> None:
    writer = JournalWriter(journal(), "a1")
    write(writer, range(5))
    writer.close()
    # A beginning that was not taken back, inside the merged object.
    assert journal().bucket.create(journal().key(4), encode(2, 4, [{"began": "a2"}]))
    write(JournalWriter(journal(), "a3"), range(3, 8))
    page = seeded.get(PATH).json()
    assert [(point["attempt"], point["step"]) for point in page["items"]] == [(1, s) for s in range(5)] + [(3, s) for s in range(3, 8)]
    assert page["is_complete"]
    assert page["last"] == page["items"][-1]["id"]
    streamed = seeded.get(PATH, headers=STREAM)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.headers["x-accel-buffering"] == "no"
    assert events_of(streamed.text) == (page["items"], ["end"])
    for number, point in enumerate(page["items"], 1):
        assert seeded.get(f"{PATH}?after={point['id']}").json()["items"] == page["items"][number:]
        resumed = seeded.get(PATH, headers={**STREAM, "Last-Event-ID": point["id"]})
        assert events_of(resumed.text) == (page["items"][number:], ["end"])


def test_pages_of_a_limit_have_each_point_once(seeded: Seeded) -> None:
    writer = JournalWriter(journal(), "a1")
    for start in range(0, 30, 3):
        write(writer, range(start, start + 3))
    found, last, complete = [], None, False
    while not complete:
        page = seeded.get(f"{PATH}?limit=7{'' if last is None else f'&after={last}'}").json()
        assert len(page["items"]) <= 7
        found += [point["step"] for point in page["items"]]
        last, complete = page["last"], page["is_complete"]
    assert found == list(range(30))


def test_a_run_that_found_an_earlier_training_shows_its_metrics(seeded: Seeded) -> None:
    other = "manual__2026-02-02T02:00:00+00:00"
    write(JournalWriter(journal(other), "a1"), range(2))
    path = f"/training-runs/{quote(f'search_ranking:{other}', safe='')}/metrics"
    assert [point["step"] for point in seeded.get(path).json()["items"]] == [0, 1]
    assert seeded.get(PATH).json() == {"items": [], "last": None, "is_complete": True}


def test_points_of_a_refit_are_not_those_of_the_training(seeded: Seeded) -> None:
    write(JournalWriter(journal(), "a1"), range(2))
    write(JournalWriter(journal(f"{DONE}~refit"), "a1"), range(5, 8))
    refit = seeded.get(PATH.replace("/metrics", "/refit/metrics")).json()
    assert ([point["step"] for point in refit["items"]], refit["is_complete"]) == ([5, 6, 7], True)
    assert [point["step"] for point in seeded.get(PATH).json()["items"]] == [0, 1]


def test_a_stream_has_points_while_they_are_logged_and_ends_with_the_training(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "HEARTBEAT_SECONDS", 0.2)
    set_state("running", "running")
    writer, answers = JournalWriter(journal(), "a1"), []
    write(writer, range(3))
    assert not seeded.get(PATH).json()["is_complete"]
    reader = threading.Thread(target=lambda: answers.append(seeded.get(PATH, headers=STREAM)))
    reader.start()
    for start in range(3, 30, 3):
        write(writer, range(start, start + 3))
        time.sleep(0.1)
    set_state("running", "up_for_retry")
    write(JournalWriter(journal(), "a2"), range(20, 22))
    time.sleep(1)
    assert reader.is_alive()
    set_state("running", "success")
    reader.join(30)
    points, others = events_of(answers[0].text)
    assert [point["step"] for point in points] == [*range(30), 20, 21]
    assert others == ["end"]
    assert ": heartbeat\n\n" in answers[0].text


def test_a_stream_ends_with_its_token(seeded: Seeded) -> None:
    set_state("running", "running")
    write(JournalWriter(journal(), "a1"), range(3))
    user = SimpleAuthManagerUser(username="ada", role="viewer")
    token = get_auth_manager().generate_jwt(user, expiration_time_in_seconds=2)
    answer = seeded.client.get(API + PATH, headers={**STREAM, "Authorization": f"Bearer {token}"})
    points, others = events_of(answer.text)
    assert (len(points), others) == (3, ["expired"])


def test_a_user_has_at_most_fifty_streams_and_others_are_not_affected(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(event_stream._open, "ada", event_stream.MAX_STREAMS)
    refused = seeded.get(PATH, headers=STREAM)
    assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (429, "streams.limit", "5")
    assert seeded.get(PATH).status_code == 200
    for _ in range(3):
        assert seeded.get(PATH, user="bob", role="user", headers=STREAM).status_code == 200
    assert event_stream._open["bob"] == 0


def test_a_store_that_does_not_answer_is_503_at_first_and_a_pause_of_a_stream(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    write(JournalWriter(journal(), "a1"), range(3))
    places, calls = MetricJournal.places, []

    def away(found: MetricJournal) -> Any:
        calls.append(1)
        if len(calls) in failing:
            raise UnavailableError("storage.unavailable", "no answer")
        return places(found)

    monkeypatch.setattr(MetricJournal, "places", away)
    monkeypatch.setattr(routes, "AWAY_SECONDS", 0.01)
    monkeypatch.setattr(metric_feed, "POLL_SECONDS", 0.0)
    failing = {1}
    assert seeded.get(PATH, headers=STREAM).status_code == 503
    calls.clear()
    failing = {2, 3, 4}
    points, others = events_of(seeded.get(PATH, headers=STREAM).text)
    assert ([point["step"] for point in points], others) == ([0, 1, 2], ["end"])
    assert len(calls) == 5


@pytest.mark.parametrize("after", ["x", "1", "1-", "-1", "1-1e3", "1-٣"])
def test_what_is_no_id_is_refused(seeded: Seeded, after: str) -> None:
    assert seeded.get(PATH, params={"after": after}).status_code == 422


def test_an_id_that_does_not_exist_yet_has_no_points_and_no_error(seeded: Seeded) -> None:
    write(JournalWriter(journal(), "a1"), range(3))
    assert seeded.get(f"{PATH}?after=7-900").json() == {"items": [], "last": "7-900", "is_complete": True}


def test_the_cache_forgets_batches_beyond_its_size(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_feed, "MAX_CACHED_POINTS", 5)
    writer = JournalWriter(journal(), "a1")
    for start in range(0, 40, 2):
        write(writer, range(start, start + 2))
    assert [point["step"] for point in seeded.get(PATH).json()["items"]] == list(range(40))


TRIAL = f"/hpo/studies/{quote(f'search_ranking:{STUDY_RUN}', safe='')}/trials/{{}}/metrics"


def test_each_trial_of_a_study_has_its_own_points_while_it_trains_as_page_and_stream(seeded: Seeded) -> None:
    for slot in (1, 2):
        write(JournalWriter(journal(trial_journal(STUDY_DIGEST, slot)), "a1"), range(slot + 2))
    pages = [seeded.get(TRIAL.format(slot)).json() for slot in range(3)]
    assert [[point["step"] for point in page["items"]] for page in pages] == [[], [0, 1, 2], [0, 1, 2, 3]]
    # Two trials of the seeded study are finished; the third one trains, and its study's run too.
    assert [page["is_complete"] for page in pages] == [True, True, False]
    assert events_of(seeded.get(TRIAL.format(1), headers=STREAM).text) == (pages[1]["items"], ["end"])
    first = pages[1]["items"][0]["id"]
    assert seeded.get(f"{TRIAL.format(1)}?after={first}").json()["items"] == pages[1]["items"][1:]


@pytest.mark.parametrize(("number", "run", "status", "code"), [("3", STUDY_RUN, 404, "trial.unknown"), ("0", "r9", 404, "run.unknown")])
def test_a_trial_that_no_study_has_is_unknown(seeded: Seeded, number: str, run: str, status: int, code: str) -> None:
    answer = seeded.get(TRIAL.format(number).replace(STUDY_RUN, run))
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert seeded.get(TRIAL.format("-1")).status_code == 422
