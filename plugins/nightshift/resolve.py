"""A run's first task: checks the trigger, settles `as_of`, and freezes the spec, so that a YAML edited mid-run changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.bases.sensor import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout

from nightshift.settings import Settings
from training.contracts import ContractError
from training.errors import NightshiftError
from training.spec import PipelineSpec, apply_overrides, freeze, load_spec, resolve_uris, settle_as_of
from training.store import Store

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

RESOLVE = "resolve"
WAIT = "wait"
MAX_NAMED_DAYS = 10


class ResolveOperator(BaseOperator):
    """Returns `{spec_uri, as_of, force}`."""

    ui_color = "#e8eef7"

    def __init__(self, *, spec_path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec_path = spec_path

    def execute(self, context: Context) -> dict[str, Any]:
        """Freeze this run's spec.

        Raises:
            AirflowFailException: with every problem of the conf, the spec or the environment.
        """
        run = context["dag_run"]
        try:
            spec, parameters = apply_overrides(load_spec(Path(self.spec_path)), run.conf or {})
            as_of = settle_as_of(spec, parameter=parameters.as_of, logical_date=run.logical_date, run_after=run.run_after)
            spec = resolve_uris(spec)
            store = Store(Settings.from_environment().store_uri)
            spec_uri = store.put_json(freeze(spec))
        except NightshiftError as err:
            raise AirflowFailException(str(err)) from err
        self.log.info("as of %s, spec %s%s", as_of.isoformat(), spec_uri, ", everything done again" if parameters.force else "")
        return {"spec_uri": spec_uri, "as_of": as_of.astimezone(UTC).isoformat(), "force": parameters.force}


class WaitForData(BaseSensorOperator):
    """Waits for late partitions without holding a slot, then fails naming them."""

    ui_color = "#e8eef7"

    def poke(self, context: Context) -> bool:
        """Say whether every partition of the window is there."""
        missing = self._missing(context)
        if missing:
            self.log.info("%s", missing)
        return not missing

    def execute(self, context: Context) -> Any:
        """Wait; see BaseSensorOperator.

        Raises:
            AirflowSensorTimeout: the stated time is over.
        """
        try:
            return super().execute(context)
        except AirflowSensorTimeout as err:
            raise AirflowSensorTimeout(f"[partition.missing] {self._missing(context)} (waited as long as data.source.wait says)") from err

    def _missing(self, context: Context) -> str:
        from training.store.listing import missing_partitions, partition_uri

        frozen = Frozen.of(context)
        days = missing_partitions(frozen.spec, frozen.as_of)
        if not days:
            return ""
        source = frozen.spec.data.source
        named = ", ".join(partition_uri(source.uri, source.partition or "", day) for day in days[:MAX_NAMED_DAYS])
        more = f" and {len(days) - MAX_NAMED_DAYS} more" if len(days) > MAX_NAMED_DAYS else ""
        return f"{len(days)} of {source.window.days} partitions of {source.table} are not there: {named}{more}"


class Frozen:
    """What `resolve` settled, as later tasks read it."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.spec_uri = str(values["spec_uri"])
        self.as_of = datetime.fromisoformat(values["as_of"])
        self.force = bool(values["force"])
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
