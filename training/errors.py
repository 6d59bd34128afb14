"""Every error that Nightshift raises on purpose, and how a process ends with it.

    NightshiftError                      code, message, hint, details
    ├── SpecError                 64     the YAML, a trigger's conf or a request is wrong; carries every problem at once
    ├── DataError                 65     the data is wrong or not what was promised
    │   └── StoreError            65     an object or record of the store is missing, altered or unreadable
    ├── DivergedError             70     loss or weights are not finite, or exploded
    ├── OutOfMemoryError          71     the kernel, the pod's status or CUDA says so
    ├── UnavailableError          74     storage or another service does not answer, own retries spent
    ├── PreemptedError            75     asked to stop, after a commit where there was time for one
    │   ├── PeerLostError         75     another rank is lost
    │   ├── ReplicasDifferError   75     replicas of a model are not equal any more; their checkpoints since then are withdrawn
    │   ├── HungError             75     a process made no progress for the limit of its phase, and was ended
    │   └── LeaseError            75     this attempt may not write (any more)
    │       ├── LeaseHeldError    75     someone else is at the same work right now
    │       └── LeaseLostError    75     another attempt has the work, or has finished it
    ├── NoUsableCheckpointError   76     checkpoints exist and none can be read: never a silent restart from zero
    └── DeniedError               77     not allowed

`code` is stable and dotted (`schema.missing`), `message` says what, where and which value, `hint` says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from training.contracts import ExitCode

MAX_VALUE_CHARS = 80
"""A user's value is shown up to this many characters."""


def shown(value: object) -> str:
    """Render a user's value for a message: escaped, and cut at 80 characters."""
    text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "…"


def first_line(err: object) -> str:
    """Return an error in one line, cut at 300 characters unless it is one of ours, which ends with the remedy."""
    if isinstance(err, NightshiftError):
        return " ".join(str(err).split())
    return (str(err).splitlines() or [type(err).__name__])[0][:300]


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: 1 file, 2,000 files."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


class NightshiftError(Exception):
    """Base of all. `exit_code` is what the stage's process ends with."""

    exit_code: ExitCode = ExitCode.UNEXPECTED

    def __init__(self, code: str, message: str, *, hint: str = "", details: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.details = dict(details or {})

    def __str__(self) -> str:
        text = f"[{self.code}] {self.message}"
        return f"{text} ({self.hint})" if self.hint else text


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing that is wrong with a spec: where it stands, what is wrong, what to do."""

    code: str
    message: str
    hint: str = ""
    field: str = ""
    """Dotted path of the key, `train.learning_rate`."""
    line: int | None = None
    """1-based line in the file, where there is a file."""
    column: int | None = None

    def render(self, source: str) -> str:
        place = source if self.line is None else f"{source}:{self.line}"
        if self.line is not None and self.column is not None:
            place += f":{self.column}"
        subject = f" {self.field}:" if self.field else ""
        remedy = f" ({self.hint})" if self.hint else ""
        return f"{place}:{subject} [{self.code}] {self.message}{remedy}"


class SpecError(NightshiftError):
    """All problems of one document; `code` is the first one's."""

    exit_code = ExitCode.BAD_SPEC

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__(self.problems[0].code, "\n".join(p.render(source) for p in self.problems))

    def __str__(self) -> str:
        count = len(self.problems)
        head = f"{self.source}: {counted(count, 'problem')}"
        return head + "\n" + "\n".join("  " + problem.render(self.source) for problem in self.problems)


def spec_error(source: str, code: str, message: str, *, hint: str = "", field: str = "") -> SpecError:
    """Return the error of a single problem."""
    return SpecError(source, [Problem(code=code, message=message, hint=hint, field=field)])


class DataError(NightshiftError):
    exit_code = ExitCode.BAD_DATA


class StoreError(DataError):
    """An object or record of the store cannot be used; the message names it, the hint says how to go on."""


class DivergedError(NightshiftError):
    exit_code = ExitCode.DIVERGED


class OutOfMemoryError(NightshiftError):
    exit_code = ExitCode.OUT_OF_MEMORY


class UnavailableError(NightshiftError):
    exit_code = ExitCode.UNAVAILABLE


class PreemptedError(NightshiftError):
    exit_code = ExitCode.PREEMPTED


class PeerLostError(PreemptedError):
    """Another rank of the gang is gone; the collective broke."""


class ReplicasDifferError(PreemptedError):
    """A replica computed something else than the others, as broken hardware does; relaunched from before."""


class HungError(PreemptedError):
    """A process of the stage made no progress for the limit of its phase; the kernel's timer ended it."""


class LeaseError(PreemptedError):
    """This attempt may not write."""


class LeaseHeldError(LeaseError):
    """A live attempt of another run is at the same work; wait for its result."""


class LeaseLostError(LeaseError):
    """A newer attempt took the work over; nothing that this one does counts any more."""


class NoUsableCheckpointError(NightshiftError):
    exit_code = ExitCode.NO_USABLE_CHECKPOINT


class DeniedError(NightshiftError):
    exit_code = ExitCode.DENIED
