"""Airflow's assets: one for each alias of each model, so that serving DAGs start when it moves.

    from airflow.sdk import DAG, Asset
    DAG("serve_flight_delay", schedule=[Asset(name="flight_delay@champion", uri="nightshift://models/flight_delay/champion")])

Each event carries model, version, semantic version, weights' digest, action and decider.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow.sdk import Asset, AssetAlias

from training.contracts import Scalar, StageResult

CHAMPION: Final = "champion"
CANARY: Final = "canary"
REQUESTED: Final = "requested"
"""No alias of the registry: a candidate waits for a person."""

ALIAS_OF_ACTION: Final[Mapping[str, str]] = {"promoted": CHAMPION, "rolled_back": CHAMPION, "canary": CANARY}
EXTRA: Final = ("model", "version", "semantic_version", "weights_digest", "action", "decision", "decided_by", "key")


def model_asset(model: str, alias: str) -> Asset:
    """Return the asset of a model's alias."""
    return Asset(name=f"{model}@{alias}", uri=f"nightshift://models/{model}/{alias}", group="nightshift")


DECISIONS: Final = AssetAlias(name="nightshift-decisions", group="nightshift")
"""The outlet of tasks that decide: which asset has an event is known when they are done."""


def emit(context: Any, found: StageResult) -> str | None:
    """Add the event of a decision to the task's; return the alias that moved, None where none did."""
    scalars: Mapping[str, Scalar] = found.scalars
    alias = REQUESTED if scalars.get("decision") == "needs_approval" else ALIAS_OF_ACTION.get(str(scalars.get("action")))
    if alias is None:
        return None
    model = str(scalars["model"])
    extra = {name: scalars.get(name) for name in EXTRA}
    context["outlet_events"][DECISIONS].add(model_asset(model, alias), extra=extra)
    return alias
