"""The check of labels that are not known yet: a split that lost many of its rows is a biased choice of them."""

from __future__ import annotations

from typing import Final

from training.data.snapshot.label_delay import AFTER_TEST, ALL_SPLITS, IN_A_GAP, Counts, UnknownLabels, share_text
from training.validation.results import CheckResult, Status
from training.validation.snapshot_view import TableView

WARN_SHARE: Final = 0.1
"""Share of a split's rows without a known label above which the check warns."""
REMEDY: Final = (
    "end the test split where labels are complete (data.split.end: labels_complete, or a duration), or correct data.label.known_at"
)


def check_unknown_labels(view: TableView, meta: UnknownLabels | None, limit: float | None) -> list[CheckResult]:
    """`label.unknown`: in each split, at most this share of the window's rows has no known label at `as_of`; without a limit it warns.

    Args:
        meta: `unknown_labels` of the snapshot, None where the label has no `known_at`.
        limit: `validate.unknown_labels`.
    """
    if meta is None:
        return []
    found = [
        _check(view, name, counts, limit)
        for name, counts in meta["splits"].items()
        if name not in (AFTER_TEST, IN_A_GAP) and counts["rows"]
    ]
    left_out = meta["splits"].get(AFTER_TEST)
    if left_out is not None:
        found.append(
            CheckResult(
                code="label.unknown",
                check="rows after the test split, left out",
                table=view.name,
                column=view.contract.known_at or "",
                status="passed",
                observed=f"{left_out['rows']:,} rows, {share_text(left_out)} without a known label",
                allowed="any number",
                detail=f"the test split ends at {meta['bounds']['test'][1]}",
            )
        )
    return found


def _check(view: TableView, split: str, counts: Counts, limit: float | None) -> CheckResult:
    share = counts["unknown"] / counts["rows"]
    status: Status = "passed"
    if limit is not None and share > limit:
        status = "failed"
    elif limit is None and share > WARN_SHARE:
        status = "warned"
    return CheckResult(
        code="label.unknown",
        check=f"rows of {split if split == ALL_SPLITS else f'the {split} split'} without a known label",
        table=view.name,
        column=view.contract.known_at or "",
        status=status,
        observed=share_text(counts),
        allowed=f"at most {WARN_SHARE if limit is None else limit:.0%}",
        detail="" if status == "passed" else REMEDY,
    )
