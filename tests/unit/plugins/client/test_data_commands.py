"""`nightshift checkpoints list` and `nightshift datasets`: what a server answers is printed as what store and database have."""

from __future__ import annotations

import json

import pytest

from nightshift.console import run
from tests.unit.plugins.client.test_client import Server
from tests.unit.plugins.seeded_installation import DONE, NEW, OLD


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("more", [[], [DONE], ["--json"], [DONE, "--json"]])
def test_a_server_lists_the_checkpoints_that_the_store_has(
    more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["checkpoints", "list", "search_ranking", *more]) == 0
    remote = capsys.readouterr().out
    monkeypatch.delenv("NIGHTSHIFT_SERVER")
    assert run(["checkpoints", "list", "search_ranking", *more]) == 0
    assert capsys.readouterr().out == remote
    assert "epoch_5" in remote


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("words", ["list", "list search_ranking", f"show search_ranking {OLD}", f"show search_ranking {OLD} --json"])
def test_a_server_shows_the_versions_of_data_that_the_database_has(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["datasets", *words.split()]) == 0
    remote = capsys.readouterr().out
    monkeypatch.delenv("NIGHTSHIFT_SERVER")
    assert run(["datasets", *words.split()]) == 0
    assert capsys.readouterr().out == remote
    assert OLD in remote


def test_a_version_is_deprecated_on_a_server_by_the_tokens_user(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    deprecate = ["datasets", "deprecate", "search_ranking", NEW]
    assert run([*deprecate, "--reason", "wrong", "--server", server.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deprecated_by"] == "bob"
    assert run([*deprecate, "--reason", "twice"]) == 77
    assert run(["datasets", "show", "search_ranking", "e" * 16]) == 77
    assert run(["checkpoints", "list", "nothing"]) == 77
    assert run(["checkpoints", "list", "search_ranking", "r9"]) == 77
