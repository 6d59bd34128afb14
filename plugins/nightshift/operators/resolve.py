"""A run's first task: checks the trigger, settles `as_of`, and freezes the spec, so that a YAML edited mid-run changes nothing."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from nightshift.execution.backend import Backend, backend_of
from nightshift.operators.external_model import store_artifact
from nightshift.operators.failure_message import noted_failure
from nightshift.operators.requested_snapshot import KIND, find_snapshot
from nightshift.resolved_run import PROMOTE, settle
from nightshift.run_refs import check_run_id
from nightshift.settings import Settings
from nightshift.source_uris import resolved
from training.contracts import JsonObject, JsonValue, json_object
from training.errors import DataError, NightshiftError, UnavailableError, spec_error
from training.process.waiting import waiting_for_database
from training.runtime.provenance import git_state
from training.sources.listing import previous_snapshot
from training.sources.schema_changes import in_words, schema_changes
from training.sources.table_contract import contracts_of
from training.spec import PipelineSpec, RunParameters, apply_overrides, check_not_future, freeze, load_spec, settle_as_of, spec_part
from training.spec.registration import registered_spec
from training.spec.uris import unset_webhook
from training.store import Store

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context


class ResolveOperator(BaseOperator):
    """Returns `{spec_uri, as_of, force}`, `overrides` where the trigger changes keys of the spec, and `snapshot` and `artifact` where it
    names one: the data, and a model from outside."""

    ui_color = "#e8eef7"

    def __init__(self, *, spec_path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec_path = spec_path
        self.also_settled: JsonObject = {}
        """What a subclass adds to the result as it chooses `as_of`."""

    @waiting_for_database()
    def execute(self, context: Context) -> dict[str, JsonValue]:
        """Freeze this run's spec.

        Raises:
            AirflowFailException: with every problem of the conf, the spec or the environment.
            UnavailableError: the store does not answer; Airflow tries again.
        """
        with noted_failure(context, AirflowFailException):
            return self._settled(context)

    def _settled(self, context: Context) -> dict[str, JsonValue]:
        run = context["dag_run"]
        try:
            check_run_id(run.run_id)
            settings = Settings.from_environment()
            of_yaml = load_spec(Path(self.spec_path))
            spec, parameters = apply_overrides(of_yaml, run.conf or {})
            spec = self._judged_alone(spec, parameters, run.dag_id)
            chosen = None if parameters.snapshot is None else find_snapshot(spec, parameters, settings)
            as_of = self.as_of(context, spec, parameters.as_of) if chosen is None else chosen.as_of
            check_not_future(as_of, datetime.now(UTC))
            backend = backend_of(settings)
            backend.check(spec)
            self._say_what_has_no_effect_here(settings.backend, backend, spec)
            declared, spec = spec, resolved(spec, settings)
            store = settings.store()
            if chosen is None:
                self._compare_schema(store, spec, as_of, settings)
            given = parameters.registration
            artifact = None if given is None else store_artifact(given, declared, run.run_id, settings)
            spec_uri = store.put_json(freeze(spec))
            overrides = _recorded(parameters, None if chosen is None else chosen.version)
            if run.dag_id == spec.name:
                # A helper's run is none of the pipeline's, and may have the id of one.
                self._record(run.run_id, declared, as_of, overrides, settings)
        except UnavailableError:
            raise
        except NightshiftError as err:
            raise AirflowFailException(f"{err}\nexit code {int(err.exit_code)}: it is not retried") from err
        settled: dict[str, JsonValue] = {"spec_uri": spec_uri, "as_of": as_of.astimezone(UTC).isoformat(), "force": "", **self.also_settled}
        if parameters.force:
            # The run's id would not do: a run that was deleted and triggered again has the same one.
            settled["force"] = secrets.token_hex(8)
        if overrides:
            # The decision about the model records them.
            settled["overrides"] = overrides
        if parameters.overrides:
            listed = ", ".join(f"{key} {value}" for key, value in parameters.overrides.items())
            self.log.info("overrides of this run: %s; %s", listed, _new_work(of_yaml, declared))
        if chosen is not None:
            settled["snapshot"] = {"uri": chosen.uri, "digest": chosen.digest}
            self.log.info("the run takes snapshot %s instead of its sources", chosen.version)
        if artifact is not None:
            settled["artifact"] = {"uri": artifact.uri, "digest": artifact.digest}
            self.log.info("the run judges a model from outside instead of training one: %s", artifact.uri)
        settle(context, settings, settled)
        self.log.info("as of %s, spec %s%s", as_of.isoformat(), spec_uri, ", everything done again" if parameters.force else "")
        return settled

    def _judged_alone(self, spec: PipelineSpec, parameters: RunParameters, dag_id: str) -> PipelineSpec:
        """Return the spec of a run whose model comes from outside; the same spec where it trains one."""
        if parameters.registration is None:
            return spec
        if dag_id != spec.name:
            message = f"{dag_id} decides about no model"
            raise spec_error("trigger", "field.conflict", message, hint=f"trigger {spec.name}", field="registration")
        return registered_spec(spec, parameters.registration)

    def _record(self, run_id: str, spec: PipelineSpec, as_of: datetime, overrides: JsonObject, settings: Settings) -> None:
        """Note the run for SQL clients, with the variables of the YAML by their names."""
        from training.database.pipeline_runs import SettledRun, record_run

        config = freeze(spec)
        placement = json_object(json_object(config["train"]).get("placement") or {})
        run = SettledRun(
            pipeline=spec.name,
            run_id=run_id,
            as_of=as_of,
            git_commit=str(git_state()["commit"]),
            parameters=overrides,
            resource_spec={"train.placement": placement, "resources": config.get("resources")},
            description=spec.description,
            schedule=spec.schedule,
            owner=spec.owner,
            dag_config=config,
        )
        record_run(settings.database(), run)

    def _compare_schema(self, store: Store, spec: PipelineSpec, as_of: datetime, settings: Settings) -> None:
        """Compare the declared columns with those of the previous snapshot (R28): nothing has been read or trained yet.

        Raises:
            DataError: `schema.changed`, they differ, and `validate.schema_change` is `fail`.
        """
        from training.database.datasets import deprecated_versions

        deprecated = deprecated_versions(settings.database(), spec.name)
        previous = previous_snapshot(store, spec.name, as_of, deprecated=deprecated)
        if previous is None:
            return
        try:
            meta = store.manifests.get(previous, kind=KIND).meta
        except DataError as err:
            # Nothing brings it back: it must not stop every later run.
            self.log.warning("the columns are not compared with those of the previous snapshot: [%s] %s", err.code, err.message)
            return
        changes = schema_changes(contracts_of(spec), json_object(meta["tables"]))
        if not changes:
            return
        message = f"the YAML declares other columns than the snapshot of {meta['as_of']} has: {in_words(changes)}"
        if spec.validate_.schema_change == "fail":
            hint = "correct the YAML; or set validate.schema_change to warn for the run that makes the change"
            raise DataError("schema.changed", message, hint=hint)
        self.log.warning("[schema.changed] %s", message)

    def _say_what_has_no_effect_here(self, name: str, backend: Backend, spec: PipelineSpec) -> None:
        ignored = backend.ignored_keys(spec)
        if ignored:
            self.log.info("the backend %s ignores %s", name, ", ".join(ignored))
        variable = unset_webhook(spec.alerts)
        if variable:
            self.log.warning("alerts.webhook: the environment variable %s is not set, so no alert is posted", variable)

    def as_of(self, context: Context, spec: PipelineSpec, parameter: str | None) -> datetime:
        """Return the instant whose past the run may see; `parameter` is the trigger's."""
        run = context["dag_run"]
        return settle_as_of(spec, parameter=parameter, logical_date=run.logical_date, run_after=run.run_after)


def _new_work(of_yaml: PipelineSpec, spec: PipelineSpec) -> str:
    """Return what the overrides of a run change about its work."""
    # The number of processes is an input of the training's work of its own.
    sizes = {each.train.placement.world_size for each in (of_yaml, spec)}
    parts = [(stage, spec_part(spec, stage) != spec_part(of_yaml, stage)) for stage in spec.stages]
    changed = [stage for stage, differs in parts if differs or (stage == "train" and len(sizes) > 1)]
    return f"its work is another than the YAML's from {changed[0]} on" if changed else "its work is that of the YAML"


def _recorded(parameters: RunParameters, snapshot: str | None) -> dict[str, JsonValue]:
    """Return what the trigger gave, as the decision about the model records it."""
    found: dict[str, JsonValue] = {**parameters.overrides}
    if not parameters.promote:
        found[PROMOTE] = False
    if snapshot is not None:
        found["snapshot"] = snapshot
    if parameters.registration is not None:
        found["registration"] = parameters.registration.model_dump(mode="json", exclude_none=True)
    return found
