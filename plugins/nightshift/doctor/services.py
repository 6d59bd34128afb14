"""MLflow and Airflow: whether they answer, know this user, and have what Nightshift needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from nightshift.client import Client, client_of
from nightshift.doctor.findings import Finding, Installation, bad, good
from nightshift.mlflow_account import MLFLOW_PASSWORD, MLFLOW_USER, account_header, laptop_variables
from nightshift.settings import LOCAL, LOCAL_HOST, SLOTS
from nightshift.slots import CPU, TRAIN, machine_slots, num_cores, slots_by_pool
from training.installation import TRACKING
from training.runtime.available_memory import memory_limit_bytes
from training.runtime.provenance import version_of
from training.spec.rules.names import ROLLBACK

TIMEOUT_SECONDS: Final = 10.0
MAX_CLOCK_SECONDS: Final = 30.0
"""Of a server's clock: tokens of Airflow are valid from when they were made, by its clock."""
START: Final = "start it; on a laptop: make start"
PLUGIN: Final = "put a file with `from nightshift_plugin import NightshiftPlugin` into Airflow's plugins folder, and restart its api-server"
HEALTHY: Final = "healthy"
MAX_EXPERIMENTS: Final = 1000
"""Deleted ones that are looked at."""


def mlflow(place: Installation) -> Iterator[Finding]:
    """Ask MLflow's server for its health, its version and the experiments that were deleted."""
    uri = place.settings.mlflow_uri.rstrip("/")
    # A proxy of the environment cannot reach this machine's own ports.
    is_local = urlsplit(uri).hostname in (LOCAL_HOST, "localhost")
    with httpx.Client(timeout=TIMEOUT_SECONDS, headers=_account(place), trust_env=not is_local) as http:
        try:
            health = http.get(f"{uri}/health")
            asked = http.get(
                f"{uri}/api/2.0/mlflow/experiments/search", params={"view_type": "DELETED_ONLY", "max_results": MAX_EXPERIMENTS}
            )
            version = http.get(f"{uri}/version")
        except httpx.TransportError as err:
            yield bad("mlflow", f"{uri} does not answer: {err}", hint=f"{START}; {TRACKING.name} has its address")
            return
    if not health.is_success:
        yield bad("mlflow", f"{uri}/health answers {health.status_code}", hint=f"is {TRACKING.name} the address of an MLflow server?")
    elif asked.status_code in (401, 403):
        hint = f"set {MLFLOW_USER.name} and {MLFLOW_PASSWORD.name} to an account that may read and write"
        yield bad("mlflow", f"{uri} refuses this user ({asked.status_code})", hint=hint)
    elif not asked.is_success:
        yield bad("mlflow", f"{uri} answers {asked.status_code} to a search for experiments", hint="see the log of its server")
    else:
        yield from _mlflow_version(uri, version)
        yield from _deleted_experiments(place, asked.json())


def _deleted_experiments(place: Installation, answer: Mapping[str, Any]) -> Iterator[Finding]:
    """Trainings of such a pipeline succeed, and a line in each log says that their metrics are dropped."""
    names = {path.stem for path in place.settings.pipelines_path.glob("*.yaml")}
    for found in answer.get("experiments", ()):
        if found["name"] in names:
            hint = f"mlflow experiments restore --experiment-id {found['experiment_id']}"
            yield bad("mlflow", f"the experiment {found['name']} was deleted: trainings are not tracked", hint=hint)


def _mlflow_version(uri: str, answer: httpx.Response) -> Iterator[Finding]:
    here = version_of("mlflow") or version_of("mlflow-skinny")
    there = answer.text.strip() if answer.is_success else ""
    if here and there and here.split(".")[0] != there.split(".")[0]:
        yield bad("mlflow", f"{uri} is MLflow {there}, the client here {here}", hint="run both in the version of constraints.txt")
    else:
        yield good("mlflow", f"{uri} answers{f' (MLflow {there})' if there else ''}, and knows this user")


def airflow(place: Installation) -> Iterator[Finding]:
    """Ask Airflow for the health of its components, and for what Nightshift adds to it."""
    with client_of(place.server, place.environ) as client:
        health = client.airflow("GET", "/monitor/health")
        yield from _components(client.server, health.json())
        yield clock_of(client.server, health)
        yield from _plugin(client)
        yield from _dags(client)
        if place.settings.backend == LOCAL:
            room = sum(machine_slots(num_cores(), memory_limit_bytes()).values())
            yield pools(client, slots_by_pool(place.settings), room)


def _components(server: str, health: Mapping[str, Mapping[str, str | None] | None]) -> Iterator[Finding]:
    for name, state in health.items():
        status = str((state or {}).get("status"))
        if status == HEALTHY:
            yield good("airflow", f"{server}: {name} is healthy")
        else:
            yield bad("airflow", f"{server}: {name} is {'not running' if status == 'None' else status}", hint=f"{START}, and see its log")


def clock_of(server: str, answer: httpx.Response) -> Finding:
    """Compare the clock of a server, as its answer has it, with this machine's."""
    date = answer.headers.get("date")
    if date is None:
        return good("clock", f"{server} does not say what time it is")
    difference = abs(datetime.now(UTC).timestamp() - parsedate_to_datetime(date).timestamp())
    message = f"the clock of {server} differs by {difference:,.0f} s from this machine's"
    if difference > MAX_CLOCK_SECONDS:
        return bad(
            "clock",
            f"{message}, required <= {MAX_CLOCK_SECONDS:.0f} s",
            hint="synchronize both clocks by NTP: tokens are refused otherwise",
        )
    return good("clock", message)


def _plugin(client: Client) -> Iterator[Finding]:
    names = {str(each["name"]) for each in client.airflow("GET", "/plugins").json()["plugins"]}
    if "nightshift" not in names:
        yield bad("plugin", f"{client.server} has not loaded the plugin nightshift", hint=PLUGIN)
        return
    pipelines = [each.name for each in client.pipelines()]
    yield good("plugin", f"{client.server} has the plugin, and shows this user {len(pipelines)} pipelines")
    there, here = str(client.airflow("GET", "/version").json()["version"]), version_of("apache-airflow")
    if here and here != there:
        yield bad("plugin", f"{client.server} is Airflow {there}, here is {here}", hint="run both in the version of constraints.txt")


def _dags(client: Client) -> Iterator[Finding]:
    errors = client.airflow("GET", "/importErrors", params={"limit": 100}).json()["import_errors"]
    for error in errors:
        last = (str(error["stack_trace"]).strip().splitlines() or [""])[-1]
        yield bad(
            "dags", f"{error['filename']} does not load: {last}", hint="correct the file; `nightshift check` shows problems of YAML files"
        )
    if not errors:
        yield good("dags", "every DAG file loads")
    known = {str(each["dag_id"]) for each in client.airflow("GET", "/dags", params={"dag_id_pattern": ROLLBACK}).json()["dags"]}
    if ROLLBACK not in known:
        yield bad(
            "dags",
            f"there is no DAG {ROLLBACK!r}: models cannot be rolled back in Airflow",
            hint="copy dags/rollback.py to the DAGs folder",
        )


def pools(client: Client, wanted: Mapping[str, int], room: int) -> Finding:
    """Compare the slots of the pools of stages with those that this machine has room for, where the stages run.

    Args:
        wanted: slots of a pool that the first run has not made yet.
        room: slots by cores and memory.
    """
    found = {str(each["name"]): int(each["slots"]) for each in client.airflow("GET", "/pools", params={"limit": 100}).json()["pools"]}
    slots = {name: found[name] if name in found else wanted[name] for name in (CPU, TRAIN)}
    message = (
        f"the pools {' and '.join(f'{name} ({number})' for name, number in slots.items())} are for a machine with room for {room} stages"
    )
    if 2 * sum(slots.values()) < room:
        hint = f"set {SLOTS.name}, or delete these pools in Airflow: the next run makes them by the machine's cores and memory"
        return bad("pools", f"{message}, and use less than half of it", hint=hint)
    return good("pools", message)


def _account(place: Installation) -> dict[str, str]:
    """Return the header of the account at MLflow: of the environment, else the laptop installation's."""
    found = account_header(place.environ)
    if found or TRACKING.text(place.environ):
        return found
    return account_header(laptop_variables(place.settings))
