"""How the ledger keeps the outcome of one gate, and how it is written on the terminal, in the log and in an approval's question."""

from __future__ import annotations

from typing import Final, TypedDict

from training.contracts import JsonObject

_VERDICTS: Final = {"warn": "warn", "approve": "ask"}


class ReasonJson(TypedDict, total=False):
    """A gate's reason. What is no gate, as a person's answer, has neither severity nor numbers."""

    gate: str
    passed: bool
    words: str
    severity: str
    numbers: JsonObject


class ApprovedFinding(TypedDict):
    """What a person approved about a canary: a gate that was not passed."""

    gate: str
    words: str
    numbers: JsonObject
    by: str


def verdict(reason: ReasonJson) -> str:
    """Return `pass`; or what a gate that is not passed does: `FAIL` rejects, `ask` needs a person, `warn` changes nothing."""
    return "pass" if reason["passed"] else _VERDICTS.get(reason.get("severity", "fail"), "FAIL")
