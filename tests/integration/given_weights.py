"""A model from outside: weights that one pipeline trained are given to another one as a file."""

from __future__ import annotations

from collections.abc import Callable

from nightshift.client import client_of
from tests.integration.installation import Installation

AS_OF = "2026-02-01T02:00:00+00:00"
PLACE = "outside/weights.safetensors"
"""Below the shop's folder or bucket, which `SHOP_URI` names."""


def check_given_weights_are_judged_as_trained_ones(installation: Installation, put: Callable[[str, bytes], None]) -> None:
    """Train, register the weights for a pipeline of equal data, and compare the two decisions.

    Args:
        put: writes a file below `SHOP_URI`.
    """
    giver, taker = (installation.add_pipeline(name) for name in ("gives_weights", "takes_weights"))
    trained = installation.trigger(giver, {"as_of": AS_OF})
    assert installation.wait(giver, trained, timeout_seconds=1500) == "success", installation.why(giver, trained)
    store = installation.store
    manifest = store.manifests.get(installation.result(giver, trained, "train").artifact_uri)
    put(PLACE, store.manifests.read(manifest, "weights.safetensors"))

    installation.unpause(taker)
    with client_of(None, installation.environment) as client:
        started = client.register(taker, f"${{SHOP_URI}}/{PLACE}", "safetensors", as_of=AS_OF, version="7.1.0", notes="by the agency")
    assert installation.wait(taker, started.run_id, timeout_seconds=1500) == "success", installation.why(taker, started.run_id)
    (given,), (own,) = (installation.ledger.history(name) for name in (taker, giver))
    assert "registered" in [reason.gate for reason in given.reasons]
    assert (given.outcome, given.action, given.version) == (own.outcome, own.action, own.version)
    scores = [
        installation.result(name, run, "evaluate").scalars["candidate_ndcg@10"] for name, run in ((taker, started.run_id), (giver, trained))
    ]
    assert scores[0] == scores[1]
