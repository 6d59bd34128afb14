"""A small pipeline for the story of a model: its days end yesterday, for a canary is judged by what has arrived by now."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from typing import Any

from devstack.shop import write_day
from tests.integration.installation import Installation

NUM_DAYS = 9
NUM_SEARCHES = 600
GOOD: dict[str, Any] = {"epochs": 3, "learning_rate": 2e-2}
BAD: dict[str, Any] = {"epochs": 1, "learning_rate": 1e-7}
NEVER = "0 3 1 1 *"


class StoryPipeline:
    """A pipeline and its model, which have one name."""

    def __init__(self, installation: Installation, name: str, *, approve_own: bool) -> None:
        self.installation = installation
        self.name = name
        self.today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        for number in range(1, NUM_DAYS + 1):
            write_day(installation.shop, (self.today - timedelta(days=number)).date(), searches=NUM_SEARCHES)
        text = (installation.dags / "pipelines" / "search_ranking.yaml").read_text(encoding="utf-8")
        for old, new in (
            ("name: search_ranking", f"name: {name}"),
            ('schedule: "0 2 * * *"\n', ""),
            ('deadline: "07:00"\n', ""),
            ("window: 30d", "window: 4d"),
            ("wait: 2h", "wait: 1m"),
            ("test: 2d", "test: 1d"),
            ("processes_per_node: 2", "processes_per_node: 1"),
            ("volume_change: 0.2", "volume_change: 2.0"),
            # The first champion is worse than a naive baseline on purpose.
            ("slice_support: 500", "slice_support: 2000\n  severity: {naive_baseline: warn}"),
            (
                "promote: {model: search_ranking, approval: automatic}",
                f"promote: {{model: {name}, approval: automatic, approve_own: {str(approve_own).lower()}, "
                f'canary: {{for: 1s, support: 200, schedule: "{NEVER}", tolerance: 0.02}}}}',
            ),
        ):
            assert old in text, old
            text = text.replace(old, new)
        self.path = installation.dags / "pipelines" / f"{name}.yaml"
        self.path.write_text(text, encoding="utf-8")
        shutil.copy(installation.dags / "search_ranking.py", installation.dags / f"{name}.py")

    def change(self, old: str, new: str) -> None:
        """Edit the YAML as an editor does: Airflow, which reads it all the time, sees the old text or the new one, never an empty file."""
        text = self.path.read_text(encoding="utf-8")
        assert old in text
        edited = self.path.with_suffix(".edited")
        edited.write_text(text.replace(old, new), encoding="utf-8")
        edited.replace(self.path)

    def as_of(self, days_ago: int) -> str:
        """Return the instant of a night."""
        return (self.today - timedelta(days=days_ago) + timedelta(hours=2)).isoformat()
