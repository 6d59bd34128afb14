"""Writes the error of an attempt whose process hangs: started by its guard, which knows what it was at.

python -m training.runtime.hung < FACTS.json
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TypedDict

from training.errors import HungError, NightshiftError
from training.process.liveness import START_LIMIT
from training.runtime.runner import REQUEST_PATTERN, write_error
from training.store import Store

logger = logging.getLogger(__name__)


class Facts(TypedDict):
    """What the guard knows (`training.process.liveness_guard`)."""

    request: str
    """Its URI."""
    rank: int | str
    kind: str
    """Of the phase, as `timeout` in a YAML names it."""
    name: str
    limit_seconds: float
    seconds: float
    """Since the last movement."""
    stacks: str


def report(facts: Facts) -> bool:
    """Write `_ERROR.json`; say whether this was the first error of the attempt."""
    match = REQUEST_PATTERN.fullmatch(facts["request"])
    if match is None:
        raise ValueError(f"not a request URI: {facts['request']!r}")
    kind, part = facts["kind"], f" ({facts['name']})" if facts["name"] else ""
    setting = f"timeout.{kind} in the pipeline's YAML"
    if kind == "start":
        # The guard does not know whether the process has read the spec.
        setting += f", or {START_LIMIT.name} where the process had not read it yet"
    error = HungError(
        "stage.hung",
        f"rank {facts['rank']}: no progress in {kind}{part} for {facts['seconds']:.0f} s, limit {facts['limit_seconds']:.0f} s",
        hint=f"the stacks are in the log; if the work is that slow, raise {setting}",
    )
    address = Store(match["root"]).address(*match.groups()[1:4])
    return write_error(address, match.groups()[4], error, facts["stacks"], rank=int(facts["rank"]))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    try:
        report(json.load(sys.stdin))
    except NightshiftError as err:
        logger.error("the error could not be written: %s", err)
