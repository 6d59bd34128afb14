"""The canary of a model that is to be looked at, and at which time: the clock's, or that of simulated nights.

A night that `make run` or `make backfill` simulates lies in the past. Its canary cannot be judged by what has arrived by now: there is no
such data, and its time has long passed. So these commands note their nights in the home of the installation, and a canary that one of them
made is looked at as of the last one. No trigger and no request writes these notes, and a cluster has none.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from training.contracts import Instant, instant_of
from training.spec.rules.names import CANARY_SUFFIX

if TYPE_CHECKING:
    from training.registry.ledger.ledger import AliasHolder, Ledger

FOLDER: Final = "simulated-nights"


class OpenCanary(NamedTuple):
    """A canary that its DAG is to score."""

    model: str
    pipeline: str
    """Whose rules judge it: the one that made it."""
    run_id: str
    """Of the night that made it."""
    holder: AliasHolder

    @property
    def dag_id(self) -> str:
        return f"{self.pipeline}{CANARY_SUFFIX}"

    def simulated_at(self, home: Path) -> Instant | None:
        """Return the instant of the latest simulated night of the pipeline; None: the canary is of no such night, its time is the clock's.

        Args:
            home: of the installation.
        """
        if not night_path(home, self.pipeline, self.run_id).is_file():
            return None
        nights = (instant_of(path.read_text(encoding="utf-8")) for path in (home / FOLDER / self.pipeline).glob("night-*"))
        return max(self.holder.as_of, *nights)


def night_path(home: Path, pipeline: str, run_id: str) -> Path:
    """Return the file with the instant of a simulated night."""
    return home / FOLDER / pipeline / run_id


def open_canary(ledger: Ledger, model: str, *, pipeline: str = "") -> OpenCanary | None:
    """Return the canary of a model, None where it has none.

    Args:
        pipeline: judges canaries whose decision names none.

    Raises:
        UnavailableError: `database.unavailable`.
    """
    holder = ledger.standing(model).canary
    if holder is None:
        return None
    made = ledger.decision(model, holder.decision_key)
    evidence = {} if made is None else made.evidence
    return OpenCanary(model, str(evidence.get("pipeline", pipeline)), str(evidence.get("run_id", "")), holder)
