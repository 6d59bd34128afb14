"""Housekeeping's task that ends requests for approval whose time is over."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow.sdk import BaseOperator

from nightshift.settings import Settings
from training.errors import DataError, DeniedError, SpecError
from training.process.waiting import waiting_for_database
from training.spec import PipelineSpec
from training.spec.scalar_types import duration_text
from training.store import Store

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from training.registry.ledger.ledger import Entry, Ledger


class ExpireOperator(BaseOperator):
    """Ends the requests whose time is over; returns the models that have decisions."""

    @waiting_for_database()
    def execute(self, context: Context) -> list[str]:
        settings = Settings.from_environment()
        ledger = settings.ledger()
        models = ledger.models()
        for model in models:
            for request in ledger.open_requests(model):
                self._expire(ledger, request, settings.store())
        return models

    def _expire(self, ledger: Ledger, request: Entry, store: Store) -> None:
        from training.registry.ledger.decisions import answer_request

        try:
            spec = PipelineSpec.thaw(store.get_json(str(request.evidence["spec_uri"])))
        except (SpecError, DataError, KeyError) as err:
            self.log.error("the request for version %s of %s cannot be read: %s", request.version, request.model, err)
            return
        if datetime.now(UTC) < request.decided_at + spec.promote.approve_within:
            self.log.info("version %s of %s has waited for an answer since %s", request.version, request.model, request.decided_at)
            return
        words = f"no answer within {duration_text(spec.promote.approve_within)} (promote.approve_within)"
        try:
            answer_request(ledger, request, "expired", by="nobody", words=words)
            self.log.warning("the request for version %s of %s has expired", request.version, request.model)
        except DeniedError as err:
            self.log.info("%s", err)
