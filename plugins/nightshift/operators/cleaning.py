"""Housekeeping's tasks that delete by the retention settings: in the store, and a laptop installation's files. docs/retention.md."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from nightshift.operators.repair import is_within
from nightshift.settings import Settings
from training.errors import LeaseHeldError, NightshiftError, UnavailableError
from training.installation import Variable
from training.process.waiting import waiting_for_database
from training.store import Bucket

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context


AIRFLOW_HOME: Final = Variable(
    name="AIRFLOW_HOME",
    kind="path",
    set_by="others",
    meaning="Airflow: its folder; housekeeping cleans a SQLite database there if the folder is the laptop installation's",
)


class CollectOperator(BaseOperator):
    """Collects the store once in `retention.every`; the log has bytes by kind."""

    @waiting_for_database()
    def execute(self, context: Context) -> dict[str, int]:
        """Return the bytes of each state: kept, condemned, deleted.

        Raises:
            AirflowSkipException: the last collection is not long ago, or another one is under way.
            AirflowFailException: the settings are wrong, or a record cannot be read, which may reference anything: nothing was deleted.
            UnavailableError: store or database do not answer; Airflow tries again.
        """
        from training.database.run_metrics import delete_expired
        from training.registry.ledger.retention import LedgerRoots
        from training.retention.settings import load_retention
        from training.store.garbage_collector import Collector

        settings = Settings.from_environment()
        try:
            retention = load_retention()
            roots = LedgerRoots(settings.database_url, champions=retention.champions)
            collector = Collector(settings.store(), retention.rules(), roots, say=self.log.info)
            last = collector.last_done()
            # One in the future was made by a wrong clock: the collection refuses it with an error.
            if last is not None and is_within(last, retention.every):
                raise AirflowSkipException(f"the last collection ended at {last:%Y-%m-%d %H:%M} UTC (retention every)")
            report = collector.collect()
        except UnavailableError:
            raise
        except LeaseHeldError as err:
            raise AirflowSkipException(str(err)) from err
        except NightshiftError as err:
            raise AirflowFailException(str(err)) from err
        for line in report.lines(dry_run=False):
            self.log.info("%s", line)
        # A store or database that goes away here is looked at again in `every`: the collection itself is done.
        num_rows = delete_expired(settings.database(), Bucket(settings.store_uri), before=datetime.now(UTC) - retention.runs)
        self.log.info("%d rows of run_metric were deleted", num_rows)
        return {state: report.total(state) for state in ("kept", "condemned", "deleted")}


class CleanHomeOperator(BaseOperator):
    """On a laptop: old runs in Airflow's database, old task logs, copies of reports, journals of studies."""

    def execute(self, context: Context) -> int:
        """Return the bytes of the files that were deleted.

        Raises:
            AirflowSkipException: Airflow is not this installation's own, as in a cluster.
            AirflowException: Airflow's own command failed, or its API did not answer; the task is retried.
        """
        from training.retention.settings import load_retention

        settings = Settings.from_environment()
        try:
            retention = load_retention()
        except NightshiftError as err:
            raise AirflowFailException(str(err)) from err
        if not is_laptop(settings):
            raise AirflowSkipException("Airflow's database and logs are not this installation's own: docs/retention.md")
        # Where there is a laptop installation; no image has it.
        from devstack.cleaning import clean

        try:
            deleted = clean(settings, retention, self.log.info)
        except NightshiftError as err:
            raise AirflowException(str(err)) from err
        self.log.info("deleted files of %.2f MB below %s", deleted / 1e6, settings.home)
        return deleted


def is_laptop(settings: Settings) -> bool:
    """Return whether Airflow's database and logs are in the installation's own folder."""
    home = settings.home / "airflow"
    return AIRFLOW_HOME.text() == str(home) and (home / "airflow.db").is_file()
