"""`nightshift checkpoints list` and `nightshift datasets` against a server: what it prints is what the store and the database print."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from nightshift.client import checkpoints_command, datasets_command
from nightshift.settings import Settings
from tests.unit.plugins.client.test_client import Server
from tests.unit.plugins.seeded_installation import DONE, NEW, OLD
from training.engine.checkpoint import cli as store_command
from training.registry import datasets as database_command

Main = Callable[[Sequence[str]], int]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("more", [[], [DONE], ["--json"], [DONE, "--json"]])
def test_a_server_lists_the_checkpoints_that_the_store_has(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for main, options in ((checkpoints_command.main, []), (store_command.main, ["--store", Settings.from_environment().store_uri])):
        assert main(["list", "search_ranking", *more, *options]) == 0
        text = capsys.readouterr().out
        printed.append([{**each, "created_at": ""} for each in json.loads(text)] if "--json" in more else text)
    assert printed[0] == printed[1]
    assert "epoch_5" in str(printed[0])


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("words", ["list", "list search_ranking", f"show search_ranking {OLD}", f"show search_ranking {OLD} --json"])
def test_a_server_shows_the_versions_of_data_that_the_database_has(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for main in (datasets_command.main, database_command.main):
        assert main(words.split()) == 0
        text = capsys.readouterr().out.replace("+00:00", "Z")
        printed.append(json.loads(text) if "--json" in words else text)
    assert printed[0] == printed[1]
    assert OLD in str(printed[0])


def test_a_version_is_deprecated_on_a_server_by_the_tokens_user(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert datasets_command.main(["deprecate", "search_ranking", NEW, "--reason", "wrong", "--server", server.url]) == 0
    assert "by bob: wrong" in capsys.readouterr().out
    assert datasets_command.main(["deprecate", "search_ranking", NEW, "--reason", "twice"]) == 77
    assert datasets_command.main(["show", "search_ranking", "e" * 16]) == 77
    assert checkpoints_command.main(["list", "nothing"]) == 77
    assert checkpoints_command.main(["list", "search_ranking", "r9"]) == 77
