"""A reason of a decision: what a gate found, or what a person or the ledger says; how it is kept, and how all pages and commands write it.

A whole decision is one line: `rejected: ndcg@10 +0.1 % [-0.8 %, +1.0 %], required > 0.5 %; version 7 of search_ranking`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict

from training.contracts import JsonObject
from training.format import change, figure, finite, share_change
from training.sanitizing import for_markdown
from training.spec.descriptors.gate_descriptor import Severity
from training.spec.descriptors.metrics import is_lower_better

if TYPE_CHECKING:
    # The ledger opens the database, which an evaluation has no Secret for.
    from training.registry.ledger.ledger import Entry

COMPARING: Final = ("improvement", "significance")
"""Gates that the line of the comparison stands for."""
DECISIVE: Final = ("minimum", "maximum", "baseline", "tolerance")
"""Gates whose words say enough where nothing failed and there was no candidate's comparison."""
SIMULATED: Final = "simulated"
"""Of a look at a canary whose time is not the clock's."""
LEADING: Final = ("standing", SIMULATED)
"""What the ledger itself says, and what everything else is to be read by: it comes first."""
VERDICTS: Final = {"warn": "warn", "approve": "ask"}
TABLE_HEAD: Final = ("| gate | verdict | reason |", "| --- | --- | --- |")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """The outcome of one gate, or what a person or the ledger says."""

    gate: str
    passed: bool
    words: str
    severity: Severity | None = "fail"
    """What it does where it is not passed; None: it is no gate."""
    numbers: JsonObject = field(default_factory=dict)
    """What it judged by."""

    @classmethod
    def said(cls, gate: str, words: str, *, passed: bool = True) -> Self:
        """Return what is no gate, as a person's answer: it has neither severity nor numbers."""
        return cls(gate=gate, passed=passed, words=words, severity=None)

    @property
    def verdict(self) -> str:
        """`pass`; or what a gate that is not passed does: `FAIL` rejects, `ask` needs a person, `warn` changes nothing."""
        return "pass" if self.passed else VERDICTS.get(self.severity or "fail", "FAIL")

    def to_json(self) -> JsonObject:
        """Return it as the ledger keeps it."""
        of_gate = {} if self.severity is None else {"severity": self.severity, "numbers": dict(self.numbers)}
        return {"gate": self.gate, "passed": self.passed, "words": self.words, **of_gate}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return cls(**{"severity": None, **values})


class ApprovedFinding(TypedDict):
    """What a person approved about a canary: a gate that was not passed."""

    gate: str
    words: str
    numbers: JsonObject
    by: str


def all_words(reasons: Sequence[Reason]) -> str:
    """Return the words of all reasons in one line."""
    return "; ".join(reason.words for reason in reasons)


def reason_line(reason: Reason, escape: Callable[[str], str] = str) -> str:
    """Return a reason for the terminal and the log: `FAIL minimum: auc 0.61, required >= 0.7`."""
    return f"{reason.verdict} {escape(reason.gate)}: {escape(reason.words)}"


def reason_table(reasons: Sequence[Reason]) -> list[str]:
    """Return the lines of a Markdown table, for an approval's question and MLflow's description of a version."""
    return [*TABLE_HEAD, *(f"| {for_markdown(one.gate)} | {one.verdict} | {for_markdown(one.words)} |" for one in reasons)]


def headline(entry: Entry, reasons: Sequence[Reason] | None = None) -> str:
    """Return what became of a version and by which numbers; where nothing moved, the outcome is named instead of the action.

    The gain over the champion is a percentage of the champion's metric where the spec's threshold is one, else in the metric's unit; behind
    it is its interval. Gates that are not passed follow in their own words.

    Args:
        reasons: those to name; None: all of the entry.
    """
    what = (entry.outcome if entry.action == "recorded" else entry.action).replace("_", " ")
    version = f"version {entry.semantic_version or entry.version} of {entry.model}"
    return " ".join(f"{what}: {'; '.join([*_grounds(entry.reasons if reasons is None else reasons), version])}".split())


def _grounds(reasons: Sequence[Reason]) -> list[str]:
    compared = comparison_line(reasons)
    shown = COMPARING if compared else ()
    first = [reason.words for reason in reasons if reason.gate in LEADING]
    # A warning decides nothing, so it comes last.
    failed = [
        f"warning: {reason.words}" if reason.verdict == "warn" else reason.words
        for reason in sorted(reasons, key=lambda reason: reason.verdict == "warn")
        if not reason.passed and reason.gate not in (*shown, *LEADING, "approval")
    ]
    # The last of them: the answer, where the rule that asked has one.
    answers = [reason.words for reason in reasons if reason.gate == "approval"][-1:]
    passed = [] if compared or failed else [reason.words for reason in reasons if reason.gate in DECISIVE]
    found = [*first, *([compared] if compared else []), *failed, *answers, *passed]
    return found or [reason.words for reason in reasons]


def comparison_line(reasons: Sequence[Reason]) -> str:
    """Return the gain over the champion with its interval and what is required; empty where nothing was compared."""
    by_gate = {reason.gate: reason for reason in reasons}
    improvement, significance = by_gate.get("improvement"), by_gate.get("significance")
    numbers = {} if improvement is None else improvement.numbers
    metric, gain, asked = str(numbers.get("metric", "")), finite(numbers.get("gain")), finite(numbers.get("asked"))
    if improvement is None or not metric or gain is None or asked is None:
        return ""
    scale = abs(finite(numbers.get("champion")) or 0.0) if numbers.get("relative") is not None else 0.0
    name = f"{metric} gain" if is_lower_better(metric) else metric
    measured = {} if significance is None else significance.numbers
    ends = [finite(measured.get(end)) for end in ("low", "high")]
    interval = f" [{', '.join('unbounded' if end is None else _gain(end, scale) for end in ends)}]" if significance is not None else ""
    line = f"{name} {_gain(gain, scale, near=asked)}{interval}, required > {_gain(asked, scale, near=gain).removeprefix('+')}"
    is_unsure = significance is not None and not significance.passed and improvement.passed
    return f"{line} and lower end > 0" if is_unsure else line


def shown_gain(reasons: Sequence[Reason]) -> float | None:
    """Return above which gain over the champion the interval's lower end would be above 0: half of its width. None: there is none."""
    ends = [finite(reason.numbers.get(end)) for reason in reasons if reason.gate == "significance" for end in ("low", "high")]
    return None if len(ends) != 2 or ends[0] is None or ends[1] is None else (ends[1] - ends[0]) / 2


def _gain(value: float, scale: float, *, near: float | None = None) -> str:
    """Return a difference of metrics: a percentage of `scale`, or as it is where that is 0.

    Args:
        near: a value that it is read beside: there are digits enough to tell them apart.
    """
    if scale == 0:
        return change(value) if value else figure(value)
    return share_change(value / scale, beside=None if near is None else near / scale)
