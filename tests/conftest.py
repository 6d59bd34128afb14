"""One real installation for all integration tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.installation import Installation


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """A running installation with the small shop; what it started is gone afterwards, and must be."""
    made = Installation.start(tmp_path_factory.mktemp("installation"))
    try:
        yield made
    finally:
        made.stop()
