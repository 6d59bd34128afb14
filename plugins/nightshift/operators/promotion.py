"""The tasks that decide: a run's, one that follows a decision of a person, and a canary's. Each says to the world what it decided."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk.exceptions import AirflowSkipException

from nightshift.airflow_ext.alerts import announce
from nightshift.airflow_ext.assets import DECISIONS, emit
from nightshift.airflow_ext.links import report_url, task_url
from nightshift.operators.failure_message import noted_failure
from nightshift.operators.registry_alerts import announce_findings
from nightshift.operators.stage import StageOperator
from nightshift.resolved_run import NO_PROMOTION, ResolvedRun, check_settled
from nightshift.settings import Settings
from nightshift.work import Work
from training.contracts import JsonObject, JsonValue, RunIdentity, StageResult, require_result
from training.process.waiting import waiting_for_database
from training.spec.pipeline_spec import Alerts

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from training.registry.ledger.ledger import Entry

EVENTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("promoted", "rolled_back", "canary"), ""),
    "canary_ended": "rolled_back",
}
"""Action to the event of `alerts.on`, where it is not the action's own name."""


class PromoteOperator(StageOperator):
    """Decides about a run's candidate."""

    unlogged: ClassVar[tuple[str, ...]] = ()
    """Keys of the alert that this task's log leaves out."""

    def __init__(self, *, model: str, alerts: Alerts, stage: str = "promote", **kwargs: Any) -> None:
        super().__init__(stage=stage, **kwargs)
        # Set here and not passed on: Airflow fills in every argument of a mapped task, `outlets` included, when it unmaps it.
        self.outlets = [DECISIONS]
        self.model = model
        self.alerts = alerts

    def finish(self, context: Context, found: StageResult, run: RunIdentity) -> dict[str, JsonValue]:
        """Return the result for XCom; what this task decided is announced, what it found decided is not."""
        value = super().finish(context, found, run)
        if self.has_decided(found, run):
            emit(context, found)
            self._announce(found)
        announce_findings(Settings.from_environment(), run=run.run_id, model=str(found.scalars.get("model")))
        return value

    def resolved(self, context: Context) -> ResolvedRun:
        """Return the run's settled spec: gates and approval are taken from it, not from XCom."""
        check_settled(context, Settings.from_environment())
        return super().resolved(context)

    def reason_of(self, found: StageResult) -> str:
        """Return why it was decided so, for the alert."""
        return str(found.scalars.get("reasons"))

    def has_decided(self, found: StageResult, run: RunIdentity) -> bool:
        """Return whether this task made the decision, in this try or an earlier one, and nothing has moved or answered since."""
        return found.run.owner == run.owner and found.scalars.get("decision") != "waiting" and not _is_past(found)

    def work(self, context: Context, resolved: ResolvedRun, settings: Settings) -> Work:
        """Return the work, with the user who started the run, who may be barred from approving it.

        Raises:
            AirflowSkipException: the run may not promote.
        """
        if not resolved.may_promote:
            # The reason of what was skipped is in the run's note, too.
            with noted_failure(context, AirflowSkipException):
                raise AirflowSkipException(NO_PROMOTION)
        work = super().work(context, resolved, settings)
        started_by = getattr(context["dag_run"], "triggering_user_name", None)
        return replace(work, parameters={**work.parameters, "triggered_by": started_by})

    def _announce(self, found: StageResult) -> None:
        scalars = found.scalars
        action = str(scalars.get("action"))
        if action == "recorded" and scalars.get("decision") == "accepted":
            # The champion or the canary was measured again and keeps its place: no event of `alerts.on`.
            return
        kind = (EVENTS[action] or action) if action in EVENTS else str(scalars.get("decision"))
        # An answer that promotes nothing is the end of a candidate, as a rejection is.
        kind = kind if kind in ("needs_approval", *EVENTS) else "rejected"
        event = {
            "event": kind,
            "pipeline": found.pipeline,
            "run": found.run.run_id,
            "model": scalars.get("model"),
            "version": scalars.get("semantic_version") or scalars.get("version"),
            "decision": scalars.get("decision"),
            "decided_by": scalars.get("decided_by"),
            "reason": self.reason_of(found),
            "url": task_url(found.run),
            **({"report": report_url(self.pipeline, self.report_uri)} if self.report_uri else {}),
        }
        announce(event, self.alerts, unlogged=self.unlogged)


class FollowOperator(PromoteOperator):
    """Propagates a recorded decision to MLflow, assets and alerts."""

    def decision(self, context: Context) -> Entry:
        """Return the decision to follow; subclasses know which it is."""
        raise NotImplementedError

    @waiting_for_database()
    def execute(self, context: Context) -> dict[str, JsonValue]:
        self._entry = self.decision(context)
        return super().execute(context)

    @waiting_for_database()
    def trigger_reentry(self, context: Context, event: dict[str, JsonValue], work_id: str = "") -> dict[str, JsonValue]:
        # After a deferral it is another process, which finds the same decision in the ledger.
        self._entry = self.decision(context)
        return super().trigger_reentry(context, event, work_id)

    def resolved(self, context: Context) -> ResolvedRun:
        evidence = self._evidence()
        return ResolvedRun({"spec_uri": evidence["spec_uri"], "as_of": evidence["as_of"], "force": False})

    def work(self, context: Context, resolved: ResolvedRun, settings: Settings) -> Work:
        entry = self._entry
        # With the time: a restored ledger may take the same order once more, which MLflow has to follow once more.
        decided_at = f"{entry.decided_at.timestamp():.6f}"
        covered = {"follow": entry.key, "decided_at": decided_at}
        return Work.of(resolved, self.stage, covered, parameters={"order": {"kind": "follow", "key": entry.key}})

    def _evidence(self) -> JsonObject:
        """Return the evidence of the decision, or of the newest one before it that says which spec it was made with."""
        known = itertools.chain([self._entry], Settings.from_environment().ledger().newest_first(self.model))
        return next(found.evidence for found in known if "spec_uri" in found.evidence)


class CanaryDecisionOperator(PromoteOperator):
    """Promotes the canary, rolls it back, or waits on."""

    def work(self, context: Context, resolved: ResolvedRun, settings: Settings) -> Work:
        judged = require_result(context["ti"].xcom_pull(task_ids="canary"), stage="canary")
        covered = {"model": self.model, "evaluation": judged.digest}
        # The clock of the host that settled `as_of` may be minutes ahead; a canary's time passes by this one.
        order = {"kind": "canary", "now": min(resolved.as_of, datetime.now(UTC)).isoformat()}
        parameters = {"order": order, "report_uri": judged.reports.get("canary"), **resolved.simulated}
        inputs = {"evaluation": judged.artifact_uri}
        # Time is part of the decision: each run of the canary's DAG is separate work.
        return Work.of(resolved, self.stage, covered, nonce=context["run_id"], inputs=inputs, parameters=parameters)


def _is_past(found: StageResult) -> bool:
    """Return whether a decision that is found again, by a task that was cleared, has been followed by a move or an answer."""
    key = found.scalars.get("key")
    history = Settings.from_environment().ledger().outline(str(found.scalars.get("model")))
    since = itertools.dropwhile(lambda entry: entry.key != key, history)
    return any(entry.key != key and (entry.revision is not None or entry.request_key == key) for entry in since)
