"""Which test files share a worker and an installation, and which come first: the longest, so that no worker is left alone at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).resolve().parent

INSTALLATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        "integration/test_nights.py",
        "chaos/test_kills.py",
    ),
    (
        "rest/integration/test_starts.py",
        "rest/integration/test_broken_nights.py",
        "rest/integration/test_registered_model.py",
        "rest/integration/test_own_pipeline.py",
    ),
    (
        "rest/chaos/test_sleep.py",
        "rest/integration/test_tuning.py",
        "rest/integration/test_story.py",
        "rest/integration/test_story_by_commands.py",
        "rest/integration/test_approval_in_a_browser.py",
        "rest/integration/test_runs_without_promotion.py",
    ),
)
"""The files on one installation, in this order: its start, its stop and its first night are paid once. Each takes minutes."""


def shared_place(path: Path) -> tuple[int, int] | None:
    """Return (installation, place in its order) of a file that shares one, else None."""
    name = path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else ""
    return next(((number, files.index(name)) for number, files in enumerate(INSTALLATIONS) if name in files), None)


def scope_of(path: Path) -> str:
    """Return what one worker runs as a whole: a file, or all files on one installation."""
    place = shared_place(path)
    return str(path) if place is None else f"installation {place[0]}"


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests file by file: installations, then what starts processes, then by the number of slow tests; the quick ones last."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    starts = {item.path for item in items if item.get_closest_marker("integration") or item.get_closest_marker("distributed")}

    def key(item: pytest.Item) -> tuple[tuple[int, int], bool, int]:
        place = shared_place(item.path) or (len(INSTALLATIONS), 0)
        return place, item.path not in starts, -slow[item.path]

    return sorted(items, key=key)
