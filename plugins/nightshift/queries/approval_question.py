"""What the question about a candidate is called, and which answers it has: for the task that asks, and for the REST API."""

from __future__ import annotations

from typing import Final

from training.contracts import JsonObject

ASK: Final = "ask"
"""Task of the DAG `<pipeline>.approval`."""
APPROVE: Final = "Approve"
DECLINE: Final = "Decline"
OPTION_OF: Final = {"approve": APPROVE, "decline": DECLINE}
SHOWN_DIGITS: Final = 12


def subject_words(evidence: JsonObject) -> str:
    """Return the words of a question that name the candidate, and no other one of the model.

    Args:
        evidence: of the request.
    """
    weights, evaluation = (str(evidence[name])[:SHOWN_DIGITS] for name in ("weights_digest", "evaluation_digest"))
    return f"weights `{weights}`, evaluation `{evaluation}`"
