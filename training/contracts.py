"""What crosses the border of a stage: the request, the result, the exit code, the id of the work.

Standard library only: DAG files, operators and stages all import it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any, Final, Self, TypeAlias, TypeVar

FORMAT_VERSION: Final = 1
"""Version of requests and results. Readers refuse a newer one."""

MAX_RESULT_BYTES: Final = 48 * 1024
"""XCom carries URIs, digests and a few scalars, never data."""

MAX_CLOCK_SKEW: Final = timedelta(minutes=5)
"""How far the clocks of what settles a run's `as_of` and of what decides about its model may differ."""

Instant: TypeAlias = datetime
"""A moment that a run or a version is as of: aware. `instant_text` writes it to JSON, `instant_of` reads it."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Scalar = str | int | float | bool | None
T = TypeVar("T")

JsonValue: TypeAlias = "Scalar | Sequence[JsonValue] | Mapping[str, JsonValue]"
"""What a JSON or YAML text holds, for reading: a mapping or a list of these is one too, whatever its own type is.

Not for pydantic's fields, which do not resolve the name."""

JsonObject: TypeAlias = Mapping[str, JsonValue]
"""A JSON object. Its values are narrowed by `isinstance`, or by a TypedDict or a dataclass where the keys are known."""


class ExitCode(IntEnum):
    """How a stage's process ended."""

    DONE = 0
    UNEXPECTED = 1
    BAD_SPEC = 64
    BAD_DATA = 65
    DIVERGED = 70
    OUT_OF_MEMORY = 71
    UNAVAILABLE = 74
    PREEMPTED = 75
    NO_USABLE_CHECKPOINT = 76
    DENIED = 77


class ContractError(ValueError):
    """A request, a result or an XCom value is not what the contract says."""


def instant_of(text: str) -> Instant:
    """Read an instant from JSON.

    Raises:
        ContractError: the text is no ISO 8601 date-time with an offset.
    """
    try:
        instant = datetime.fromisoformat(text)
    except (TypeError, ValueError) as err:
        # JSON of another type too: pydantic alone takes a number for the seconds since 1970.
        raise ContractError(f"{text!r} is no date-time") from err
    if instant.utcoffset() is None:
        raise ContractError(f"{text!r} has no offset from UTC")
    return instant


def instant_text(instant: Instant) -> str:
    """Return an instant as JSON, tags and people have it: ISO 8601 with its offset."""
    return instant.isoformat()


def microseconds_of(instant: Instant) -> int:
    """Return an instant as microseconds since 1970, exactly: a float lacks some."""
    return (instant - EPOCH) // timedelta(microseconds=1)


def json_number(value: T) -> T | str:
    """Return a value as JSON has it: a float that is not finite as the word `nan`, `inf` or `-inf`, anything else unchanged.

    The one rule for results, evaluations and the ledger: JSON has no such numbers, and PostgreSQL rejects them.
    """
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def canonical_json(value: object) -> bytes:
    """Encode as the one JSON text that equal values share: sorted keys, no spaces, UTF-8, no NaN.

    Raises:
        ContractError: the value holds a NaN, an infinity or something that is not JSON.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as err:
        raise ContractError(f"not representable as canonical JSON: {err}") from err
    return text.encode("utf-8")


def json_object(value: JsonValue) -> dict[str, JsonValue]:
    """Return a copy of a JSON object.

    Raises:
        TypeError: it is another value.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"expected a JSON object, got {type(value).__name__}")
    return dict(value)


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of `data` as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def work_id(stage: str, *, spec_part: object, code_version: str, inputs: Mapping[str, object], nonce: str = "") -> str:
    """Name the work: equal work has an equal work id, whichever caller asks for it.

    Args:
        stage: a name of `training.stage_table`.
        spec_part: the part of the frozen spec that the stage's work depends on, as JSON.
        code_version: digest of the files that the stage imports and reads (`training.code`), or of the image.
        inputs: digests (and `as_of`, source listing, world size …) that the work depends on, as JSON.
        nonce: empty, or random text when the run was forced to do its work again.
    """
    parts = {"stage": stage, "spec": spec_part, "code": code_version, "inputs": dict(inputs), "nonce": nonce}
    return sha256_hex(canonical_json(parts))


@dataclass(frozen=True, kw_only=True, slots=True)
class RunIdentity:
    """The Airflow task instance that asked for the work, or made it."""

    dag_id: str
    run_id: str
    task_id: str
    try_number: int = 1

    @property
    def owner(self) -> str:
        """Who holds a lease: equal for every try of one task instance."""
        return f"{self.dag_id}/{self.run_id}/{self.task_id}"


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRequest:
    """Everything that one attempt of a stage needs; written to the store before its process starts. Never a secret."""

    pipeline: str
    stage: str
    work_id: str
    attempt_id: str
    store_uri: str
    """Root of the store."""
    spec_uri: str
    """The frozen, resolved spec, an object of the store."""
    as_of: Instant
    """The instant whose past may be seen."""
    inputs: Mapping[str, str]
    """Name to artifact URI, `{"snapshot": "…", "dataset": "…"}`."""
    run: RunIdentity
    takeover_epoch: int = 0
    """Lease epoch whose holder was seen dead, so that this attempt may take it over; 0: none."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What the operator looked up before the start: the source listing, the champion, the previous snapshot."""
    code_version: str = ""
    """The code that the work id stands for; empty: what acts on the world."""
    code_files: Mapping[str, str] = field(default_factory=dict)
    """File to SHA-256, all that the code version is made of: the process has these very files, and uses no others; empty: the version
    is the digest of an image."""
    format_version: int = FORMAT_VERSION

    def to_json(self) -> bytes:
        return canonical_json(dataclasses.asdict(self) | {"as_of": instant_text(self.as_of)})

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        values = _load(data, kind="request")
        values["run"] = RunIdentity(**values["run"])
        values["as_of"] = instant_of(values["as_of"])
        return cls(**values)


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What the processes of one attempt used: the stage's, its children and, of a training, the ranks of rank 0's machine."""

    peak_memory_bytes: int
    """Largest sum, over the processes of one moment, of the most resident memory that each had; memory that they share counts in each."""
    cpu_seconds: float
    """User and system time."""
    read_bytes: int
    """Through read calls, the page cache's included; not what is mapped, nor what comes over the network. 0 where it is not counted."""
    written_bytes: int
    """Through write calls."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageResult:
    """What a finished stage leaves in its work folder, and what XCom carries."""

    pipeline: str
    stage: str
    work_id: str
    artifact_uri: str
    """Manifest of what the stage made."""
    digest: str
    """SHA-256 of that manifest: equal digests, equal content."""
    run: RunIdentity
    """The task instance whose attempt did the work."""
    attempt_id: str
    attempts: int
    """Lease epochs that it took, 1 for an undisturbed stage."""
    committed_at: str
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    """A few numbers and words for people: rows, AUC, the decision."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds by part; `total` always."""
    reports: Mapping[str, str] = field(default_factory=dict)
    """Name to URI of a page for people."""
    reused_from: RunIdentity | None = None
    """Set by the task that found the result instead of making it."""
    usage: Usage | None = None
    """None: nothing was measured."""
    format_version: int = FORMAT_VERSION

    def to_json(self) -> bytes:
        data = canonical_json(self.to_xcom_unchecked())
        if len(data) > MAX_RESULT_BYTES:
            raise ContractError(
                f"result of stage {self.stage!r} has {len(data)} bytes; XCom carries digests and URIs, limit {MAX_RESULT_BYTES}"
            )
        return data

    def to_xcom_unchecked(self) -> dict[str, JsonValue]:
        values = dataclasses.asdict(self)
        values["scalars"] = {name: json_number(number) for name, number in values["scalars"].items()}
        return values

    def to_xcom(self) -> dict[str, JsonValue]:
        """Return the value for XCom: plain JSON, under 48 KiB.

        Raises:
            ContractError: it is larger.
        """
        loaded: dict[str, JsonValue] = json.loads(self.to_json())
        return loaded

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        return cls.from_mapping(_load(data, kind="result"))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        fields = dict(values)
        fields["run"] = RunIdentity(**fields["run"])
        if fields.get("reused_from") is not None:
            fields["reused_from"] = RunIdentity(**fields["reused_from"])
        if fields.get("usage") is not None:
            fields["usage"] = Usage(**fields["usage"])
        return cls(**fields)

    def as_reused(self) -> Self:
        """Return this result as seen by a task that found it: `reused_from` names its maker (also when that is an earlier try)."""
        return dataclasses.replace(self, reused_from=self.run)


def require_result(value: object, *, stage: str) -> StageResult:
    """Return the XCom value of `stage` as a result.

    Raises:
        ContractError: it is missing, empty, of another stage or malformed; the message names the stage.
    """
    if not isinstance(value, Mapping) or not value:
        raise ContractError(f"stage {stage!r} left no result (got {type(value).__name__}); see its log and its _ERROR.json")
    try:
        result = StageResult.from_mapping(value)
    except (KeyError, TypeError) as err:
        raise ContractError(f"stage {stage!r} left a malformed result: {err}") from err
    if result.format_version > FORMAT_VERSION:
        raise ContractError(f"result of stage {stage!r} has format {result.format_version}, this version reads up to {FORMAT_VERSION}")
    if result.stage != stage:
        raise ContractError(f"expected the result of stage {stage!r}, got that of {result.stage!r}")
    return result


def _load(data: bytes, *, kind: str) -> dict[str, Any]:
    values = json.loads(data)
    if not isinstance(values, dict):
        raise ContractError(f"a {kind} must be one JSON object")
    version = values.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ContractError(f"{kind} has format {version}, this version reads up to {FORMAT_VERSION}; upgrade Nightshift")
    return values
