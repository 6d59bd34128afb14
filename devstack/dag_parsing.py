"""Waits for Airflow to read DAG files: only the time counts in which the dag-processor is healthy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from devstack.airflow_api import AirflowApi
from devstack.wait_messages import Awaited
from nightshift.pipeline_files import yaml_of
from training.spec.rules.names import SHARED_DAGS

PARSE_SECONDS: Final = 90.0
MAX_SECONDS: Final = 900.0
"""In all, healthy or not."""
POLL_SECONDS: Final = 1.0
PAGE: Final = 100
MAX_NAMED: Final = 5


class ParseLimit:
    """The limit of one wait. A dag-processor that was killed or stopped parses nothing until it is back."""

    def __init__(self, client: AirflowApi, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        now = clock()
        self._last = now + MAX_SECONDS
        self._deadline = now + PARSE_SECONDS

    def is_spent(self) -> bool:
        """Return whether the wait is to end. Call it at every look."""
        now = self._clock()
        if now > self._deadline and self._client.health().get("dag_processor") != "healthy":
            self._deadline = now + PARSE_SECONDS
        return now > min(self._deadline, self._last)


def wait_for_dags(client: AirflowApi, dags: Path, say: Callable[[str], None]) -> None:
    """Return once Airflow has the DAG of each file of `dags` that is a pipeline's or serves all, or knows why it does not load.

    Where it reads no further file within `PARSE_SECONDS`, that is said.
    """
    wanted = {file.stem for file in dags.glob("*.py") if file.stem in SHARED_DAGS or yaml_of(file).exists()}
    limit, awaited, left = ParseLimit(client), Awaited(say), len(wanted)
    while missing := wanted.difference(_read(client)):
        if len(missing) < left:
            limit, left = ParseLimit(client), len(missing)
        if limit.is_spent():
            named = ", ".join(sorted(missing)[:MAX_NAMED]) + (" …" if left > MAX_NAMED else "")
            say(f"Airflow has not read {left} of {len(wanted)} DAG files yet ({named}): make status shows its log files")
            return
        awaited.look(f"Airflow, which has read {len(wanted) - left} of {len(wanted)} DAG files")
        time.sleep(POLL_SECONDS)


def _read(client: AirflowApi) -> Iterator[str]:
    """Yield the ids of the DAGs that Airflow has, and the names of the files that it could not load."""
    for path, key, name in (("/dags", "dags", "dag_id"), ("/importErrors", "import_errors", "filename")):
        offset = 0
        while entries := client.get(path, limit=PAGE, offset=offset)[key]:
            yield from (str(entry[name]).removesuffix(".py") for entry in entries)
            offset += PAGE
