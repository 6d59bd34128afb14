"""What a check found, and the error that failed ones become."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NotRequired, TypedDict

from training.contracts import JsonObject, Scalar
from training.data.snapshot.label_delay import UnknownLabels
from training.errors import DataError, shown

if TYPE_CHECKING:
    from training.validation.columns.profiles import Counts
    from training.validation.drift.between_snapshots import SnapshotComparison

MAX_CHECKS_SHOWN: Final = 10

Status = Literal["passed", "warned", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """One check of one table or column, in words and numbers that a person can judge."""

    code: str
    """Stable and dotted, that of the error if this is the first check that failed."""
    check: str
    table: str
    column: str = ""
    status: Status
    observed: str
    allowed: str
    detail: str = ""
    asks: bool = False
    """Whether a person has to approve a candidate that is trained on the data."""

    def line(self) -> str:
        place = f"{self.table}.{self.column}" if self.column else self.table
        detail = f" ({self.detail})" if self.detail else ""
        return f"[{self.code}] {place}: {self.check}: observed {self.observed}, allowed {self.allowed}{detail}"


class DriftMeasures(TypedDict, total=False):
    """The newer rows of a column against the older ones, where both have values."""

    psi: float
    mean_shift: float


class ColumnStatistics(DriftMeasures):
    """A column; see `training.validation.columns.statistics.profile`."""

    rows: int
    nulls: int
    """NaN is one."""
    infinite: int
    minimum: Scalar
    maximum: Scalar
    mean: NotRequired[float | None]
    """Of numbers, the finite ones, as `deviation`; None without any."""
    deviation: NotRequired[float | None]


@dataclass(kw_only=True)
class Findings:
    """Everything that one validation found."""

    checks: list[CheckResult] = field(default_factory=list)
    statistics: dict[str, dict[str, ColumnStatistics]] = field(default_factory=dict)
    """Table, column, name of the number."""
    rows_per_day: dict[str, int] = field(default_factory=dict)
    """Of the main table, by day in the pipeline's time zone."""
    unknown_labels: UnknownLabels | None = None
    """Of the snapshot's meta: rows whose label is not known yet, by split and day."""
    profiles: dict[str, dict[str, Counts]] = field(default_factory=dict)
    """Table, column: what later snapshots are compared with; not in the JSON."""
    comparisons: list[SnapshotComparison] = field(default_factory=list)
    """With earlier snapshots."""
    runs: list[JsonObject] = field(default_factory=list)
    """Of the previous snapshots and this one, oldest first; see `training.validation.all_checks.with_run`. Not in the JSON."""

    @property
    def counts(self) -> dict[str, int]:
        """Number of checks by status; each status is there."""
        found = Counter(check.status for check in self.checks)
        return {status: found[status] for status in ("passed", "warned", "failed")}

    @property
    def failed(self) -> list[CheckResult]:
        return [check for check in self.checks if check.status == "failed"]

    def to_json(self) -> JsonObject:
        """Return what is the same for equal data: no clock, and numbers rounded to what does not depend on the order of adding."""
        return {
            "checks": [_json(check) for check in self.checks],
            "statistics": _rounded(self.statistics),
            "rows_per_day": self.rows_per_day,
            **({} if self.unknown_labels is None else {"unknown_labels": self.unknown_labels}),
            **({"drift": [_rounded(comparison.to_json()) for comparison in self.comparisons]} if self.comparisons else {}),
        }

    @property
    def to_approve(self) -> list[str]:
        """What a person has to approve, a line for each check."""
        return [check.line() for check in self.checks if check.asks]

    def raise_if_failed(self, report_uri: str) -> None:
        """Raise the DataError of the first failed check; its message lists up to ten of them and the report."""
        failed = self.failed
        if not failed:
            return
        lines = [f"{len(failed)} of {len(self.checks)} checks failed", *(f"  {check.line()}" for check in failed[:MAX_CHECKS_SHOWN])]
        if len(failed) > MAX_CHECKS_SHOWN:
            lines.append(f"  … and {len(failed) - MAX_CHECKS_SHOWN} more")
        lines.append(f"  report: {report_uri}")
        raise DataError(
            failed[0].code,
            "\n".join(lines),
            hint="repair the data and trigger the run again: sources are listed again, and only the stages that depend on them run again",
            details={"report_uri": report_uri, "failed": len(failed), "checks": len(self.checks)},
        )


def warned_of(results: bytes) -> list[CheckResult]:
    """Return the checks that warned, of a stored `results.json`."""
    return [CheckResult(**check) for check in json.loads(results)["checks"] if check["status"] == "warned"]


def status_of(ok: bool, *, blocks: bool = True) -> Status:
    """Return the status of a check that was evaluated."""
    return "passed" if ok else ("failed" if blocks else "warned")


def listed(names: Sequence[object], *, limit: int = 3) -> str:
    """Return up to `limit` values, and how many more there are."""
    head = ", ".join(shown(name) if isinstance(name, str) else str(name) for name in names[:limit])
    return head if len(names) <= limit else f"{head} and {len(names) - limit} more"


def _json(check: CheckResult) -> JsonObject:
    return asdict(check)


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
