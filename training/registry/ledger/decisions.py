"""What a decision does to the standing: a candidate's, an answer to a request for approval, a canary's, an order to roll back.

SQLAlchemy only: operators decide too. MLflow follows by `training.registry.mlflow.mirror`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Protocol, TypeVar

from training.contracts import JsonObject
from training.errors import DeniedError, shown
from training.registry.ledger.entries import DIGEST_CHARS
from training.registry.ledger.ledger import REQUEST, AliasHolder, Entry, Ledger, ModelAliases, Move, check_as_of, decision_key, name_of
from training.registry.ledger.reasons import ApprovedFinding, Reason

HOLDER: Final = "holder"
"""Key of an entry's evidence: the version that it is about, as an `AliasHolder`."""
MAX_NAMED_VERSIONS: Final = 10
VERSION_NAMES: Final = "semantic version, first 12 or more digits of the weights' digest, or number in MLflow"
"""What `weights_named` takes, for the help of commands."""
CHAMPIONS: Final = frozenset({"promoted", "rolled_back"})
"""Actions that make a champion."""


class _Decision(Protocol):
    @property
    def action(self) -> str: ...

    @property
    def weights_digest(self) -> str: ...


Decided = TypeVar("Decided", bound=_Decision)


def record_candidate(
    ledger: Ledger,
    holder: AliasHolder,
    *,
    model: str,
    outcome: str,
    reasons: Sequence[Reason],
    evidence: JsonObject,
    decided_by: str,
) -> Entry:
    """Record what the gates say of a candidate.

    An accepted one becomes champion, or canary where the spec has canaries and there is a champion.

    Args:
        evidence: `evaluation_digest`, `revision` (of the standing that it was measured against), `has_canary`, and all that a reader wants.

    Raises:
        DeniedError: `promotion.conflict`, the standing moved since: also where an approval is required, since it could not be given;
            `as_of.future`.
    """
    key = decision_key(model, holder.weights_digest, str(evidence["evaluation_digest"]))
    entry = Entry(
        model=model,
        key=key,
        weights_digest=holder.weights_digest,
        version=holder.version,
        semantic_version=holder.semantic_version,
        action="recorded",
        outcome=outcome,
        reasons=reasons,
        evidence={**evidence, HOLDER: replace(holder, decision_key=key).to_json()},
        decided_by=decided_by,
    )
    standing = ledger.standing(model)
    alias = standing.alias_of(holder.weights_digest)
    if alias is not None and outcome in ("accepted", REQUEST) and ledger.decision(model, key) is None:
        # Measured once more, by a forced run: it has what it won.
        words = f"the candidate is the {alias}: same weights, nothing moves"
        return ledger.record(replace(entry, outcome="accepted", reasons=[*reasons, Reason.said("standing", words)]))
    if outcome == REQUEST:
        check_as_of(holder, model)
        newer = [request for request in ledger.open_requests(model) if _is_later(request, holder)]
        if newer:
            words = f"version {name_of(newer[-1])}, of a later run, waits for an answer: nothing goes backwards"
            return ledger.record(replace(entry, outcome="rejected", reasons=[*reasons, Reason.said("standing", words, passed=False)]))
    if outcome != "accepted":
        return ledger.record(entry)
    return ledger.record(*_with_move(entry, standing))


def answer_request(ledger: Ledger, request: Entry, outcome: str, *, by: str, words: str) -> Entry:
    """End a request for approval; `approved` moves the standing as if the gates had accepted.

    An approval of what was measured against an older standing moves nothing and is recorded as `stale`.

    Args:
        outcome: `approved`, `declined`, `expired` or `bypassed`.
        by: the person who answered; for a request without an answer, the process that ended it.

    Raises:
        DeniedError: `approval.ended`, something ended it before; `approval.unknown`.
    """
    entry = Entry(
        model=request.model,
        key=decision_key(request.model, request.key, outcome),
        weights_digest=request.weights_digest,
        version=request.version,
        semantic_version=request.semantic_version,
        action="recorded",
        outcome=outcome,
        reasons=[*request.reasons, Reason.said("approval", words, passed=outcome == "approved")],
        evidence={**request.evidence, "request": request.key},
        decided_by=by,
        request_key=request.key,
    )
    if outcome != "approved":
        return ledger.record(entry)
    stale_key = decision_key(request.model, request.key, "stale")
    found = ledger.decision(request.model, stale_key)
    if found is not None:
        # The same approval given twice has the same answer.
        return found
    try:
        return ledger.record(*_with_move(entry, ledger.standing(request.model)))
    except DeniedError as err:
        if err.code != "promotion.conflict":
            raise
    return ledger.record(_stale(request, entry, ledger.standing(request.model)))


def _stale(request: Entry, entry: Entry, now: ModelAliases) -> Entry:
    """Return `entry` as the end of a request that was measured against an older standing."""
    measured = (request.evidence.get("champion") or {}).get("weights_digest", "none")
    champion = name_of(now.champion) if now.champion else "none"
    words = (
        f"the request is for weights {request.weights_digest[:DIGEST_CHARS]}, evaluated against champion {measured[:DIGEST_CHARS]} "
        f"(revision {request.evidence['revision']}); champion is {champion} now (revision {now.revision})"
    )
    reasons = [*request.reasons, Reason.said("approval", words, passed=False)]
    key = decision_key(request.model, request.key, "stale")
    return replace(entry, outcome="stale", key=key, reasons=reasons, decided_at=datetime.now(UTC), revision=None)


def settle_canary(
    ledger: Ledger,
    standing: ModelAliases,
    outcome: str,
    *,
    reasons: Sequence[Reason],
    evidence: JsonObject,
    decided_by: str,
) -> Entry:
    """Let the canary of `standing` become champion (`accepted`) or end (`rolled_back`).

    Raises:
        DeniedError: `canary.missing`; `promotion.conflict`, the standing has moved on.
    """
    canary = standing.canary
    if canary is None:
        raise DeniedError("canary.missing", f"{standing.model} has no canary", hint="it was replaced, settled or rolled back since")
    accepted = outcome == "accepted"
    entry = Entry(
        model=standing.model,
        key=_settlement_key(standing.model, canary.weights_digest, standing.revision),
        weights_digest=canary.weights_digest,
        version=canary.version,
        semantic_version=canary.semantic_version,
        action="promoted" if accepted else "canary_ended",
        outcome=outcome,
        reasons=reasons,
        evidence={**evidence, HOLDER: canary.to_json(), "weights_digest": canary.weights_digest},
        decided_by=decided_by,
    )
    champion = replace(canary, since=_now()) if accepted else standing.champion
    return ledger.record(entry, Move(champion=champion, canary=None, expected_revision=standing.revision))


def approved_findings(ledger: Ledger, standing: ModelAliases) -> list[ApprovedFinding]:
    """Return what a person approved about the canary of `standing`: the reasons of the gates that asked.

    They are read from the decision that made it canary, so they need no separate field.

    Returns:
        empty where there is no canary, or where it needed no approval.
    """
    canary = standing.canary
    ending = None if canary is None or not canary.decision_key else ledger.ending_of(standing.model, canary.decision_key)
    if ending is None or ending.outcome != "approved":
        return []
    asked = [reason for reason in ending.reasons if not reason.passed and reason.severity == "approve"]
    return [{"gate": reason.gate, "words": reason.words, "numbers": reason.numbers, "by": ending.decided_by} for reason in asked]


def settlement(ledger: Ledger, model: str, *, weights_digest: str, revision: int) -> Entry | None:
    """Return how the canary of these weights, seated at `revision`, was settled; None while it was not.

    A settlement that is repeated because its first answer was lost finds its result here: the standing has moved by then.
    """
    return ledger.decision(model, _settlement_key(model, weights_digest, revision))


def roll_back(
    ledger: Ledger, model: str, *, by: str, reason: str, to: str | None = None, order: str = "", expected_revision: int | None = None
) -> Entry:
    """Make an earlier champion, or a named version, champion again; a canary ends, having been measured against the other one.

    Args:
        to: semantic version, digest or number, as `find_version` takes it; None: the champion before this one.
        order: what names the order: the same order given twice is one rollback. Empty: each call is an order, and goes further back.
        expected_revision: of the standing that the caller has looked at; None: the present one.

    Raises:
        DeniedError: `rollback.nothing`, there is no earlier champion; `version.unknown`;
            `version.ambiguous`; `rollback.same`, it is champion already;
            `rollback.never_champion`;
            `promotion.conflict`, another decision moved the standing at the same moment.
    """
    standing, history = ledger.standing(model), ledger.outline(model)
    # After the standing: what this order has moved already is then in sight.
    done = ledger.decision(model, _order_key(model, order)) if order else None
    if done is not None:
        return done
    if standing.champion is None:
        raise DeniedError("rollback.nothing", f"{shown(model)} has no champion", hint=f"models: {', '.join(ledger.models()) or 'none'}")
    target = find_version(ledger, history, to, model) if to else _previous(ledger, history, model)
    if target.weights_digest == standing.champion.weights_digest:
        raise DeniedError("rollback.same", f"version {numbered(target)} is the champion of {model} already")
    if target.weights_digest not in former_champions(history):
        message = f"version {numbered(target)} of {model} was never champion: a rollback goes back to what was, and around no gate"
        raise DeniedError("rollback.never_champion", message, hint="evaluate it again, or approve its request")
    expected = standing.revision if expected_revision is None else expected_revision
    entry = Entry(
        model=model,
        key=_order_key(model, order) if order else decision_key(model, "rollback", target.weights_digest, str(expected)),
        weights_digest=target.weights_digest,
        version=target.version,
        semantic_version=target.semantic_version,
        action="rolled_back",
        outcome="rolled_back",
        reasons=[Reason.said("rollback", f"from version {numbered(standing.champion)}: {reason}")],
        evidence={
            HOLDER: target.to_json(),
            "from": standing.champion.to_json(),
            "reason": reason,
            "order": order,
            "weights_digest": target.weights_digest,
        },
        decided_by=by,
    )
    holder = replace(target, since=_now())
    return ledger.record(entry, Move(champion=holder, canary=None, expected_revision=expected))


def former_champions(history: Sequence[Entry]) -> set[str]:
    """Return the digests of the weights that were ever champion.

    Args:
        history: an outline suffices.
    """
    return {entry.weights_digest for entry in history if entry.action in CHAMPIONS}


def champions(history: Sequence[Decided]) -> list[Decided]:
    """Return the decisions that made the champions a rollback goes back along, oldest first: what was rolled back is not in it.

    Args:
        history: an outline suffices, or what a server answers.
    """
    line: list[Decided] = []
    for entry in history:
        if entry.action not in CHAMPIONS:
            continue
        if entry.action == "rolled_back":
            places = [place for place, earlier in enumerate(line) if earlier.weights_digest == entry.weights_digest]
            line = line[: places[-1]] if places else line
        # A champion that is promoted again has no other one before it.
        line = [*(line[:-1] if line and line[-1].weights_digest == entry.weights_digest else line), entry]
    return line


def weights_named(ledger: Ledger, history: Sequence[Entry], name: str, model: str) -> str:
    """Return the digest of the weights that a name stands for.

    Args:
        history: an outline suffices.
        name: a semantic version; a digest, or its first 12 characters at least; or a number of MLflow's, of now or of a decision.

    Raises:
        DeniedError: `version.unknown`; `version.ambiguous`, MLflow gave the number to several versions.
    """
    numbers = ledger.registrations(model)
    found: dict[str, Entry] = {}
    for entry in history:
        registered = numbers.get(entry.weights_digest)
        names = (entry.semantic_version, entry.weights_digest, entry.version, None if registered is None else registered.number)
        if name in names or (len(name) >= DIGEST_CHARS and entry.weights_digest.startswith(name)):
            found[entry.weights_digest] = entry
    if len(found) > 1:
        named = ", ".join(f"{name_of(entry)} (weights {weights[:DIGEST_CHARS]})" for weights, entry in found.items())
        message = f"{shown(name)} stands for several versions of {model}: {named}"
        raise DeniedError("version.ambiguous", message, hint="give the semantic version, or the digest of the weights")
    if not found:
        known = {entry.weights_digest: entry for entry in history}
        named = ", ".join(numbered(entry) for entry in list(known.values())[-MAX_NAMED_VERSIONS:])
        raise DeniedError("version.unknown", f"{model} has no version {shown(name)} in the ledger", hint=f"known: {named or 'none'}")
    return next(iter(found))


def find_version(ledger: Ledger, history: Sequence[Entry], name: str, model: str) -> AliasHolder:
    """Return the version that a name stands for, as `weights_named` takes it.

    Args:
        history: an outline suffices: the evidence of the version's own decisions alone is read.

    Raises:
        DeniedError: `version.unknown`, `version.ambiguous`.
    """
    weights = weights_named(ledger, history, name, model)
    # A decision that ends a request says of the version what the request says. The same weights may have come once more in another
    # manifest, and been rejected: what was champion is what is gone back to.
    about = [entry for entry in reversed(history) if entry.weights_digest == weights]
    return holder_of(with_evidence(ledger, next((entry for entry in about if entry.action in CHAMPIONS), about[0])))


def holder_of(entry: Entry) -> AliasHolder:
    """Return the version that an entry is about."""
    return AliasHolder.from_json(entry.evidence[HOLDER])


def _is_later(request: Entry, holder: AliasHolder) -> bool:
    asked = holder_of(request).as_of
    # An `as_of` in the future blocks no later decision.
    return holder.as_of < asked <= datetime.now(UTC)


def _with_move(entry: Entry, standing: ModelAliases) -> tuple[Entry, Move]:
    """Return the entry and the move that gives its version an alias, from the revision that it was measured against."""
    holder = replace(holder_of(entry), since=_now())
    expected = int(entry.evidence["revision"])
    if entry.evidence.get("has_canary") and standing.champion is not None:
        return replace(entry, action="canary"), Move(champion=standing.champion, canary=holder, expected_revision=expected)
    return replace(entry, action="promoted"), Move(champion=holder, canary=None, expected_revision=expected)


def _settlement_key(model: str, weights_digest: str, revision: int) -> str:
    return decision_key(model, weights_digest, "canary", str(revision))


def _order_key(model: str, order: str) -> str:
    return decision_key(model, "rollback", "order", order)


def with_evidence(ledger: Ledger, outlined: Entry) -> Entry:
    """Return an entry of an outline with its evidence."""
    return ledger.decision(outlined.model, outlined.key) or outlined


def _previous(ledger: Ledger, history: Sequence[Entry], model: str) -> AliasHolder:
    line = champions(history)
    if len(line) < 2:
        raise DeniedError("rollback.nothing", f"{model} had no champion before this one", hint="name the version to go to")
    return holder_of(with_evidence(ledger, line[-2]))


def numbered(holder: AliasHolder | Entry) -> str:
    """Return a version by MLflow's number of then, and by its semantic version."""
    return f"{holder.version} ({holder.semantic_version})" if holder.semantic_version else holder.version


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def champions_snapshot(ledger: Ledger, model: str, before: datetime) -> str | None:
    """Return the digest of the snapshot that the champion was trained on, None where there is no champion.

    Args:
        before: of the run that asks. The newest champion whose `as_of` is earlier counts: a run that is repeated after its own model
            became champion finds the one that it found then.
    """
    history = ledger.outline(model)
    for outlined in reversed(champions(history)):
        holder = holder_of(with_evidence(ledger, outlined))
        if holder.as_of >= before:
            continue
        # A rollback's own evidence does not name the data.
        decisions = (with_evidence(ledger, entry) for entry in history if entry.weights_digest == holder.weights_digest)
        return next((str(entry.evidence["snapshot_digest"]) for entry in decisions if entry.evidence.get("snapshot_digest")), None)
    return None
