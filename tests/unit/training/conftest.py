"""The databases that our tables may be in."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.databases import KillablePostgres, new_database, postgres_cluster, why_no_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a cluster of the tests' own; skips where there can be none."""
    if reason := why_no_postgres():
        pytest.skip(reason)
    with postgres_cluster() as url:
        yield url


@pytest.fixture
def killable_postgres() -> Iterator[KillablePostgres]:
    """A server of the test's own, which it may kill and start again; skips where there can be none."""
    if reason := why_no_postgres():
        pytest.skip(reason)
    with postgres_cluster() as url:
        server = KillablePostgres(url)
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database, of each kind that we support."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/nightshift.db"
    return new_database(request.getfixturevalue("postgres"), f"n{uuid.uuid4().hex[:12]}")
