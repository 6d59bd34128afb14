"""Candidates, and what is decided about them: the parts that the ledger's tests put together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from training.contracts import Instant, instant_text
from training.errors import NightshiftError
from training.registry.ledger.decisions import record_candidate
from training.registry.ledger.ledger import AliasHolder, Entry, Ledger
from training.registry.ledger.reasons import Reason

FINE = (Reason(gate="improvement", passed=True, words="better by 0.01"),)
ASKING = (Reason(gate="fairness", passed=False, words="gap 0.2 is above 0.1"),)


def candidate(number: int) -> AliasHolder:
    """Version `number`, semantic version 1.<number>.0, weights `w<number>`."""
    return AliasHolder(
        version=str(number),
        semantic_version=f"1.{number}.0",
        weights_digest=f"w{number}",
        model_uri=f"store:///models/{number}",
        as_of=datetime(2013, 1, number % 100 % 28 + 1, tzinfo=UTC),
        bounds={"test": ["2013-01-01", "2013-01-02"]},
    )


def decide_on(
    ledger: Ledger,
    number: int,
    outcome: str = "accepted",
    *,
    model: str = "m",
    canary: bool = False,
    revision: int | None = None,
    evidence: Mapping[str, Any] | None = None,
    as_of: Instant | None = None,
    reasons: Sequence[Reason] | None = None,
) -> Entry:
    """Record a decision about version `number`, measured against the present standing, or that of `revision`."""
    measured = ledger.standing(model).revision if revision is None else revision
    holder = replace(candidate(number), model_uri=(evidence or {}).get("model_uri", candidate(number).model_uri))
    holder = holder if as_of is None else replace(holder, as_of=as_of)
    return record_candidate(
        ledger,
        holder,
        model=model,
        outcome=outcome,
        reasons=reasons or (ASKING if outcome == "needs_approval" else FINE),
        evidence={
            "evaluation_digest": f"e{number}",
            "weights_digest": f"w{number}",
            "as_of": instant_text(holder.as_of),
            "revision": measured,
            "has_canary": canary,
            **(evidence or {}),
        },
        decided_by=f"night/{number}",
    )


def seats(ledger: Ledger, model: str = "m") -> tuple[str | None, str | None]:
    """Return the versions of champion and canary."""
    standing = ledger.standing(model)
    return (
        None if standing.champion is None else standing.champion.version,
        None if standing.canary is None else standing.canary.version,
    )


def rows(ledger: Ledger, model: str = "m") -> list[tuple[str, str, str]]:
    """Return version, outcome and action of each decision."""
    return [(entry.version, entry.outcome, entry.action) for entry in ledger.history(model)]


def at_once(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run all in threads of their own, from one barrier on; return each one's result, or its error."""
    barrier, results = threading.Barrier(len(works)), [None] * len(works)

    def run(place: int) -> None:
        barrier.wait()
        try:
            results[place] = works[place]()
        except NightshiftError as err:
            results[place] = err
        except BaseException as err:
            results[place] = AssertionError(f"neither answered nor refused: {err!r}")

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    faults = [result for result in results if isinstance(result, AssertionError)]
    assert faults == []
    return results
