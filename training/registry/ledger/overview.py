"""The models of a ledger as lists show them: a part of them by name, in one query whatever their history. SQLAlchemy only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, and_, exists, func, select
from sqlalchemy.orm import aliased

from training.database.connect import reading
from training.database.schema import LedgerDecisionRow, ModelPipelineRow, ModelStandingRow, RegisteredVersionRow
from training.registry.ledger.entries import BY_GATES, DIGEST_CHARS, AliasHolder
from training.registry.ledger.ledger import Ledger, holder_now
from training.registry.ledger.reasons import Reason, shown_gain
from training.registry.ledger.rows import IS_REQUEST


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOverview:
    """A model's aliases, and what is open about it."""

    model: str
    pipelines: tuple[str, ...]
    """That made its versions, sorted; at least one."""
    champion: AliasHolder | None
    canary: AliasHolder | None
    revision: int
    request: str | None
    """Name of the version that waits for an approval. A model has one open request at most: the next one, and every move, ends it."""
    num_unmirrored: int
    """Decisions that MLflow does not show."""
    shows_gains_above: float | None
    """Half of the width of the interval of the gain over the champion, in the gates' newest decision; None: it has none with two ends."""


def pipelines(ledger: Ledger) -> set[str]:
    """Return the pipelines that made a version of any model.

    Raises:
        UnavailableError: `database.unavailable`.
    """
    with reading(ledger.engine) as session:
        return set(session.scalars(select(ModelPipelineRow.pipeline).distinct()))


def overviews(ledger: Ledger, *, first: str | None = None, limit: int | None = None, hidden: Collection[str] = ()) -> list[ModelOverview]:
    """Return the models that a pipeline has made a version of, by name.

    Args:
        first: name to begin with; None: the first one.
        limit: how many at most; None: all.
        hidden: pipelines whose models are left out. A model of several pipelines is compared across them: its record tells of all.

    Raises:
        UnavailableError: `database.unavailable`.
    """
    made = exists().where(ModelPipelineRow.model == ModelStandingRow.model)
    asked = _overviews().where(made).order_by(ModelStandingRow.model).limit(limit)
    if first is not None:
        asked = asked.where(ModelStandingRow.model >= first)
    if hidden:
        asked = asked.where(~made.where(ModelPipelineRow.pipeline.in_(hidden)))
    with reading(ledger.engine) as session:
        return [_overview(row) for row in session.execute(asked)]


def overview_of(ledger: Ledger, model: str) -> ModelOverview | None:
    """Return one model, None where no pipeline has made a version of it; raises as `overviews`."""
    found = overviews(ledger, first=model, limit=1)
    return found[0] if found and found[0].model == model else None


def _overviews() -> Select[Any]:
    """Return the query of all models: each table by an index, the newest request alone of the decisions."""
    champion, canary = aliased(RegisteredVersionRow), aliased(RegisteredVersionRow)
    request, ending = aliased(LedgerDecisionRow), aliased(LedgerDecisionRow)
    of_model = LedgerDecisionRow.model == ModelStandingRow.model
    newest = select(LedgerDecisionRow.id).where(of_model, IS_REQUEST).order_by(LedgerDecisionRow.id.desc()).limit(1)
    is_ended = exists().where(ending.model == request.model, ending.request_key == request.decision_key)
    by_gates = LedgerDecisionRow.outcome.in_(BY_GATES)
    judged = select(LedgerDecisionRow.reasons).where(of_model, by_gates).order_by(LedgerDecisionRow.id.desc()).limit(1)
    made = select(func.aggregate_strings(ModelPipelineRow.pipeline, ",")).where(ModelPipelineRow.model == ModelStandingRow.model)
    asked = select(
        ModelStandingRow,
        champion,
        canary,
        made.scalar_subquery().label("pipelines"),
        request.semantic_version,
        request.weights_digest,
        judged.scalar_subquery(),
    )
    for alias, column in ((champion, ModelStandingRow.champion), (canary, ModelStandingRow.canary)):
        held = and_(alias.model == ModelStandingRow.model, alias.weights_digest == column["weights_digest"].as_string())
        asked = asked.outerjoin(alias, held)
    return asked.outerjoin(request, and_(request.id == newest.scalar_subquery(), ~is_ended))


def _overview(row: Sequence[Any]) -> ModelOverview:
    standing, champion, canary, made, semantic_version, weights_digest, judged = row
    return ModelOverview(
        model=standing.model,
        pipelines=tuple(sorted(made.split(","))),
        champion=None if standing.champion is None else holder_now(standing.champion, champion),
        canary=None if standing.canary is None else holder_now(standing.canary, canary),
        revision=standing.revision,
        request=None if weights_digest is None else semantic_version or weights_digest[:DIGEST_CHARS],
        num_unmirrored=standing.decisions - standing.mirrored_decisions,
        shows_gains_above=shown_gain([Reason.from_json(reason) for reason in judged or ()]),
    )
