"""The task of the way back: it makes an earlier version champion in the ledger, and propagates the decision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from nightshift.operators.promotion import FollowOperator
from nightshift.settings import Settings
from training.errors import DeniedError, SpecError
from training.spec import load_spec
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
        mark = f"{run.dag_id}/{run.run_id}"
        self.alerts = _alerts_of(ledger.newest_first(self.model))
        by = getattr(run, "triggering_user_name", None) or "somebody in Airflow"
        try:
            return roll_back(ledger, self.model, by=by, reason=str(conf["reason"]), to=conf.get("version"), order=mark)
        except DeniedError as err:
            raise AirflowFailException(str(err)) from err


def _alerts_of(newest_first: Iterable[Entry]) -> Alerts:
    """Return the alert settings of the model's pipeline; none where its YAML is missing or invalid: a rollback needs no YAML."""
    pipeline = next((str(entry.evidence["pipeline"]) for entry in newest_first if "pipeline" in entry.evidence), None)
    if pipeline is None:
        return Alerts()
    try:
        return load_spec(Settings.from_environment().pipelines_path / f"{pipeline}.yaml").alerts
    except SpecError:
        return Alerts()
