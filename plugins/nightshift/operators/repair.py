"""The hourly repair: one stage process for all models, and none where the ledger, the store and MLflow's aliases show nothing to do."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from nightshift.mlflow_account import account_header
from nightshift.operators.registry_alerts import announce_findings
from nightshift.operators.stage import StageOperator, task_errors
from nightshift.resolved_run import ResolvedRun
from nightshift.settings import Settings
from nightshift.work import Work
from training.contracts import JsonValue, RunIdentity, StageResult
from training.errors import NightshiftError, SpecError
from training.process.waiting import waiting_for_database
from training.registry.ledger.version_weights import model_id_of, noted
from training.spec.rules.names import HOUSEKEEPING
from training.stage_table import REPAIR
from training.store import Chain, Store
from training.store.garbage_collector import MAX_CLOCK_DIFFERENCE
from training.store.reachability import UNDELIVERED

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from training.registry.ledger.ledger import Ledger
    from training.retention.settings import Retention

DONE_REF: Final = "housekeeping/repair"
"""Ref to when the last whole comparison ended well."""
KEPT_REVISIONS: Final = 10
ALIASES: Final = ("champion", "canary")
ALIAS_TIMEOUT_SECONDS: Final = 10.0
MAX_REQUESTS_READ: Final = 20


class RepairOperator(StageOperator):
    """Makes MLflow agree with the ledger for all models, delivers waiting metrics, and deletes what retention deleted elsewhere."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(stage=REPAIR, **kwargs)

    @waiting_for_database()
    def execute(self, context: Context) -> dict[str, JsonValue]:
        """Return the result of the repair, as `StageOperator.execute`.

        Raises:
            AirflowSkipException: there is nothing to do; no process was started.
            AirflowFailException, StageFailedError: a model could not be repaired; the message names each and the reason.
        """
        with task_errors():
            reason = self._reason(context, Settings.from_environment())
        if not reason:
            raise AirflowSkipException("the ledger, the waiting metrics and MLflow's aliases show nothing to do")
        self.log.info("MLflow is compared with the ledger: %s", reason)
        with self._announcing(context):
            return super().execute(context)

    @waiting_for_database()
    def trigger_reentry(self, context: Context, event: dict[str, JsonValue], work_id: str = "") -> dict[str, JsonValue]:
        """Continue after a deferral; as `execute`."""
        with self._announcing(context):
            return super().trigger_reentry(context, event, work_id)

    @contextmanager
    def _announcing(self, context: Context) -> Iterator[None]:
        """Announce what the comparison found, also where it failed for some models; what no channel takes fails this task."""
        run_id, settings = _run_id(context), Settings.from_environment()
        try:
            yield
        except Exception:
            announce_findings(settings, run=run_id)
            raise
        if left := announce_findings(settings, run=run_id, is_last=True):
            raise AirflowFailException(f"[registry.alias] no channel of `alerts` took this: {'; '.join(left)}")

    def resolved(self, context: Context) -> ResolvedRun:
        """Return a spec for the process's limits and resources: the same one for the whole run, also after a deferral."""
        store = Settings.from_environment().store()
        ref = store.run_ref(HOUSEKEEPING, _run_id(context), "repair")
        head = ref.read()
        if head is None:
            ref.move({"spec_uri": self._spec_uri(store), "as_of": datetime.now(UTC).isoformat()}, expected=0)
            head = ref.read()
        return ResolvedRun({**(head.value if head else {}), "force": False})

    def work(self, context: Context, resolved: ResolvedRun, settings: Settings) -> Work:
        """Return the work, which is new in each run."""
        retention = self._retention()
        parameters = {} if retention is None else {"forget_before": (datetime.now(UTC) - retention.runs).date().isoformat()}
        return Work.of(resolved, self.stage, {}, nonce=_run_id(context), parameters=parameters)

    def finish(self, context: Context, found: StageResult, run: RunIdentity) -> dict[str, JsonValue]:
        """Note when everything was compared, and return the result for XCom."""
        value = super().finish(context, found, run)
        ref = _done_ref(Settings.from_environment())
        head = ref.head_number()
        # Without retention's settings nothing was deleted from MLflow, so the work is not over.
        if self._retention() is not None and ref.move({"done_at": datetime.now(UTC).isoformat()}, expected=head):
            ref.delete(before=head + 1 - KEPT_REVISIONS)
        return value

    def _reason(self, context: Context, settings: Settings) -> str:
        """Return why MLflow has to be looked at, empty where it has not. Reads the ledger and the store; imports no MLflow."""
        from training.registry.ledger.alias_findings import RecordedFindings

        ledger, bucket = settings.ledger(), settings.store().bucket
        waiting = bool(bucket.list(UNDELIVERED))
        if waiting:
            return "metrics wait for it"
        models = ledger.models()
        if not models:
            return ""
        if getattr(context["dag_run"], "run_type", "") == "manual":
            return "this run was triggered by hand"
        if behind := ledger.unmirrored():
            return f"MLflow does not show the newest decisions, or a process died that wrote them: {', '.join(behind)}"
        retention = self._retention()
        done = _done_ref(settings).read()
        if retention is None or done is None or not is_within(datetime.fromisoformat(done.value["done_at"]), retention.every):
            return "the last whole comparison was not within the interval (retention every)"
        if due := RecordedFindings(settings.database_url).to_announce():
            return f"an alert is due: {due[0].words}"
        store = settings.store()
        return next((found for model in models if (found := other_aliases(settings.mlflow_uri, ledger, store, model))), "")

    def _retention(self) -> Retention | None:
        from training.retention.settings import load_retention

        try:
            return load_retention()
        except SpecError as err:
            # MLflow follows the ledger even if the file is wrong; `collect` reports that error.
            self.log.error("nothing is deleted from MLflow: %s", err)
            return None

    def _spec_uri(self, store: Store) -> str:
        """Return the URI of a spec that can be read: of a model's newest decision, or of a training whose metrics wait.

        Raises:
            AirflowFailException: there is none.
        """
        for uri in _spec_uris(store, Settings.from_environment()):
            try:
                ResolvedRun({"spec_uri": uri, "as_of": datetime.now(UTC).isoformat(), "force": False})
            except NightshiftError as err:
                self.log.warning("the spec %s cannot be read, another one is used: %s", uri, err)
            else:
                return uri
        raise AirflowFailException("no decision and no waiting training names a spec that can be read: the warnings above name them")


def _spec_uris(store: Store, settings: Settings) -> Iterator[str]:
    ledger = settings.ledger()
    for model in ledger.models():
        yield from [str(entry.evidence["spec_uri"]) for entry in ledger.newest_first(model) if "spec_uri" in entry.evidence][:1]
    # `tracking/stages/<pipeline>/…` and `tracking/studies/<pipeline>/…`
    for pipeline in sorted({entry.key.split("/")[2] for entry in store.bucket.list(UNDELIVERED)}):
        requests = [entry for entry in store.bucket.list(f"stages/{pipeline}") if entry.key.endswith("/_REQUEST.json")]
        requests.sort(key=lambda entry: entry.modified, reverse=True)
        for entry in requests[:MAX_REQUESTS_READ]:
            yield store.read_request(store.bucket.uri(entry.key)).spec_uri


def is_within(done_at: datetime, interval: timedelta) -> bool:
    """Return whether an instant is not longer ago than the interval. One in the future was noted by a wrong clock and does not count."""
    return -MAX_CLOCK_DIFFERENCE <= datetime.now(UTC) - done_at < interval


def other_aliases(mlflow_uri: str, ledger: Ledger, store: Store, model: str) -> str:
    """Return how MLflow's aliases of a model differ from the ledger, or that they could not be read; empty where they agree.

    They agree where each names a version whose source has the ledger's weights, as the store notes them, and can be loaded. Three GETs of
    MLflow's REST API, five with a canary: MLflow's client takes seconds to import. An account that these requests cannot use (a plugin
    for authentication, a Secret that only stages have) is answered by a refusal, and then the stage process looks.
    """
    standing = ledger.standing(model)
    try:
        registered = _get(mlflow_uri, "registered-models/get", name=model)
        entries = [] if registered is None else registered["registered_model"].get("aliases", [])
        numbers = {str(entry["alias"]): str(entry["version"]) for entry in entries}
        for alias in ALIASES:
            holder, number = getattr(standing, alias), numbers.get(alias)
            if holder is None and number is None:
                continue
            version = None if number is None else _get(mlflow_uri, "model-versions/get", name=model, version=number)
            source = None if version is None else version["model_version"]["source"]
            facts = noted(store, source)
            if holder is None or facts is None or facts.weights_digest != holder.weights_digest:
                expected = "no version" if holder is None else f"weights {holder.weights_digest[:12]}"
                return f"the alias {alias} of {model} names version {number}, the ledger says {expected}"
            if _get(mlflow_uri, f"logged-models/{model_id_of(source)}") is None:
                return f"MLflow has lost the logged model of version {number} of {model}, the {alias}"
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError) as err:
        return f"the aliases of {model} cannot be read here ({type(err).__name__})"
    return ""


def _get(mlflow_uri: str, path: str, **parameters: str) -> Any | None:
    """Return MLflow's answer, None where what is asked for does not exist."""
    url = f"{mlflow_uri.rstrip('/')}/api/2.0/mlflow/{path}?{urllib.parse.urlencode(parameters)}"
    if not url.startswith(("http://", "https://")):
        raise ValueError("MLflow is not behind HTTP")
    request = urllib.request.Request(url, headers=account_header(os.environ))  # noqa: S310 - scheme checked
    try:
        with urllib.request.urlopen(request, timeout=ALIAS_TIMEOUT_SECONDS) as answer:  # noqa: S310 - as above
            return json.load(answer)
    except urllib.error.HTTPError as err:
        if err.code == 404 and json.load(err).get("error_code") == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


def _done_ref(settings: Settings) -> Chain:
    return settings.store().ref(DONE_REF)


def _run_id(context: Context) -> str:
    return str(context["ti"].run_id)
