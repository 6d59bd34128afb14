"""The tasks of an approval: `ask`, Airflow's human-in-the-loop operator, and `promote`, which records the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast
from uuid import UUID

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Param, RetryAction
from airflow.sdk.configuration import conf
from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time.hitl import HITLUser, get_hitl_detail_content_detail, upsert_hitl_detail
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from nightshift.airflow_ext.links import report_url
from nightshift.airflow_ext.run_notes import ASKED_BY
from nightshift.execution.retries import TaskArguments
from nightshift.operators.approval_state import AirflowAnswer, Person, note_answer, note_refusal, noted_answer, refusal
from nightshift.operators.promotion import FollowOperator
from nightshift.queries.approval_question import APPROVE, ASK, DECLINE, subject_words
from nightshift.settings import Settings
from training.contracts import JsonValue, RunIdentity, StageResult, instant_of
from training.errors import DeniedError, shown
from training.format import local_moment, number
from training.process.waiting import waiting_for_database
from training.registry.ledger.reasons import reason_table
from training.sanitizing import for_markdown
from training.spec import PipelineSpec
from training.spec.scalar_types import duration_text, free_text_fault

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from training.registry.ledger.ledger import Entry, Ledger

LOOK_SECONDS: Final = 5.0
MAX_REFUSALS: Final = 50
"""Refused answers to one request; each is a failed try of `ask`. Then the task fails, and a clear asks again."""
ASK_AGAIN_AFTER: Final = timedelta(seconds=1)
SIMPLE_AUTH_MANAGER: Final = "SimpleAuthManager"
MAY_EDIT_ROLES: Final = frozenset({"user", "op", "admin"})
"""Roles of Airflow's simple auth manager that may answer; a viewer may not."""


class RefusedAnswerError(AirflowException):
    """An answer that does not count: the try fails, and the next one asks again."""


class RefusalPolicy(RetryPolicy):
    """Asks again after a refused answer; all else is judged by the policy of every task of the pipeline."""

    def __init__(self, other: RetryPolicy | None) -> None:
        self.other = other

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None) -> RetryDecision:
        """Return RETRY for a refused answer, which takes nothing of the pipeline's budget of failures."""
        if isinstance(exception, RefusedAnswerError):
            return RetryDecision(action=RetryAction.RETRY, retry_delay=ASK_AGAIN_AFTER, reason=str(exception))
        if self.other is None:
            return RetryDecision.default()
        return self.other.evaluate(exception, try_number, max_tries, context)


def with_refusals(common: TaskArguments) -> TaskArguments:
    """Return the arguments of an operator whose refused answers are asked again."""
    policy = RefusalPolicy(common.get("retry_policy"))
    return {**common, "retries": common.get("retries", 0) + MAX_REFUSALS, "retry_policy": policy}


class AskOperator(HITLOperator):
    """Asks, waits without a slot, and records the answer.

    Deferred, not `awaiting_input`: the trigger also sees that a newer candidate has ended the request.
    """

    def __init__(self, *, spec: PipelineSpec, **kwargs: Any) -> None:
        # Airflow hands the DAG's params to every operator; the form of a question has its own.
        kwargs.pop("params", None)
        super().__init__(
            subject=f"May a candidate of {spec.promote.model} be promoted?",
            options=[APPROVE, DECLINE],
            # With null as a type: Airflow's form disables its buttons while a field of type string alone is empty.
            params={"note": Param(None, type=["null", "string"], description="Reason, stored in the ledger.")},
            **kwargs,
        )
        # What the ledger says of a candidate is not a template.
        self.template_fields = ()
        self.spec = spec

    @waiting_for_database()
    def execute(self, context: Context) -> str | None:
        """Ask, unless the request has ended or an earlier try was killed before it recorded an answer: that answer is recorded now.

        Raises:
            RefusedAnswerError: the person of that answer may not answer.
            TaskDeferred: until a person answers, the request ends otherwise, or its time is over.
            AirflowFailException: no user may answer.
        """
        return self._ask(context)

    def _ask(self, context: Context) -> str | None:
        ledger = Settings.from_environment().ledger()
        request = request_of(context, ledger, self.spec)
        until = request.decided_at + self.spec.promote.approve_within
        if _said_ended(self, ledger, request):
            return None
        if (noted := noted_answer(context, request)) is not None:
            self.log.info("an earlier try received an answer and ended before it was recorded; it counts")
            return self._answered(context, ledger, request, noted)
        may_answer = self._approvers(request)
        self.subject, self.body = self._words(request, until, may_answer, refused=refusal(context, request))
        upsert_hitl_detail(
            ti_id=context["ti"].id,
            options=self.options,
            subject=self.subject,
            body=self.body,
            params=self.serialized_params,
            assigned_users=may_answer,
        )
        self.log.info("%s\nwaiting for an answer until %s", self.body, until.isoformat(timespec="seconds"))
        self._wait(context, request, until)

    def _wait(self, context: Context, request: Entry, until: datetime) -> NoReturn:
        watch = WatchRequest(model=request.model, key=request.key, until=until.isoformat(), ti_id=str(context["ti"].id))
        self.defer(trigger=watch, method_name="execute_complete")

    @waiting_for_database()
    def execute_complete(self, context: Context, event: dict[str, object]) -> Any:
        """Record what was answered, or that nothing was.

        Raises:
            RefusedAnswerError: this person may not answer.
            TaskDeferred: the time is not over yet.
        """
        ledger = Settings.from_environment().ledger()
        request = request_of(context, ledger, self.spec)
        if _said_ended(self, ledger, request):
            return None
        if event.get("error_type") == "timeout":
            until = request.decided_at + self.spec.promote.approve_within
            if datetime.now(UTC) < until:
                # The clock of the triggerer is ahead, or jumped: an expiry cannot be taken back.
                self.log.warning("the triggerer's clock is ahead: waiting for an answer until %s", until.isoformat(timespec="seconds"))
                self._wait(context, request, until)
            words = f"no answer within {duration_text(self.spec.promote.approve_within)} (promote.approve_within)"
            return self._record(ledger, request, "expired", "nobody", words)
        # The trigger ends for nothing else: this is Airflow's record of a person's response.
        answer = cast("AirflowAnswer", event)
        note_answer(context, request, answer)
        return self._answered(context, ledger, request, answer)

    def _answered(self, context: Context, ledger: Ledger, request: Entry, event: AirflowAnswer) -> str | None:
        person = event["responded_by_user"]
        until = request.decided_at + self.spec.promote.approve_within
        if event["responded_at"] >= until:
            words = f"{person['name']} answered after {until.isoformat(timespec='seconds')}"
            return self._record(ledger, request, "expired", "nobody", words)
        note = str((event.get("params_input") or {}).get("note") or "").strip()
        fault = free_text_fault(note)
        if why := self._refused(request, person) or (fault and f"the note {fault}"):
            note_refusal(context, request, why)
            raise RefusedAnswerError(f"[approval.refused] {why}; nothing was decided, and the question is asked again")
        outcome = "approved" if event["chosen_options"] == [APPROVE] else "declined"
        words = f"{outcome} by {person['name']}" + (f": {note}" if note else "")
        return self._record(ledger, request, outcome, person["name"], words)

    def _record(self, ledger: Ledger, request: Entry, outcome: str, by: str, words: str) -> str | None:
        from training.registry.ledger.decisions import answer_request

        try:
            return _told(self, answer_request(ledger, request, outcome, by=by, words=words))
        except DeniedError as err:
            # Ended in the moment between the look and the record.
            self.log.warning("%s", err)
            return None

    def _approvers(self, request: Entry) -> list[HITLUser]:
        """Return who may answer, computed now; empty: any user who may edit the task, as far as a task can know."""
        barred = self._barred(request)
        named = list(self.spec.promote.approvers) or (_simple_users() if barred is not None else [])
        may = [name for name in named if name != barred]
        if named and not may:
            message = f"only {shown(barred)} may approve {request.model}, and started the run; promote.approve_own is false"
            remedy = "name further people in promote.approvers" if self.spec.promote.approvers else "add a user to Airflow"
            raise AirflowFailException(f"{message} ({remedy})")
        return [HITLUser(id=name, name=name) for name in may]

    def _barred(self, request: Entry) -> str | None:
        """Return the user who started the run where that user may not answer."""
        started_by = request.evidence.get("triggered_by")
        return None if self.spec.promote.approve_own or started_by is None else str(started_by)

    def _refused(self, request: Entry, person: Person) -> str:
        """Return why an answer of `person` does not count, empty where it does. The list of approvers is Airflow's to check."""
        if self._barred(request) in (person["name"], person["id"]):
            return f"{person['name']} started the run and may not approve its model (promote.approve_own is false)"
        return ""

    def _words(self, request: Entry, until: datetime, may_answer: list[HITLUser], *, refused: str) -> tuple[str, str]:
        """Return headline and text (Markdown) of the question."""
        version = request.semantic_version or request.version
        evidence = request.evidence
        as_of = local_moment(instant_of(evidence["as_of"]), self.spec.timezone)
        barred = self._barred(request)
        people = ", ".join(for_markdown(user["name"]) for user in may_answer) or "any user who may edit this task"
        lines = [
            *([f"**The last answer was REFUSED**: {for_markdown(refused)}. The question is still open.", ""] if refused else []),
            f"**May answer:** {people}" + ("." if barred is None else f"; not {for_markdown(barred)}, who started the run."),
            "",
            f"**{request.model} {version}**, as of {as_of}, {subject_words(evidence)}.",
            "",
            *reason_table(request.reasons),
        ]
        lines += ["", "| metric | candidate | champion |", "| --- | --- | --- |"]
        champion = evidence.get("champion_metrics") or {}
        lines += [
            f"| {for_markdown(name)} | {for_markdown(number(value))} | {for_markdown(number(champion.get(name, '-')))} |"
            for name, value in (evidence.get("metrics") or {}).items()
        ]
        if evidence.get("report_uri"):
            lines += ["", f"[Evaluation report]({report_url(str(evidence['pipeline']), str(evidence['report_uri']))})"]
        end = local_moment(until, self.spec.timezone)
        lines += ["", f"Without an answer by {end} it stays a candidate. A newer candidate ends this request."]
        headline = f"May {request.model} {version} be promoted?"
        return (f"REFUSED, asked again: {headline}" if refused else headline), "\n".join(lines)


class AnswerOperator(FollowOperator):
    """Follows the answer; records what went around the question."""

    def __init__(self, *, spec: PipelineSpec, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec = spec

    def decision(self, context: Context) -> Entry:
        """Return how the request ended.

        Raises:
            AirflowFailException: `ask` failed, and the request is still open.
        """
        from training.registry.ledger.decisions import answer_request

        ledger = Settings.from_environment().ledger()
        request = request_of(context, ledger, self.spec)
        ending = ledger.ending_of(request.model, request.key)
        if ending is not None:
            return ending
        state = _state_of_ask(context)
        if datetime.now(UTC) >= request.decided_at + self.spec.promote.approve_within:
            return answer_request(ledger, request, "expired", by="nobody", words="nobody answered in time")
        if state not in ("success", "skipped"):
            raise AirflowFailException(f"the question was not answered: task {ASK} is {state}; clear it to ask again")
        words = f"the task {ASK} is marked as {state} without an answer (Airflow's audit log says by whom): nothing is promoted"
        return answer_request(ledger, request, "bypassed", by="a user of Airflow", words=words)

    def finish(self, context: Context, found: StageResult, run: RunIdentity) -> dict[str, JsonValue]:
        """Return the result for XCom, and name the run that asked: its note gets the answer, too."""
        request = request_of(context, Settings.from_environment().ledger(), self.spec)
        context["ti"].xcom_push(key=ASKED_BY, value=request.evidence.get("run_id"))
        return super().finish(context, found, run)


class WatchRequest(BaseTrigger):
    """Ends when the request has ended otherwise, or its time is over. To a waiting task, Airflow brings the answer itself."""

    def __init__(self, *, model: str, key: str, until: str, ti_id: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model = model
        self.key = key
        self.until = until
        self.ti_id = ti_id

    def serialize(self) -> tuple[str, dict[str, str]]:
        return "nightshift.operators.approval.WatchRequest", {
            "model": self.model,
            "key": self.key,
            "until": self.until,
            "ti_id": self.ti_id,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        until = datetime.fromisoformat(self.until)
        while True:
            if (answer := await self._answer()) is not None:
                yield TriggerEvent(answer)  # type: ignore[no-untyped-call]
                return
            try:
                ending = await asyncio.to_thread(self._ending)
            except Exception as err:
                # The database comes back; a trigger that fails would fail the request.
                self.log.warning("cannot look at the ledger: %s", err)
                ending = None
            if ending is not None:
                yield TriggerEvent({"ended": ending})  # type: ignore[no-untyped-call]
                return
            if datetime.now(UTC) >= until:
                yield TriggerEvent({"error": "the time is over", "error_type": "timeout"})  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(min(LOOK_SECONDS, max(0.1, (until - datetime.now(UTC)) / timedelta(seconds=1))))

    async def _answer(self) -> AirflowAnswer | None:
        """Return an answer that came before Airflow had parked the task: nothing else would wake it."""
        try:
            given = await sync_to_async(get_hitl_detail_content_detail)(ti_id=UUID(self.ti_id))
        except Exception as err:
            self.log.warning("cannot look at the answer: %s", err)
            return None
        if not given.response_received or given.responded_by_user is None or given.responded_at is None:
            return None
        person = Person(id=given.responded_by_user.id, name=given.responded_by_user.name)
        return AirflowAnswer(
            chosen_options=list(given.chosen_options or []),
            params_input=given.params_input or {},
            responded_at=given.responded_at,
            responded_by_user=person,
        )

    def _ending(self) -> str | None:
        ending = Settings.from_environment().ledger().ending_of(self.model, self.key)
        return None if ending is None else ending.outcome


def request_of(context: Context, ledger: Ledger, spec: PipelineSpec) -> Entry:
    """Return the request that a run is about: the trigger's, its event's, or the newest one of when the run began.

    Raises:
        AirflowFailException: there is none.
        AirflowSkipException: another pipeline of the same model asked.
    """
    model, run = spec.promote.model, context["dag_run"]
    events = context.get("triggering_asset_events") or {}
    keys = [str(event.extra["key"]) for found in events.values() for event in found if event.extra.get("key")]
    asked = (run.conf or {}).get("request")
    # A run may have the events of several requests, in no order: the ledger's decides.
    named = [asked] if asked else keys
    requests = ledger.outline(model, outcome="needs_approval")
    found = [entry for entry in requests if entry.key in named] if named else [r for r in requests if r.decided_at <= run.run_after]
    if not found:
        what = f"no request {shown(named[-1])}" if named else "no request"
        raise AirflowFailException(f"the ledger has {what} for an approval of {model}")
    request = ledger.decision(model, found[-1].key) or found[-1]
    asked_by = str(request.evidence.get("pipeline", spec.name))
    if asked_by != spec.name:
        # Two pipelines may make one model; each has its own approvers.
        raise AirflowSkipException(f"{asked_by}.approval asks about this candidate")
    return request


def _said_ended(task: Any, ledger: Ledger, request: Entry) -> bool:
    ending = ledger.ending_of(request.model, request.key)
    if ending is not None:
        _told(task, ending)
    return ending is not None


def _simple_users() -> list[str]:
    """Return the users of Airflow's simple auth manager who may answer; none for another auth manager, which a task cannot query."""
    if not conf.get("core", "auth_manager", fallback="").endswith(SIMPLE_AUTH_MANAGER):
        return []
    if conf.getboolean("core", "simple_auth_manager_all_admins", fallback=False):
        return []
    users = [entry.strip().split(":") for entry in conf.get("core", "simple_auth_manager_users", fallback="").split(",")]
    return [user[0] for user in users if len(user) > 1 and user[1].lower() in MAY_EDIT_ROLES]


def _told(task: Any, ending: Entry) -> str:
    words = ending.reasons[-1].words if ending.reasons else ""
    task.log.info("the request for version %s is %s by %s: %s", ending.version, ending.outcome, ending.decided_by, words)
    return ending.outcome


def _state_of_ask(context: Context) -> str:
    ti: Any = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[ASK], run_ids=[ti.run_id])
    return str(states.get(ti.run_id, {}).get(ASK))
