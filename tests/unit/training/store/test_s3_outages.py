"""The store on S3 that is away, refuses, or is not the one that was meant; and the lease whose last entry was applied before."""

import random
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit.training.store.s3_proxy import FaultProxy, answers
from training.errors import DataError, DeniedError, LeaseLostError, UnavailableError
from training.sources.listing import list_source
from training.store import Bucket, Store, bucket
from training.store import open_bucket as opening
from training.store.leases import COMMIT, Lease

KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests"}


def outage_after_the_write(proxy: FaultProxy) -> Callable[[str, str], bool]:
    """Carry out the next PUT, lose its answer, and answer nothing from then on."""

    def lose(method: str, path: str) -> bool:
        proxy.down = proxy.down or method == "PUT"
        return proxy.down

    return lose


def test_a_storage_that_is_down_is_unavailable_and_named(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MAX_RETRIES", 2)
    store = Store("s3://nightshift/down")
    proxy.down = True
    with pytest.raises(UnavailableError, match=r"could not read s3://nightshift/down/x: .*127.0.0.1") as caught:
        store.bucket.get("x")
    assert caught.value.code == "storage.unavailable"


def test_a_bucket_in_another_region_is_a_fault_that_says_what_to_set(s3_store: Store, proxy: FaultProxy) -> None:
    for answer in ((400, "AuthorizationHeaderMalformed"), (301, "PermanentRedirect")):
        proxy.answer = answers(then=answer, method="GET")
        with pytest.raises(UnavailableError) as caught:
            s3_store.bucket.get("x")
        assert "AWS_REGION" in caught.value.hint


def test_a_storage_that_is_away_for_two_minutes_costs_nothing_and_fails_within_seven(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(opening, "from_url", lambda uri, **options: asked.append(options["retry_config"]))
    opening.open_bucket("s3://b/p", KEYS)
    retries, chance = asked[0], random.Random(7)  # noqa: S311 - the same draws in every run
    first, longest, growth = (retries["backoff"][name] for name in ("init_backoff", "max_backoff", "base"))

    def total() -> float:
        waits = [first.total_seconds()]
        for _ in range(retries["max_retries"]):
            waits.append(min(longest.total_seconds(), chance.uniform(waits[0], waits[-1] * growth)))
        return sum(waits[1:])

    assert min(total() for _ in range(20)) > retries["retry_timeout"].total_seconds(), "time decides, not the number of retries"
    assert retries["retry_timeout"] > timedelta(minutes=2) + longest
    assert bucket.CREATE_SECONDS > 2 * (opening.READ_TIMEOUT + bucket.CREATE_ATTEMPTS * timedelta(seconds=0.2)).total_seconds()
    assert retries["retry_timeout"] + opening.READ_TIMEOUT + longest + timedelta(seconds=bucket.CREATE_SECONDS) < timedelta(minutes=7)


@pytest.mark.slow
def test_a_storage_that_refuses_sixty_times_in_a_row_and_comes_back_costs_nothing(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "LONGEST_WAIT", timedelta(milliseconds=20))
    store = Store("s3://nightshift/refuses-sixty-times")
    proxy.answer = answers(*[(503, "SlowDown")] * 60)
    assert store.ref("r").move({"writer": "me"}, expected=0)
    proxy.answer = answers(*[(503, "SlowDown")] * 60, method="GET")
    head = store.ref("r").read()
    assert head is not None
    assert head.value == {"writer": "me"}


@pytest.mark.parametrize("then", ["another entry", "the same entry", "a check"])
def test_a_lease_knows_its_own_record_that_was_applied_before_an_outage(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    monkeypatch.setattr(opening, "MAX_RETRIES", 1)
    monkeypatch.setattr(bucket, "CREATE_ATTEMPTS", 2)
    store = Store("s3://nightshift/applied-" + then.replace(" ", "-"))
    work_folder = store.work_folder("p", "train", "f" * 64)
    lease = Lease.acquire(work_folder, owner="a/1/train", attempt_id="1")
    proxy.lose_answer = outage_after_the_write(proxy)
    with pytest.raises(UnavailableError):
        lease.commit("checkpoint", {"step": 1})
    proxy.down, proxy.lose_answer = False, lambda method, path: False
    if then == "a check":
        lease.check()
    lease.commit("checkpoint", {"step": 1 if then == "the same entry" else 2})
    lease.commit(COMMIT, {})
    entries = [(entry.value["kind"], entry.value.get("payload", {}).get("step")) for entry in work_folder.chain().history()]
    second = [] if then == "the same entry" else [("checkpoint", 2)]
    assert entries == [("lease", None), ("checkpoint", 1), *second, (COMMIT, None)]


def test_a_lease_that_was_taken_over_after_its_own_applied_record_is_lost(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MAX_RETRIES", 1)
    monkeypatch.setattr(bucket, "CREATE_ATTEMPTS", 2)
    store = Store("s3://nightshift/applied-and-taken-over")
    work_folder = store.work_folder("p", "train", "f" * 64)
    first = Lease.acquire(work_folder, owner="a/1/train", attempt_id="1")
    proxy.lose_answer = outage_after_the_write(proxy)
    with pytest.raises(UnavailableError):
        first.commit("checkpoint", {"step": 1})
    proxy.down, proxy.lose_answer = False, lambda method, path: False
    second = Lease.acquire(work_folder, owner="a/1/train", attempt_id="2")
    for call in (first.check, partial(first.commit, "checkpoint", {"step": 2})):
        with pytest.raises(LeaseLostError, match="attempt 2"):
            call()
    second.commit("checkpoint", {"step": 3})


def test_a_storage_without_a_listening_server_is_unavailable(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MAX_RETRIES", 2)
    store = Store("s3://nightshift/down")
    proxy.close()
    with pytest.raises(UnavailableError, match=r"could not create s3://nightshift/down/x"):
        store.bucket.create("x", b"1")


def test_a_storage_that_refuses_without_end_is_given_up_after_the_retry_timeout(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MAX_RETRIES", 10**6)
    monkeypatch.setattr(opening, "LONGEST_WAIT", timedelta(milliseconds=50))
    monkeypatch.setattr(bucket, "open_bucket", partial(opening.open_bucket, retry_timeout=timedelta(seconds=0.5)))
    proxy.slow_down_share = 1.0
    with pytest.raises(UnavailableError, match="503 Service Unavailable: SlowDown: as the test says") as caught:
        Store("s3://nightshift/busy").bucket.get("x")
    assert caught.value.code == "storage.unavailable"
    assert proxy.num_seen("GET") > 3, "it was asked again"


@pytest.mark.parametrize(
    ("method", "call", "said"),
    [
        ("GET", lambda bucket: bucket.find("x"), "not allowed to read"),
        ("GET", lambda bucket: bucket.list("x"), "not allowed to list"),
        ("PUT", lambda bucket: bucket.put("x", b"1"), "not allowed to write"),
        ("PUT", lambda bucket: bucket.create("x", b"1"), "not allowed to create"),
    ],
    ids=["read", "list", "write", "create"],
)
def test_a_right_that_is_missing_is_denied_at_once_with_what_the_storage_says(
    s3_store: Store, proxy: FaultProxy, method: str, call: Callable[[Bucket], object], said: str
) -> None:
    proxy.answer = answers(method=method, then=(403, "AccessDenied"))
    with pytest.raises(DeniedError, match=f"{said} {s3_store.root_uri}/x: .*403 Forbidden: AccessDenied: as the test says") as caught:
        call(s3_store.bucket)
    assert caught.value.code == "storage.denied"
    assert proxy.num_seen(method) == 1, "not asked again"


@pytest.mark.parametrize(
    "call",
    [
        lambda bucket: bucket.find("x"),
        lambda bucket: list(bucket.stream("x")),
        lambda bucket: bucket.list("x"),
        lambda bucket: bucket.folders("x"),
        lambda bucket: bucket.create("x", b"1"),
        lambda bucket: bucket.put("x", b"1"),
        lambda bucket: bucket.upload("x", Path(__file__)),
        lambda bucket: list_source(f"{bucket.root_uri}/x"),
    ],
    ids=["find", "stream", "list", "folders", "create", "put", "upload", "list_source"],
)
def test_a_bucket_that_is_not_there_is_an_error_that_says_so_and_not_an_empty_store(
    proxy: FaultProxy, call: Callable[[Bucket], object]
) -> None:
    with pytest.raises(DataError, match="there is no bucket 'absent-bucket'") as caught:
        call(Bucket("s3://absent-bucket/store"))
    assert caught.value.code == "storage.no_bucket"


def test_plain_http_is_spoken_only_to_an_endpoint_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(opening, "from_url", lambda uri, **options: asked.append(options["client_options"]))
    opening.open_bucket("s3://b/p", KEYS)
    opening.open_bucket("s3://b/p", KEYS | {"AWS_ENDPOINT_URL": "https://s3.example.com"})
    opening.open_bucket("s3://b/p", KEYS | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"})
    assert [options.get("allow_http", False) for options in asked] == [False, False, True]
