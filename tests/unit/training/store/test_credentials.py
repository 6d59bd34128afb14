"""A bucket is opened with keys and token files of the environment; with the machine's own identity only where an operator allows it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from training.errors import DeniedError, NightshiftError, SpecError
from training.sources.listing import list_source
from training.store import Store
from training.store import open_bucket as opening
from training.store.credentials import CONFIGURED, EMULATOR, IDENTITY

ACCOUNT = {"AZURE_STORAGE_ACCOUNT_NAME": "acme"}
BUCKETS = ("s3://bucket/x", "gs://bucket/x", "az://container/x")


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key in the environment, and no login in the home."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "NIGHTSHIFT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each client that was made."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(opening, "from_url", lambda uri, **options: made.append(options))
    return made


@pytest.mark.parametrize("uri", BUCKETS)
def test_without_keys_a_bucket_is_refused_before_a_client_can_ask_the_metadata_service(uri: str, opened: list[dict[str, Any]]) -> None:
    for environ in (ACCOUNT, {**ACCOUNT, "AWS_SKIP_SIGNATURE": "true", "AWS_ACCESS_KEY_ID": "AKIA", "AZURE_CLIENT_ID": "x"}):
        with pytest.raises(DeniedError) as caught:
            opening.open_bucket(uri, environ)
        assert caught.value.code == "storage.identity"
        assert IDENTITY.name in caught.value.hint
    assert opened == []


@pytest.mark.parametrize("uri", BUCKETS)
def test_an_operator_may_allow_the_machines_identity_and_requests_without_a_signature(uri: str, opened: list[dict[str, Any]]) -> None:
    for allowed in ("metadata", "anonymous", "anonymous, metadata"):
        opening.open_bucket(uri, {**ACCOUNT, IDENTITY.name: allowed})
    assert [options.get("skip_signature") for options in opened] == [None, True, None]


def test_keys_and_token_files_need_no_leave(opened: list[dict[str, Any]]) -> None:
    uris = dict(zip(("s3", "gs", "az"), BUCKETS, strict=True))
    for scheme, identities in CONFIGURED.items():
        for names in identities:
            opening.open_bucket(uris[scheme], {**ACCOUNT, **dict.fromkeys(names, "x"), IDENTITY.name: "anonymous"})
    assert not any("skip_signature" in options for options in opened)
    assert len(opened) == sum(map(len, CONFIGURED.values()))


def test_a_persons_own_login_to_google_counts(tmp_path: Path, opened: list[dict[str, Any]]) -> None:
    login = tmp_path / ".config" / "gcloud" / "application_default_credentials.json"
    login.parent.mkdir(parents=True)
    login.write_text("{}")
    opening.open_bucket("gs://bucket/x", {})
    assert len(opened) == 1


@pytest.mark.parametrize("open_it", [lambda: list_source("az://container/x"), lambda: Store("az://container/store")])
def test_a_container_without_an_account_is_an_error_that_names_the_variable(open_it: Any) -> None:
    with pytest.raises(NightshiftError, match=r"\[storage\.account\].*has no account \(set AZURE_STORAGE_ACCOUNT_NAME"):
        open_it()


def test_the_emulator_needs_no_account(opened: list[dict[str, Any]]) -> None:
    opening.open_bucket("az://container/x", {EMULATOR.name: "true"})
    assert len(opened) == 1


def test_an_identity_that_is_none_is_refused_without_showing_it() -> None:
    with pytest.raises(SpecError, match=r"NIGHTSHIFT_CLOUD_IDENTITY: \[settings\.identity\] has what is no identity") as caught:
        opening.open_bucket("s3://bucket/x", {IDENTITY.name: "metadata,swordfish"})
    assert "swordfish" not in str(caught.value)
