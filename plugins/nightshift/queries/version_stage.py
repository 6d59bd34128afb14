"""The stage of a model's version: what an order to change it may do, which goes through gates and ledger and never around them."""

from __future__ import annotations

from typing import Final, Literal

from nightshift.queries.models import May, version
from nightshift.queries.rollback_runs import start_rollback
from nightshift.queries.schemas import ModelVersion, StageOrder
from training.errors import DeniedError
from training.registry.ledger.decisions import CHAMPIONS
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.rollback_orders import RollbackOrder

StageName = Literal["champion", "canary", "archived"]
SYNONYMS: Final[dict[str, StageName]] = {"production": "champion", "staging": "canary"}
"""Names that other registries have."""


def order_stage(ledger: Ledger, model: str, wanted: str, stage: StageName, may: May, *, by: str, reason: str) -> StageOrder:
    """Carry out what can be: an earlier champion becomes champion again, by a run of the DAG `rollback`; what is so already stays.

    Args:
        wanted: semantic version, digest or number.
        reason: stored in the ledger.

    Raises:
        DeniedError: `model.unknown`, `version.unknown`, `version.ambiguous`; `stage.approval`, it waits for a person; `stage.transition`,
            only gates can do it.
    """
    found = version(ledger, model, wanted, may)
    done = found.alias == stage or (stage == "archived" and found.alias is None)
    if done:
        return StageOrder(model=model, version=found.version, stage=stage, is_done=True, run=None, run_state=None)
    if stage != "champion":
        raise _refused(found, stage, "a canary is made by the gates, and a version leaves its alias when another one takes it")
    if any(entry.weights_digest == found.weights_digest for entry in ledger.open_requests(model)):
        message = f"version {found.semantic_version} of {model} waits for an approval"
        raise DeniedError(
            "stage.approval", message, hint="answer it: PUT …/approval, `nightshift approve`, or Required actions of the .approval DAG"
        )
    if not any(decision.action in CHAMPIONS for decision in found.decisions):
        raise _refused(found, stage, "it was never champion, and a rollback goes around no gate")
    # The same order is one run for as long as nothing else moves the model; that begins again where it failed.
    revision = ledger.standing(model).revision
    order = RollbackOrder(model=model, weights_digest=found.weights_digest, revision=revision, reason=reason, ordered_by=by)
    run_id = f"api__{order.order_id}"
    state = start_rollback(run_id, order)
    return StageOrder(model=model, version=found.version, stage=stage, is_done=False, run=f"rollback:{run_id}", run_state=state)


def _refused(found: ModelVersion, stage: str, why: str) -> DeniedError:
    last = found.decisions[0]
    message = f"version {found.semantic_version} of {found.model} ({last.outcome}) cannot be made {stage}: {why}"
    if stage == "archived":
        return DeniedError("stage.transition", message, hint="make another version champion: it takes the alias from this one")
    return DeniedError("stage.transition", message, hint="train and evaluate it again: a run's gates decide")
