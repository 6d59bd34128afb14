"""Models, their versions and the decisions about them, from the ledger."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from nightshift.queries.schemas import DecisionDetails, DecisionSummary, GateReason, Holder, Model, ModelDetails, ModelVersion
from training.errors import DeniedError, shown
from training.registry.ledger.decisions import weights_named
from training.registry.ledger.ledger import AliasHolder, Entry, Ledger
from training.registry.ledger.overview import ModelOverview, overview_of, overviews, pipelines
from training.registry.ledger.retraining import retraining_lines

HOLDER_FIELDS: Final = tuple(Holder.model_fields)
May = Callable[[str], bool]
"""Whether a pipeline may be read."""
ReadableAmong = Callable[[Collection[str]], set[str]]
"""Which of these pipelines may be read."""


def models(ledger: Ledger, readable_among: ReadableAmong, *, first: str | None = None, limit: int | None = None) -> list[Model]:
    """Return the models of readable pipelines, by name.

    Args:
        first: name to begin with; None: the first one.
        limit: how many at most; None: all.
    """
    known = pipelines(ledger)
    return [_model(each) for each in overviews(ledger, first=first, limit=limit, hidden=known - readable_among(known))]


def model(ledger: Ledger, name: str, may: May) -> ModelDetails:
    """Return one model.

    Raises:
        DeniedError: `model.unknown`, also where one of its pipelines may not be read.
    """
    found = overview_of(ledger, name)
    if found is None or not _is_readable(found.pipelines, may):
        raise unknown_model(name)
    return ModelDetails(**_model(found).model_dump(), retraining=retraining_lines(ledger, name))


def decisions(ledger: Ledger, name: str, may: May, *, first: str | None = None, limit: int | None = None) -> list[DecisionSummary]:
    """Return the decisions about a model, the newest first.

    Args:
        first: key of the decision to begin with; None: the newest one.
        limit: how many at most; None: all.

    Raises:
        DeniedError: `model.unknown`.
    """
    if not _is_readable(ledger.pipelines_of(name), may):
        raise unknown_model(name)
    return [summary_of(entry) for entry in ledger.newest_outlined(name, first=first, limit=limit)]


def decision(ledger: Ledger, name: str, key: str, may: May) -> DecisionDetails:
    """Return one decision with its evidence.

    Raises:
        DeniedError: `model.unknown`; `decision.unknown`.
    """
    if not _is_readable(ledger.pipelines_of(name), may):
        raise unknown_model(name)
    entry = ledger.decision(name, key)
    if entry is None:
        raise DeniedError("decision.unknown", f"there is no decision {shown(key)} about model {name}", hint="list the model's decisions")
    return DecisionDetails(**summary_of(entry).model_dump(), evidence=dict(entry.evidence))


def version(ledger: Ledger, name: str, wanted: str, may: May) -> ModelVersion:
    """Return a version, by its semantic version, its weights' digest, or its number in MLflow.

    Raises:
        DeniedError: `model.unknown`; `version.unknown`; `version.ambiguous`.
    """
    if not _is_readable(ledger.pipelines_of(name), may):
        raise unknown_model(name)
    history = ledger.outline(name)
    weights = weights_named(ledger, history, wanted, name)
    about = [summary_of(entry) for entry in reversed(history) if entry.weights_digest == weights]
    place = ledger.registrations(name).get(weights)
    return ModelVersion(
        model=name,
        version=about[0].version if place is None else place.number,
        semantic_version=about[0].semantic_version,
        weights_digest=weights,
        alias=ledger.standing(name).alias_of(weights),
        decisions=about,
    )


def unknown_model(name: str) -> DeniedError:
    """Return the error for a model that is not there, or may not be read: the two look alike."""
    return DeniedError("model.unknown", f"there is no model {shown(name)}", hint="list the models")


def summary_of(entry: Entry) -> DecisionSummary:
    """Return a decision without its evidence."""
    return DecisionSummary(
        key=entry.key,
        model=entry.model,
        weights_digest=entry.weights_digest,
        version=entry.version,
        semantic_version=entry.semantic_version,
        action=entry.action,
        outcome=entry.outcome,
        reasons=[GateReason.model_validate(reason.to_json()) for reason in entry.reasons],
        decided_at=entry.decided_at,
        decided_by=entry.decided_by,
        weights_deleted_at=entry.deleted_at,
    )


def _is_readable(pipelines: Sequence[str], may: May) -> bool:
    # A model of several pipelines is compared across them: its record tells of all of them.
    return bool(pipelines) and all(may(pipeline) for pipeline in pipelines)


def _model(found: ModelOverview) -> Model:
    return Model(
        name=found.model,
        pipelines=list(found.pipelines),
        champion=_holder(found.champion),
        canary=_holder(found.canary),
        revision=found.revision,
        awaiting_approval=[] if found.request is None else [found.request],
        not_in_mlflow=found.num_unmirrored,
        shows_gains_above=found.shows_gains_above,
    )


def _holder(holder: AliasHolder | None) -> Holder | None:
    return None if holder is None else Holder(**{name: value for name, value in holder.to_json().items() if name in HOLDER_FIELDS})
