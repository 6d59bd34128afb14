"""Erasure on a person's order: deletes what holds given rows, and leaves a tombstone for each digest. docs/retention.md.

Tombstones come first, then the ledger's row, then the deletions. What leads to the rows goes last (a part before its snapshot, an
evaluation before its dataset), so that a run that was killed is finished by the same order, given again.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import Engine, select

from training.contracts import canonical_json
from training.database.connect import reading, writing
from training.database.datasets import note_erased
from training.database.schema import ErasureRow
from training.errors import DeniedError
from training.installation import home_folder
from training.registry.ledger.retention import LedgerRoots
from training.retention.held_rows import LEADING, HeldRows, Key, RowSearch, live_work
from training.store import Store
from training.store.condemned import Condemned
from training.store.garbage_collector import Collector

HASH_KEY: Final = "collector/erasures"
"""Key of the secret by which keys are hashed: a ledger alone does not tell whether a person was in the data."""
ORDER: Final = ("evaluation", "validation", "dataset", "snapshot")
"""In which holders are deleted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErasureOrder:
    """What a person has ordered."""

    pipeline: str
    target: str
    """`snapshot <digest>`, or the columns of a key."""
    key: Key | None
    by: str
    reason: str
    includes_models: bool
    """Weights that were trained on the rows go, too."""


def earlier_orders(engine: Engine, store: Store, pipeline: str, key: Key) -> list[tuple[datetime, str, str]]:
    """Return (time, person, reason) of earlier erasures of a key."""
    secret = store.bucket.find(HASH_KEY)
    if secret is None:
        return []
    is_same = (ErasureRow.pipeline == pipeline, ErasureRow.key_hash == _key_hash(secret, pipeline, key))
    with reading(engine) as session:
        rows = session.scalars(select(ErasureRow).where(*is_same).order_by(ErasureRow.id))
        return [(row.erased_at, row.erased_by, row.reason) for row in rows]


def erased_digests(engine: Engine) -> set[str]:
    """Return the digests of all snapshots and datasets that were erased."""
    with reading(engine) as session:
        listed = session.scalars(select(ErasureRow.digests)).all()
    return {digest for digests in listed for kind in LEADING for digest in digests.get(kind, ())}


def erase(
    store: Store,
    engine: Engine,
    collector: Collector,
    roots: LedgerRoots,
    look: Callable[[], tuple[RowSearch, HeldRows]],
    order: ErasureOrder,
) -> tuple[HeldRows, set[str]]:
    """Mark what holds the rows, until a look finds nothing new; note the order in the ledger; then delete it.

    Args:
        look: searches the store.

    Returns:
        What was deleted, and the digests of the models and checkpoints among its weights that were deleted, too.

    Raises:
        DeniedError: `erase.running`, a stage of one of the pipelines is at work.
        LeaseHeldError: `retention.running`.
        StoreError, UnavailableError: store, ledger or MLflow cannot be used; the same order, given again, goes on.
    """
    condemned, marked = Condemned(store.bucket), set[str]()
    with collector.alone("erased") as alive:
        while True:
            search, found = look()
            _refuse_live(store, {order.pipeline, *(pipeline for pipeline, _ in found.runs)})
            keys = {store.objects.key(part) for part in found.parts} | found.pages | {holder.key for holder in found.holders.values()}
            for key in sorted(keys - marked):
                alive()
                condemned.erase(key)
            if keys <= marked:
                break
            marked |= keys
        if found.mlflow_runs:
            from training.registry.mlflow.runs import delete_reports

            delete_reports(found.mlflow_runs)
        weights = set(found.weights) - _kept_weights(found, roots, store) if order.includes_models else set()
        gone = [found.weights[digest] for digest in sorted(weights)]
        _note(engine, store, found, weights, order)
        for holder in gone:
            condemned.erase(holder.key)
        for pipeline, run in found.runs:
            # A laptop's copies.
            shutil.rmtree(home_folder() / "reports" / pipeline / run, ignore_errors=True)
        for ref in sorted(found.refs):
            store.ref(ref.removeprefix("refs/")).delete()
        holders = sorted(found.holders.values(), key=lambda holder: (ORDER.index(holder.kind), holder.key))
        objects = sorted(found.objects | search.objects_of(weights))
        # By the manifests all else is found again.
        for key in [*objects, *sorted(found.logs | found.pages), *(holder.key for holder in [*gone, *holders])]:
            alive()
            store.bucket.delete(key, prune=True)
    return found, weights


def _refuse_live(store: Store, pipelines: set[str]) -> None:
    if live := live_work(store.bucket.list("stages"), pipelines):
        hint = "wait until its run has ended, or stop the run; work that was killed counts as under way for 15 minutes"
        raise DeniedError("erase.running", f"{live[0]} is under way: it may read what is erased, and store it again", hint=hint)


def _kept_weights(found: HeldRows, roots: LedgerRoots, store: Store) -> set[str]:
    """Note in the ledger that weights are deleted next; return the digests of those that have to stay, with their checkpoints."""
    uris = {store.bucket.uri(holder.key): holder.key for holder in found.weights.values() if holder.kind == "model"}
    stay = {uris[uri] for uri in roots.release(list(uris))}
    return {digest for digest, holder in found.weights.items() if stay & {holder.key, holder.model_key}}


def _note(engine: Engine, store: Store, found: HeldRows, weights: set[str], order: ErasureOrder) -> None:
    store.bucket.create(HASH_KEY, secrets.token_hex(32).encode())
    hashed = None if order.key is None else _key_hash(store.bucket.get(HASH_KEY), order.pipeline, order.key)
    digests: dict[str, list[str]] = {"part": sorted(found.parts)}
    for digest, holder in sorted({**found.holders, **{digest: found.weights[digest] for digest in weights}}.items()):
        digests.setdefault(holder.kind, []).append(digest)
    with writing(engine) as session:
        note_erased(session, digests.get("snapshot", []), by=order.by, reason=order.reason)
        session.add(
            ErasureRow(
                pipeline=order.pipeline,
                target=order.target,
                key_hash=hashed,
                erased_at=datetime.now(UTC),
                erased_by=order.by,
                reason=order.reason,
                counts={"rows": found.num_rows, **{kind: len(listed) for kind, listed in digests.items()}},
                digests=digests,
            )
        )


def _key_hash(secret: bytes, pipeline: str, key: Key) -> str:
    return hmac.new(secret, canonical_json({"pipeline": pipeline, "key": dict(key)}), hashlib.sha256).hexdigest()
