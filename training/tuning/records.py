"""A study in the store: the owner and the result of each trial. Light: operators import it.

    studies/<pipeline>/<study>/trials/<slot>.json    one finished trial, by conditional create: it is never counted twice
    refs/studies/<pipeline>/<study>/claims           the owner of each slot, in order; the last entry of a slot counts
    refs/studies/<pipeline>/<study>/plan             what the first planner settled for all of them: the champion

Everything that decides how a study continues is here, so that the storage of the search can be lost at any moment.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Literal, NotRequired, Self, TypedDict

from training.contracts import JsonObject, work_id
from training.spec.descriptors.metrics import is_lower_better
from training.spec.rules.tuning import VALIDATION_LOSS
from training.spec.sections.train import Placement
from training.spec.sections.tuning import Tune
from training.stage_table import TRIAL
from training.store import Store, records
from training.tuning.settings import num_trials

SLOT_DIGITS: Final = 5
HINT: Final = "delete it: its trial is run again"

State = Literal["complete", "pruned", "failed"]


class TrialValues(TypedDict):
    """A finished trial as JSON: see `TrialRecord`."""

    slot: int
    state: State
    value: float | None
    settings: JsonObject
    epochs: int
    steps: int
    losses: Sequence[tuple[int, float]]
    reason: NotRequired[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRecord:
    """One finished trial."""

    slot: int
    """Its number in the study, from 0."""
    state: State
    value: float | None
    """What the search minimizes: the objective, or its negative where higher is better. None for a trial that failed.

    `objective_value` turns it back.
    """
    settings: JsonObject
    epochs: int
    steps: int
    """Optimizer steps, or boosting rounds."""
    losses: Sequence[tuple[int, float]] = field(default_factory=tuple)
    """(epochs done, lowest validation loss so far) as they were reported."""
    reason: str = ""
    """Why it failed."""

    @classmethod
    def of(cls, values: TrialValues) -> Self:
        """Return the trial of a record's fields."""
        # JSON has lists.
        return replace(cls(**values), losses=tuple((int(epoch), float(loss)) for epoch, loss in values["losses"]))


class StudyStore:
    """What the store holds of one study."""

    def __init__(self, store: Store, pipeline: str, study: str) -> None:
        self._bucket = store.bucket
        self._prefix = f"studies/{pipeline}/{study}"
        self._claims = store.ref(f"{self._prefix}/claims")
        self._plan = store.ref(f"{self._prefix}/plan")
        self.tracking_key = self._prefix
        """Of the study's own MLflow run (`training.engine.tracking.mlflow_journal`)."""

    def plan(self, champion: str | None) -> str | None:
        """Settle which model is the study's champion, by its URI; the first one's word stands, and is returned."""
        self._plan.move({"champion": champion}, expected=0)
        settled: str | None = self._plan.at(1).value["champion"]
        return settled

    def add(self, record: TrialRecord) -> TrialRecord:
        """Record a finished trial; return the record that stands: there is one for each slot."""
        key = self._key(record.slot)
        if self._bucket.create(key, records.encode(key, asdict(record))):
            return record
        return self._read(key, self._bucket.get(key))

    def find(self, slot: int) -> TrialRecord | None:
        """Return the finished trial of a slot, None while it is not finished.

        Raises:
            StoreError: `record.damaged`, `record.newer`.
        """
        key = self._key(slot)
        data = self._bucket.find(key)
        return None if data is None else self._read(key, data)

    def slots(self) -> list[int]:
        """Return the slots of the finished trials, in order."""
        entries = self._bucket.list(f"{self._prefix}/trials")
        return sorted(int(entry.key.rsplit("/", 1)[-1].removesuffix(".json")) for entry in entries)

    def records(self) -> list[TrialRecord]:
        """Return the finished trials, by slot."""
        return [self._read(key, self._bucket.get(key)) for key in map(self._key, self.slots())]

    def take(self, owner: str, workers: Collection[str], tune: Tune, *, now: datetime | None = None) -> int | None:
        """Return a slot for `owner` to work on: the one that it has begun, a fresh one, or one of no worker of its run; None: all is done.

        A slot that another run holds may be in work right now: the process that starts it waits for its result as for any other work.

        Args:
            owner: equal for every try of one worker of one run.
            workers: the owners that the run has now. A run that was cleared may have had more.
            now: the clock, for `within`.
        """
        trials = num_trials(tune)
        while True:
            claims = self._claims.history()
            holders = {int(claim.value["slot"]): str(claim.value["owner"]) for claim in claims}
            done = set(self.slots())
            mine = [slot for slot, holder in holders.items() if holder == owner and slot not in done and slot < trials]
            if mine:
                return min(mine)
            clock = now or datetime.now(UTC)
            began_at = datetime.fromisoformat(claims[0].value["at"]) if claims else clock
            if is_out_of_time(tune, began_at, clock) or is_out_of_patience(tune, self.records() if tune.patience else ()):
                return None
            open_slots = [slot for slot in range(trials) if slot not in done]
            fresh = [slot for slot in open_slots if slot not in holders]
            left = [slot for slot in open_slots if slot in holders and holders[slot] not in workers]
            if not fresh and not left:
                return None
            slot = (fresh or left)[0]
            if self._claims.move({"slot": slot, "owner": owner, "at": clock.isoformat()}, expected=claims[-1].number if claims else 0):
                return slot

    def _read(self, key: str, data: bytes) -> TrialRecord:
        uri = self._bucket.uri(key)
        values = records.decode(key, data, uri=uri, hint=HINT)
        with records.readable(uri, hint=HINT):
            return TrialRecord.of(values)

    def _key(self, slot: int) -> str:
        return f"{self._prefix}/trials/{slot:0{SLOT_DIGITS}d}.json"


def trial_work_id(study: str, slot: int) -> str:
    """Return the id of one trial's work."""
    return work_id(TRIAL, spec_part={}, code_version="", inputs={"study": study, "slot": slot})


def num_workers(tune: Tune, placement: Placement) -> int:
    """Return how many trials run at a time: `parallel`, as far as the study's GPUs reach."""
    asked = placement.gpus * placement.nodes
    most = tune.parallel if tune.gpus is None or asked == 0 else min(tune.parallel, tune.gpus // asked)
    return max(1, min(most, num_trials(tune)))


def objective_value(objective: str, value: float) -> float:
    """Return a record's value as the objective itself has it: where higher is better, the record has its negative."""
    return value if is_minimized(objective) else 0.0 - value


def is_minimized(objective: str) -> bool:
    """Return whether lower values of an objective are better."""
    return objective == VALIDATION_LOSS or is_lower_better(objective)


def best_of(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the best complete trial, of equal ones the first."""
    complete = [record for record in records if record.state == "complete" and record.value is not None]
    return min(complete, key=lambda record: (record.value if record.value is not None else math.inf, record.slot), default=None)


def is_out_of_patience(tune: Tune, records: Sequence[TrialRecord]) -> bool:
    """Return whether `patience` finished trials, in the order of their slots, have come after the best one."""
    if tune.patience is None:
        return False
    best = best_of(records)
    since = sum(record.slot > best.slot for record in records) if best else len(records)
    return since >= tune.patience


def is_out_of_time(tune: Tune, began_at: datetime, now: datetime) -> bool:
    """Return whether it is too late for another trial to begin."""
    return tune.within is not None and now - began_at > tune.within
