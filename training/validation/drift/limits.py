"""Judges a snapshot's columns against those of earlier snapshots, as `validate.drift` says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from training.contracts import Instant, JsonObject, instant_text
from training.format import figure
from training.spec.sections.drift import Drift, DriftLimits
from training.validation.columns.profiles import Counts, Tables
from training.validation.drift.between_snapshots import ColumnDrift, SnapshotComparison, column_drift
from training.validation.results import CheckResult, Status

CODE: Final = "drift.exceeded"
WORDS: Final[Mapping[str, str]] = {"previous": "the previous snapshot", "champion": "the champion's training data"}


def in_words(names: Sequence[str]) -> str:
    """Say what an earlier snapshot is, by the names of `validate.drift.against`."""
    return " and ".join(WORDS[name] for name in names)


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """An earlier snapshot to compare with."""

    names: tuple[str, ...]
    """What it is: `previous`, `champion`, or both."""
    as_of: Instant
    tables: Tables
    runs: Sequence[JsonObject] = ()
    """Up to that snapshot's, oldest first."""

    @property
    def words(self) -> str:
        return in_words(self.names)


def compare(
    earlier: Earlier,
    comparison: SnapshotComparison,
    table: str,
    counts: Mapping[str, Counts],
    named: Mapping[str, Mapping[str, int]],
    rules: Drift,
) -> list[CheckResult]:
    """Compare a table; add its columns to `comparison`, and return a check for each limit's excess, and one for the others together.

    Args:
        named: column to rows of the values that the earlier snapshots have.
    """
    before = earlier.tables.get(table, {})
    found: dict[str, ColumnDrift] = {}
    for name in counts.keys() & before.keys():
        drift = column_drift(before[name], counts[name], named.get(name, {}))
        if drift is not None:
            found[name] = drift
    comparison.tables[table] = {name: found[name] for name in counts if name in found}
    judged = {name: drift for name, drift in comparison.tables[table].items() if limits_of(rules, name).action != "off"}
    exceeded = {name: list(_exceeded(drift, limits_of(rules, name))) for name, drift in judged.items()}
    results = [_check(earlier, table, name, excess, limits_of(rules, name)) for name, excess in exceeded.items() if excess]
    quiet = {name: drift for name, drift in judged.items() if not exceeded[name]}
    return [*results, _passed(earlier, table, quiet)] if quiet else results


def limits_of(drift: Drift, column: str) -> DriftLimits:
    """Return the limits of a column, those of the section where it has none of its own; `action` is set."""
    own = drift.columns.get(column, DriftLimits())
    return DriftLimits(
        action=own.action or drift.action,
        psi=own.psi or drift.psi,
        jensen_shannon=own.jensen_shannon or drift.jensen_shannon,
        kolmogorov_smirnov=own.kolmogorov_smirnov or drift.kolmogorov_smirnov,
        new_categories=own.new_categories or drift.new_categories,
    )


def _exceeded(drift: ColumnDrift, limits: DriftLimits) -> Iterator[tuple[str, str]]:
    """Yield what was observed and what is allowed for each limit that is exceeded."""
    if limits.psi is not None and drift.psi > limits.psi + drift.psi_of_chance:
        chance = f", and {figure(drift.psi_of_chance)} by chance with so few rows" if drift.psi_of_chance >= 0.01 else ""
        yield f"PSI {figure(drift.psi)}", f"PSI at most {figure(limits.psi)}{chance}"
    if limits.jensen_shannon is not None and drift.jensen_shannon > limits.jensen_shannon:
        yield f"Jensen-Shannon distance {figure(drift.jensen_shannon)}", f"at most {figure(limits.jensen_shannon)}"
    distance = drift.kolmogorov_smirnov
    if limits.kolmogorov_smirnov is not None and distance is not None and distance > limits.kolmogorov_smirnov:
        yield f"Kolmogorov-Smirnov {figure(distance)}", f"at most {figure(limits.kolmogorov_smirnov)}"
    new = drift.new_categories
    if limits.new_categories is not None and new is not None and new > limits.new_categories:
        yield f"{new:.1%} of the rows in new categories", f"at most {limits.new_categories:.1%}"


def _check(earlier: Earlier, table: str, column: str, exceeded: list[tuple[str, str]], limits: DriftLimits) -> CheckResult:
    status: Status = "failed" if limits.action == "fail" else "warned"
    return CheckResult(
        code=CODE,
        check=f"drift against {earlier.words}",
        table=table,
        column=column,
        status=status,
        observed="; ".join(observed for observed, _ in exceeded),
        allowed="; ".join(allowed for _, allowed in exceeded),
        detail=f"as of {instant_text(earlier.as_of)}" + ("; a person has to approve the candidate" if limits.action == "approve" else ""),
        asks=limits.action == "approve",
    )


def _passed(earlier: Earlier, table: str, columns: Mapping[str, ColumnDrift]) -> CheckResult:
    name, drift = max(columns.items(), key=lambda item: item[1].psi)
    return CheckResult(
        code=CODE,
        check=f"drift against {earlier.words}",
        table=table,
        status="passed",
        observed=f"{len(columns)} columns within their limits, the largest PSI {figure(drift.psi)} of {name}",
        allowed="validate.drift",
        detail=f"as of {instant_text(earlier.as_of)}",
    )
