"""The task of the way back: it makes an earlier version champion in the ledger, and propagates the decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from nightshift.operators.promotion import FollowOperator
from nightshift.operators.registry_alerts import alerts_of
from nightshift.settings import Settings
from training.errors import DeniedError
from training.spec.models import Alerts
from training.spec.rules.names import ROLLBACK

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from training.registry.ledger import Entry


class RollbackOperator(FollowOperator):
    """Records the rollback in the ledger, then propagates it to MLflow, assets and alerts."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(model=ROLLBACK, alerts=Alerts(), **kwargs)

    def decision(self, context: Context) -> Entry:
        """Roll back, once per run: the ledger takes an order that it has for the one that it was.

        Raises:
            AirflowFailException: there is nothing to go back to, or another decision moved the champion at the same moment.
        """
        from training.registry.decisions import roll_back
        from training.registry.ledger import Ledger

        run = context["dag_run"]
        conf = context["params"]
        self.model = str(conf["model"])
        ledger = Ledger(Settings.from_environment().database_url)
        # Airflow gives a run's id again once the run is deleted. Its date stays through every clear.
        mark = f"{run.dag_id}/{run.run_id}/{run.run_after.isoformat()}"
        # A rollback needs no YAML.
        _pipeline, self.alerts = alerts_of(ledger.newest_first(self.model), Settings.from_environment())
        by = getattr(run, "triggering_user_name", None) or "somebody in Airflow"
        try:
            return roll_back(ledger, self.model, by=by, reason=str(conf["reason"]), to=conf.get("version"), order=mark)
        except DeniedError as err:
            raise AirflowFailException(str(err)) from err
