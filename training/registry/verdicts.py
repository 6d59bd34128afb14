"""How the outcome of one gate is written, on the terminal, in the log and in an approval's question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_VERDICTS: Final = {"warn": "warn", "approve": "ask"}


def verdict(reason: Mapping[str, Any]) -> str:
    """Return `pass`; or what a gate that is not passed does: `FAIL` rejects, `ask` needs a person, `warn` changes nothing."""
    return "pass" if reason["passed"] else _VERDICTS.get(str(reason.get("severity", "fail")), "FAIL")
