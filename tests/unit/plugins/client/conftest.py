"""A server that really listens, for the commands that ask one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.plugins.client.test_client import Server, token
from tests.unit.plugins.seeded_installation import Seeded


@pytest.fixture
def server(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server() as server:
        monkeypatch.setenv("NIGHTSHIFT_SERVER", server.url)
        monkeypatch.setenv("NIGHTSHIFT_TOKEN", token("bob", "user"))
        yield server
