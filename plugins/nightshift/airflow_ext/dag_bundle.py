"""The folder of DAG files as Airflow's DAG bundle: a pipeline's file is parsed again when its YAML has changed.

Airflow looks at the times of .py files alone, and otherwise parses every file in turn, changed or not. An installation therefore sets
`min_file_process_interval` to a day, and at each refresh this bundle requests what is out of date, as the button "Reparse Dag" does.
It compares the files with Airflow's database each time: a request that was lost is made again, and so is one whose parse failed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow.dag_processing.bundles.local import LocalDagBundle

from nightshift.airflow_ext.timetables import SLOT_STILL_NEW
from nightshift.pipeline_files import yaml_of
from training.spec.rules.names import PIPELINE_TAG, SHARED_DAGS

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

REFRESH_SECONDS: Final = 5
READING: Final = timedelta(seconds=5)
"""A parse may have read its files so long before the time that Airflow notes for it."""
BROKEN: Final = timedelta(minutes=1)
"""After this time a file that did not load is parsed again, one in each refresh: what it imports may be there now."""
UNPLANNED: Final = timedelta(hours=1)
"""After this time the timetable of a DAG without a next run is asked again: a hold of its schedule may have expired."""


class _Dag(NamedTuple):
    """What is read here of a row of Airflow's table `dag`."""

    dag_id: str
    file: str
    is_stale: bool
    parsed_at: datetime
    is_periodic: bool
    next_run_after: datetime | None


class PipelineBundle(LocalDagBundle):
    """A local folder of DAG files, with the YAML files of pipelines in a folder next to them."""

    def __init__(self, *, refresh_interval: int = REFRESH_SECONDS, **arguments: Any) -> None:
        super().__init__(refresh_interval=refresh_interval, **arguments)
        self._next_look = 0.0
        self._seen: dict[str, tuple[int, int]] = {}
        """DAG file to the device and inode of its YAML at the last look."""
        self._exchanged: dict[str, float] = {}
        """DAG file to the time at which another file was seen in the place of its YAML."""

    def refresh(self) -> None:
        """Request a parse of each file that is out of date; the dag-processor calls this, in its own process.

        It calls it once more when it finds a request, before it parses the file: nothing is looked at then.
        """
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + self.refresh_interval
        # A worker makes the bundle too, and has no database.
        from airflow.models.dagbag import DagPriorityParsingRequest
        from airflow.utils.session import create_session

        with create_session() as session:
            outdated = {place for place in self._outdated(session, datetime.now(UTC)) if (self.path / place).exists()}
            session.add_all(DagPriorityParsingRequest(self.name, place) for place in sorted(outdated))

    def _outdated(self, session: Session, now: datetime) -> Iterator[str]:
        """Yield files, relative to the folder."""
        from airflow.models.dag import DagModel, DagTag
        from airflow.models.errors import ParseImportError
        from sqlalchemy import select

        errors = select(ParseImportError.filename, ParseImportError.timestamp).where(ParseImportError.bundle_name == self.name)
        broken: dict[str, datetime] = {row.filename: row.timestamp for row in session.execute(errors)}
        parsed = dict(broken)
        ours = {*SHARED_DAGS, *session.scalars(select(DagTag.dag_id).where(DagTag.name == PIPELINE_TAG))}
        columns = (
            DagModel.dag_id,
            DagModel.relative_fileloc,
            DagModel.is_stale,
            DagModel.last_parsed_time,
            DagModel.timetable_periodic,
            DagModel.next_dagrun_create_after,
        )
        for row in session.execute(select(*columns).where(DagModel.bundle_name == self.name)):
            dag = _Dag._make(row)
            if _needs_a_plan(dag, now):
                yield dag.file
            if dag.dag_id in ours:
                parsed[dag.file] = max(dag.parsed_at, broken.get(dag.file, dag.parsed_at))
                # Airflow takes the DAGs of a file out of service whose parse was killed, or could not be written to its database.
                if dag.is_stale and dag.file not in broken:
                    yield dag.file
        yield from (file for file, at in parsed.items() if self._has_changed(file, at - READING, is_broken=file in broken))
        if broken and (oldest := min(broken.items(), key=lambda found: found[1]))[1] < now - BROKEN:
            yield oldest[0]

    def _has_changed(self, file: str, at: datetime, *, is_broken: bool) -> bool:
        """Return whether the YAML of a DAG file was written, exchanged or removed after `at`."""
        try:
            state = yaml_of(self.path / file).stat()
        except OSError:
            # One that cannot be read, such as a link to itself, is the error of its own parse.
            return not is_broken and Path(file).stem not in SHARED_DAGS
        place = (state.st_dev, state.st_ino)
        if self._seen.setdefault(file, place) != place:
            # An older file, where a link, or a folder above it, leads elsewhere now.
            self._seen[file], self._exchanged[file] = place, time.time()
        # Not the time of the last write: a file that is moved or copied into the place of another keeps that.
        return max(state.st_ctime, self._exchanged.get(file, 0.0)) > at.timestamp()


def _needs_a_plan(dag: _Dag, now: datetime) -> bool:
    """Return whether the next run of a DAG is to be worked out again, which a parse does.

    It is where the slot passed without a run, as of a paused DAG: on the day when that is unpaused it must not start a run of long ago.
    """
    if dag.is_stale or not dag.is_periodic:
        return False
    if dag.next_run_after is None:
        return dag.parsed_at < now - UNPLANNED
    passed = dag.next_run_after + SLOT_STILL_NEW
    return dag.parsed_at - READING < passed < now
