"""`make run`: the services, the demo's data, the next night of a pipeline, shown to its end and summed up."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Final

from devstack.airflow_api import AirflowApi
from devstack.canary_look import look_at_canary, note_night
from devstack.dag_parsing import ParseLimit
from devstack.dag_pausing import switched_on
from devstack.environment import dags_path, environment, shop_root
from devstack.lifecycle import api, start
from devstack.next_night import RUN_ID_PREFIX, Night, PastRun, latest_first, next_night
from devstack.run_progress import Follower
from devstack.run_summary import summary
from devstack.service_restarts import Keeper
from devstack.shutdown import running, stopped_services_named
from devstack.sources_file import require_noted_places
from devstack.storage_check import require_home
from devstack.wait_messages import Awaited
from nightshift.settings import Settings
from training.contracts import JsonObject, JsonValue, instant_text
from training.errors import DeniedError, NightshiftError, shown
from training.spec import PipelineSpec, apply_overrides, check_not_future, load_spec, partitions, resolve_uris
from training.spec.reader.problems import nearest

MAX_PAST_RUNS: Final = 100

Say = Callable[[str], None]


def run_night(settings: Settings, pipeline: str, *, night: date | None, force: bool, say: Say, overrides: JsonObject | None = None) -> int:
    """Run the next night (or the wanted one) of a pipeline to its end; return 0 only if it succeeded.

    Args:
        overrides: of this run, as a trigger's conf: `{train: {…}, evaluate: {…}, tune: {…}}`.

    Raises:
        SpecError: the pipeline's YAML or an override is wrong, or a place (`${…_URI}`) is not set; nothing was started then.
        DeniedError: `pipeline.unknown`.
        NightshiftError: `night.dag` not parsed; those of `lifecycle.start`.
    """
    conf = dict(overrides or {})
    # Airflow takes unknown keys, and the run would fail in its first task: refuse them before anything is made or starts.
    apply_overrides(find_spec(settings, pipeline), conf)
    spec = checked_spec(settings, pipeline)
    start(settings, say)
    keeper = Keeper(settings, say)
    client = api(settings, is_running=keeper)
    hint = f"make run PIPELINE={spec.name} starts them again and continues the run: finished stages are reused"
    try:
        with stopped_services_named(settings.home, f"the night of {spec.name}", hint):
            wait_parsed(client, spec.name, say, written_at=written_at(settings, spec.name))
            on_snapshot = conf.get("snapshot") is not None
            runs = past_runs(client, spec.name, night)
            chosen = next_night(spec, runs, wanted=night, now=datetime.now(UTC), has_own_instant=on_snapshot)
            with switched_on(client, settings.home, spec.name, say), keeper:
                require_noted_places(settings, spec)
                return 0 if run_one(settings, client, spec, chosen, force=force, say=say, overrides=conf) == "success" else 1
    finally:
        client.close()


def checked_spec(settings: Settings, pipeline: str) -> PipelineSpec:
    """Return a pipeline's spec, every place that it names being set.

    Raises:
        SpecError: it is wrong, or a place is not set.
        DeniedError: `pipeline.unknown`, there is none of this name.
    """
    spec = find_spec(settings, pipeline)
    require_home(settings)  # What follows makes secrets in it.
    resolve_uris(spec, environment(settings))
    return spec


def past_runs(client: AirflowApi, dag_id: str, day: date | None = None) -> list[PastRun]:
    """Return the runs of the latest nights as `latest_first` orders them; only those of one day if it is given."""
    prefix = RUN_ID_PREFIX + (day.isoformat() if day else "")
    # Not by the time at which they ran: a backfill of older nights would leave no place for the latest one.
    runs = client.get(f"/dags/{dag_id}/dagRuns", run_id_prefix_pattern=prefix, order_by="-run_id", limit=MAX_PAST_RUNS)["dag_runs"]
    return latest_first([PastRun(run["dag_run_id"], run["state"]) for run in runs])


def follow_run(settings: Settings, pipeline: str, run_id: str | None, *, say: Say) -> int:
    """Show a run (default: the newest) to its end and sum it up; return 0 only if it succeeded.

    Raises:
        NightshiftError: `services.stopped`, `night.run`: there is no such run.
    """
    if running(settings.home) is None:
        raise NightshiftError("services.stopped", f"nothing runs in {settings.home}", hint="make run, or make start")
    client = api(settings)
    try:
        return _follow(settings, client, pipeline, run_id, say)
    finally:
        client.close()


def _follow(settings: Settings, client: AirflowApi, pipeline: str, run_id: str | None, say: Say) -> int:
    hint = f"make run PIPELINE={pipeline}, or make start"
    with stopped_services_named(settings.home, f"{run_id or 'the newest run'} of {pipeline}", hint):
        if run_id is None:
            runs = client.get(f"/dags/{pipeline}/dagRuns", order_by="-run_after", limit=1)["dag_runs"]
            run_id = runs[0]["dag_run_id"] if runs else ""
        if not run_id or client.find(f"/dags/{pipeline}/dagRuns/{run_id}") is None:
            raise NightshiftError(
                "night.run", f"pipeline {shown(pipeline)} has no run {shown(run_id)}", hint=f"make run PIPELINE={pipeline}"
            )
        return 0 if _show(settings, client, pipeline, run_id, say) == "success" else 1


def find_spec(settings: Settings, pipeline: str) -> PipelineSpec:
    path = settings.pipelines_path / f"{pipeline}.yaml"
    if not path.is_file():
        known = [found.stem for found in settings.pipelines_path.glob("*.yaml")]
        message = f"there is no pipeline {shown(pipeline)} in {settings.pipelines_path}"
        raise DeniedError("pipeline.unknown", message, hint=nearest(pipeline, known))
    return load_spec(path)


def written_at(settings: Settings, pipeline: str) -> datetime | None:
    """Return when a pipeline's YAML or DAG file was last written; None if neither can be looked at."""
    times = []
    for path in (settings.pipelines_path / f"{pipeline}.yaml", dags_path(settings) / f"{pipeline}.py"):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return datetime.fromtimestamp(max(times), UTC) if times else None


def wait_parsed(client: AirflowApi, dag_id: str, say: Say, *, written_at: datetime | None = None) -> None:
    """Return once Airflow has a DAG from its present file.

    A DAG whose file did not load is stale: Airflow still shows it and starts no run. An error from before the file was corrected
    stays until the file is read again, so that is asked for, and earlier errors do not count. Airflow cannot be asked for a DAG that
    never loaded; it reads the file again by itself.

    Args:
        written_at: when the files were last written: errors from before do not count.

    Raises:
        NightshiftError: `night.dag`.
    """
    limit, awaited = ParseLimit(client), Awaited(say)
    asked_at: datetime | None = None
    since = written_at
    while (dag := client.find(f"/dags/{dag_id}")) is None or dag["is_stale"]:
        if dag is not None and asked_at is None:
            since = asked_at = datetime.now(UTC)
            with contextlib.suppress(NightshiftError):
                client.put(f"/parseDagFile/{dag['file_token']}")
        if error := _load_error(client, dag_id, since):
            raise NightshiftError("night.dag", f"the DAG of {dag_id} does not load:\n{error[-3000:]}")
        if limit.is_spent():
            raise NightshiftError(
                "night.dag", f"Airflow knows no DAG {dag_id} after {awaited.seconds:.0f} s", hint=f"is there a dags/{dag_id}.py?"
            )
        awaited.look(f"Airflow to read dags/{dag_id}.py")
        time.sleep(0.3)


def _load_error(client: AirflowApi, dag_id: str, since: datetime | None) -> str | None:
    for error in client.get("/importErrors", limit=100)["import_errors"]:
        if error["filename"].endswith(f"{dag_id}.py") and (since is None or datetime.fromisoformat(error["timestamp"]) >= since):
            return str(error["stack_trace"])
    return None


def run_one(
    settings: Settings,
    client: AirflowApi,
    spec: PipelineSpec,
    night: Night,
    *,
    force: bool,
    say: Say,
    overrides: JsonObject | None = None,
    summed_up: bool = True,
) -> str:
    """Start a night, or follow one that runs already, until it ends; return its final state, `success` or `failed`.

    The DAG must be on: `switched_on`. Left on, the schedule would start a real night in the middle of the simulated ones, and wait
    for data that does not exist.

    Args:
        overrides: of this run, as a trigger's conf.
        summed_up: show the summary too; that of a failed night is always shown.
    """
    now = datetime.now(UTC)
    as_of = night.as_of or now
    # `resolve` refuses it too, but the demo would first make the data of years.
    check_not_future(as_of, now)
    if not (overrides or {}).get("snapshot"):
        make_data(settings, spec, as_of, say)
    if night.running_already:
        say(f"{night.run_id} of {spec.name} still runs; following it" + (", without the overrides in CONF" if overrides else ""))
    else:
        note_night(settings, spec, night)
        _trigger(client, spec.name, night, overrides or {}, force=force, say=say)
    try:
        state = _show(settings, client, spec.name, night.run_id, say, summed_up=summed_up)
    except (KeyboardInterrupt, SystemExit):
        say(f"\n{night.run_id} of {spec.name} is not finished; make run PIPELINE={spec.name} continues it")
        raise
    if state == "success":
        look_at_canary(settings, client, spec, night, say=say)
    return state


def _trigger(client: AirflowApi, dag_id: str, night: Night, overrides: JsonObject, *, force: bool, say: Say) -> None:
    as_of = None if night.as_of is None else instant_text(night.as_of)
    chosen = {name: value for name, value in (("as_of", as_of), ("force", force or None)) if value is not None}
    conf: dict[str, JsonValue] = {**overrides, **chosen}
    # The run's id makes it safe to repeat: a request whose answer was lost has made the run.
    client.create(f"/dags/{dag_id}/dagRuns", {"dag_run_id": night.run_id, "logical_date": None, "conf": conf})
    say(f"{dag_id}, run {night.run_id}" + (f", as of {as_of}" if as_of else ""))


def _show(settings: Settings, client: AirflowApi, dag_id: str, run_id: str, say: Say, *, summed_up: bool = True) -> str:
    follower = Follower(settings, client, dag_id, run_id, say)
    state = follower.follow()
    if summed_up or state != "success":
        say(summary(settings, client, dag_id, run_id, follower))
    return state


POLL_SECONDS: Final = 1.0
SHOP_PREFIX = "${SHOP_URI}/"


def make_data(settings: Settings, spec: PipelineSpec, as_of: datetime, say: Callable[[str], None]) -> None:
    """Make the days of the night's window that are missing, if the pipeline reads the simulated shop in its usual place.

    Raises:
        NightshiftError: `demo.data`, with what the generator said.
    """
    root = shop_root(settings)
    if not (spec.data.source.uri or "").startswith(SHOP_PREFIX) or environment(settings)["SHOP_URI"] != root.as_uri():
        return
    days = partitions(spec, as_of)
    if all((root / "clicks" / f"dt={day.isoformat()}").exists() for day in days):
        return
    say(f"making the shop's data up to {days[-1]}")
    command = [sys.executable, "-m", "devstack.shop", "--root", str(root), "--first", days[0].isoformat(), "--days", str(len(days))]
    _run(command, environment(settings), Awaited(say))


def _run(command: list[str], variables: dict[str, str], awaited: Awaited) -> None:
    # In a file: a full pipe would stop the generator while it is awaited.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            while process.poll() is None:
                awaited.look("the shop's data")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            output.seek(0)
            said = output.read().decode("utf-8", "replace")
            raise NightshiftError("demo.data", f"the shop's data could not be made:\n{said[-2000:]}")
