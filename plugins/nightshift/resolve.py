"""A run's first task: checks the trigger, settles `as_of`, and freezes the spec, so that a YAML edited mid-run changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator
from airflow.sdk.bases.sensor import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException

from nightshift.placement import check_backend, ignored_keys
from nightshift.settings import Settings
from nightshift.sources import with_noted_places
from training.contracts import ContractError
from training.errors import NightshiftError, UnavailableError
from training.patience import waiting_for_database
from training.spec import PipelineSpec, apply_overrides, check_not_future, freeze, load_spec, resolve_uris, settle_as_of
from training.spec.uris import unset_webhook
from training.spec.values import duration_text
from training.store import Store
from training.store.listing import missing_partitions, partition_uri
from training.store.refs import Ref

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

RESOLVE: Final = "resolve"
WAIT: Final = "wait"
MAX_NAMED_DAYS: Final = 10
LOOKS: Final = 60
SHORTEST_POKE: Final = timedelta(seconds=2)
LONGEST_POKE: Final = timedelta(minutes=1)


class ResolveOperator(BaseOperator):
    """Returns `{spec_uri, as_of, force}`, and `overrides` where the trigger changes keys of the spec."""

    ui_color = "#e8eef7"

    def __init__(self, *, spec_path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec_path = spec_path

    @waiting_for_database()
    def execute(self, context: Context) -> dict[str, Any]:
        """Freeze this run's spec.

        Raises:
            AirflowFailException: with every problem of the conf, the spec or the environment.
            UnavailableError: the store does not answer; Airflow tries again.
        """
        run = context["dag_run"]
        try:
            settings = Settings.from_environment()
            spec, parameters = apply_overrides(load_spec(Path(self.spec_path)), run.conf or {})
            as_of = self.as_of(context, spec, parameters.as_of)
            check_not_future(as_of, datetime.now(UTC))
            check_backend(settings, spec)
            self._say_what_has_no_effect_here(settings, spec)
            spec = resolve_uris(spec, with_noted_places(settings.home))
            spec_uri = Store(settings.store_uri).put_json(freeze(spec))
        except UnavailableError:
            raise
        except NightshiftError as err:
            raise AirflowFailException(f"{err}\nexit code {int(err.exit_code)}: it is not retried") from err
        settled = {"spec_uri": spec_uri, "as_of": as_of.astimezone(UTC).isoformat(), "force": parameters.force}
        if parameters.overrides:
            settled["overrides"] = dict(parameters.overrides)
            self.log.info("overrides of this run: %s", ", ".join(f"{key} {value}" for key, value in parameters.overrides.items()))
        settle(context, settings, settled)
        self.log.info("as of %s, spec %s%s", as_of.isoformat(), spec_uri, ", everything done again" if parameters.force else "")
        return settled

    def _say_what_has_no_effect_here(self, settings: Settings, spec: PipelineSpec) -> None:
        ignored = ignored_keys(settings, spec)
        if ignored:
            self.log.info("the backend %s ignores %s", settings.backend, ", ".join(ignored))
        variable = unset_webhook(spec.alerts)
        if variable:
            self.log.warning("alerts.webhook: the environment variable %s is not set, so no alert is posted", variable)

    def as_of(self, context: Context, spec: PipelineSpec, parameter: str | None) -> datetime:
        """Return the instant whose past the run may see; `parameter` is the trigger's."""
        run = context["dag_run"]
        return settle_as_of(spec, parameter=parameter, logical_date=run.logical_date, run_after=run.run_after)


class WaitForData(BaseSensorOperator):
    """Waits for late partitions without holding a slot, then fails naming them."""

    ui_color = "#e8eef7"

    def __init__(self, *, wait: timedelta, **kwargs: Any) -> None:
        """Wait for at most `wait`, counted from the start of the run, looking sixty times, but 2 s to 60 s apart."""
        poke = min(max(wait / LOOKS, SHORTEST_POKE), LONGEST_POKE)
        super().__init__(mode="reschedule", poke_interval=poke, timeout=wait, **kwargs)
        self.longest_wait = wait

    @waiting_for_database()
    def execute(self, context: Context) -> None:
        """Return once every partition of the window is there.

        Raises:
            AirflowRescheduleException: not yet; look again at its date.
            AirflowFailException: the time is over; or the source will not be read.
            UnavailableError: the source does not answer; Airflow tries again.
        """
        try:
            missing = self._missing(Frozen.of(context))
        except UnavailableError:
            raise
        except (NightshiftError, ContractError) as err:
            raise AirflowFailException(str(err)) from err
        if not missing:
            return
        now = datetime.now(UTC)
        # Not counted by Airflow's own clock of a sensor, which starts anew with every try.
        until = (context["dag_run"].start_date or now) + self.longest_wait
        if now >= until:
            waited = duration_text(self.longest_wait)
            raise AirflowFailException(
                f"[partition.missing] {missing} (the night waited {waited}, data.source.wait; trigger it once they are)"
            )
        self.log.info("%s; waiting until %s", missing, until.isoformat(timespec="seconds"))
        raise AirflowRescheduleException(min(now + timedelta(seconds=self.poke_interval), until))  # type: ignore[no-untyped-call]

    def _missing(self, frozen: Frozen) -> str:
        source = frozen.spec.data.source
        days = missing_partitions(frozen.spec, frozen.as_of)
        if not days or source.partition is None:
            return ""
        named = ", ".join(partition_uri(source.uri, source.partition, day) for day in days[:MAX_NAMED_DAYS])
        more = f" and {len(days) - MAX_NAMED_DAYS} more" if len(days) > MAX_NAMED_DAYS else ""
        return f"{len(days)} of {source.window.days} partitions of {source.table} are not there: {named}{more}"


def settle(context: Context, settings: Settings, settled: Mapping[str, Any]) -> None:
    """Keep in the store what a run's first task has settled: XCom can be written by whoever may call the API, the store not."""
    ref = _settled(context, settings)
    while True:
        head = ref.read()
        if (head is not None and head.value == settled) or ref.move(dict(settled), expected=head.number if head else 0):
            return


def check_settled(context: Context, settings: Settings) -> None:
    """Refuse to decide by a spec that is not the run's own.

    Raises:
        ContractError: the XCom of `resolve` is not what it settled.
    """
    head = _settled(context, settings).read()
    if head is None or head.value != dict(context["ti"].xcom_pull(task_ids=RESOLVE) or {}):
        raise ContractError(f"the XCom of task {RESOLVE!r} is not what it settled (the store knows); clear {RESOLVE!r} and what follows")


def _settled(context: Context, settings: Settings) -> Ref:
    ti: Any = context["ti"]
    return Store(settings.store_uri).run_ref(ti.dag_id, ti.run_id, "settled")


class Frozen:
    """What `resolve` settled, as later tasks read it."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.spec_uri = str(values["spec_uri"])
        self.as_of = datetime.fromisoformat(values["as_of"])
        self.force = bool(values["force"])
        self.overrides: Mapping[str, Any] = values.get("overrides", {})
        """Dotted key of the spec to the value that the trigger gave instead."""
        self.store = Store(Settings.from_environment().store_uri)
        self.spec = PipelineSpec.thaw(self.store.get_json(self.spec_uri))

    @classmethod
    def of(cls, context: Context) -> Frozen:
        """Read it from XCom.

        Raises:
            ContractError: `resolve` left nothing.
        """
        values = context["ti"].xcom_pull(task_ids=RESOLVE)
        if not isinstance(values, Mapping):
            raise ContractError(f"task {RESOLVE!r} left no result (got {type(values).__name__}); see its log")
        return cls(values)
