"""The task of a rollback: it makes an earlier version champion in the ledger, and propagates the decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from nightshift.operators.promotion import FollowOperator
from nightshift.operators.registry_alerts import alerts_of
from nightshift.settings import Settings
from training.contracts import StageResult
from training.errors import DeniedError, shown
from training.registry.ledger.reasons import all_words
from training.spec.pipeline_spec import Alerts
from training.spec.rules.names import ROLLBACK

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from training.registry.ledger.ledger import Entry


class RollbackOperator(FollowOperator):
    """Records the rollback in the ledger, then propagates it to MLflow, assets and alerts."""

    # Users of other models may read this DAG's logs.
    unlogged = ("reason",)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(model=ROLLBACK, alerts=Alerts(), **kwargs)

    def decision(self, context: Context) -> Entry:
        """Roll back, once per order: the ledger takes an order that it has for the one that it was.

        Raises:
            AirflowFailException: there is no such order, or another decision moved the model since it was given.
        """
        from training.registry.ledger.decisions import roll_back
        from training.registry.ledger.rollback_orders import find_order

        settings = Settings.from_environment()
        given = str(context["params"]["order"])
        order = find_order(given, settings.database_url)
        if order is None:
            raise AirflowFailException(
                f"[rollback.order] there is no order {shown(given)}: `nightshift rollback MODEL --server URL --reason …`, or "
                "PUT /models/{model}/versions/{version}/stage, writes one and starts this DAG"
            )
        self.model = order.model
        ledger = settings.ledger()
        # A rollback needs no YAML.
        _pipeline, self.alerts = alerts_of(ledger.newest_first(self.model), settings)
        try:
            return roll_back(
                ledger,
                order.model,
                by=order.ordered_by,
                reason=order.reason,
                to=order.weights_digest,
                order=order.order_id,
                expected_revision=order.revision,
            )
        except DeniedError as err:
            raise AirflowFailException(str(err)) from err

    def reason_of(self, found: StageResult) -> str:
        """Return the reason for the alert, from the ledger: the result, which users of other models may read, does not have it."""
        del found
        return all_words(self._entry.reasons)
