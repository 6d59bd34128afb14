"""Orders to roll a model back in Airflow: written by the REST route, which checks the rights on the model's own pipelines, and carried out
by the DAG `rollback`, which takes an order's id and nothing else. SQLAlchemy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from training.contracts import canonical_json, sha256_hex
from training.database.connect import connect, reading, writing
from training.database.schema import RollbackOrderRow

ID_CHARS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class RollbackOrder:
    """Make these weights champion again."""

    model: str
    weights_digest: str
    revision: int
    """Of the standing that the person has looked at."""
    reason: str
    ordered_by: str

    @property
    def order_id(self) -> str:
        """Of one order for as long as nothing else moves the model, by any person and in any words."""
        return sha256_hex(canonical_json([self.model, self.weights_digest, self.revision]))[:ID_CHARS]


def place(order: RollbackOrder, database_url: str | None = None) -> str:
    """Write an order, with who gave it last, and why; return its id.

    Raises:
        UnavailableError: `database.unavailable`.
    """
    with writing(connect(database_url)) as session:
        session.merge(
            RollbackOrderRow(
                order_id=order.order_id,
                model=order.model,
                weights_digest=order.weights_digest,
                revision=order.revision,
                reason=order.reason,
                ordered_by=order.ordered_by[:512],
                ordered_at=datetime.now(UTC),
            )
        )
    return order.order_id


def find_order(order_id: str, database_url: str | None = None) -> RollbackOrder | None:
    """Return an order by its id, None where there is none.

    Raises:
        UnavailableError: `database.unavailable`.
    """
    with reading(connect(database_url)) as session:
        row = session.get(RollbackOrderRow, order_id)
        if row is None:
            return None
        return RollbackOrder(
            model=row.model, weights_digest=row.weights_digest, revision=row.revision, reason=row.reason, ordered_by=row.ordered_by
        )
