"""A run's second task, where the data comes in partitions: waits for those that are late."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.bases.sensor import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException

from nightshift.resolved_run import ResolvedRun
from training.contracts import ContractError
from training.errors import NightshiftError, UnavailableError
from training.process.waiting import waiting_for_database
from training.sources.listing import MissingPartitions, missing_partitions
from training.spec.scalar_types import duration_text

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

WAIT: Final = "wait"
MAX_NAMED: Final = 10
LOOKS: Final = 60
SHORTEST_POKE: Final = timedelta(seconds=2)
LONGEST_POKE: Final = timedelta(minutes=1)


class WaitForData(BaseSensorOperator):
    """Waits for late partitions without holding a slot, then fails naming them."""

    ui_color = "#e8eef7"

    def __init__(self, *, wait: timedelta, **kwargs: Any) -> None:
        """Wait for at most `wait`, counted from the start of the run, looking sixty times, but 2 s to 60 s apart."""
        poke = min(max(wait / LOOKS, SHORTEST_POKE), LONGEST_POKE)
        super().__init__(mode="reschedule", poke_interval=poke, timeout=wait, **kwargs)
        self.longest_wait = wait

    @waiting_for_database()
    def execute(self, context: Context) -> None:
        """Return once every partition that is needed is there.

        Raises:
            AirflowRescheduleException: not yet; look again at its date.
            AirflowFailException: the time is over; or the source will not be read.
            UnavailableError: the source does not answer; Airflow tries again.
        """
        try:
            missing = self._missing(ResolvedRun.of(context))
        except UnavailableError:
            raise
        except (NightshiftError, ContractError) as err:
            raise AirflowFailException(str(err)) from err
        if not missing:
            return
        now = datetime.now(UTC)
        # Not counted by Airflow's own clock of a sensor, which restarts with every try.
        until = (context["dag_run"].start_date or now) + self.longest_wait
        if now >= until:
            waited = duration_text(self.longest_wait)
            raise AirflowFailException(
                f"[partition.missing] {missing} (the run waited {waited}, data.source.wait; trigger it once they are)"
            )
        self.log.info("%s; waiting until %s", missing, until.isoformat(timespec="seconds"))
        raise AirflowRescheduleException(min(now + timedelta(seconds=self.poke_interval), until))  # type: ignore[no-untyped-call]

    def _missing(self, resolved: ResolvedRun) -> str:
        if resolved.snapshot is not None:
            self.log.info("the run takes an existing snapshot: nothing is waited for")
            return ""
        return "; ".join(_words(found) for found in missing_partitions(resolved.spec, resolved.as_of))


def _words(missing: MissingPartitions) -> str:
    count = len(missing.places)
    named = ", ".join(missing.places[:MAX_NAMED])
    more = f" and {count - MAX_NAMED} more" if count > MAX_NAMED else ""
    return f"{count} of {missing.expected} partitions of {missing.table} are not there: {named}{more}"
