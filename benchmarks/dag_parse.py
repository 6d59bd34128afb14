"""Seconds to parse 200 pipelines, and one; CPU to serialise them; whether parsing twice serialises alike.

Peer: 200 DAGs of eight empty tasks. The dag-processor parses and serialises a file that has changed in a process that it forks: the CPU of
such a process is measured with and without what nightshift.airflow_ext.preloading imports before the fork. The write to Airflow's database,
0.05 s of CPU a file in the dag-processor's own process, is not in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NUM_PIPELINES = 200

FORKED_SCRIPT = """
import os, resource, sys
from pathlib import Path
import airflow.dag_processing.processor, airflow.jobs.dag_processor_job_runner, airflow.serialization.serialized_objects
from airflow.plugins_manager import get_timetables_plugins
from nightshift.airflow_ext.preloading import preload
get_timetables_plugins()
if sys.argv[1] == "preloaded":
    preload()
files = sorted(Path(sys.argv[2]).glob("*.py"))[:20]
for file in files:
    pid = os.fork()
    if pid == 0:
        try:
            from airflow.dag_processing.dagbag import BundleDagBag
            from airflow.serialization.serialized_objects import DagSerialization
            bag = BundleDagBag(dag_folder=str(file), bundle_path=file.parent, bundle_name="bench", load_op_links=False)
            done = [DagSerialization.to_dict(dag) for dag in bag.dags.values()]
        finally:
            os._exit(0 if done else 1)
    assert os.waitpid(pid, 0)[1] == 0
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print((used.ru_utime + used.ru_stime) / len(files))
"""

SCRIPT = """
import json, sys, time
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
DagBag(dag_folder=sys.argv[3])
started = time.monotonic()
bag = DagBag(dag_folder=sys.argv[1])
seconds = time.monotonic() - started
started = time.monotonic()
peer = DagBag(dag_folder=sys.argv[2])
peer_seconds = time.monotonic() - started
def cpu_seconds(work):
    started = time.process_time()
    work()
    return time.process_time() - started
def serialise(dags):
    return {name: DagSerialization.to_dict(dag) for name, dag in sorted(dags.items())}
serialise(peer.dags)
found = {"serialise": cpu_seconds(lambda: serialise(bag.dags)), "peer_serialise": cpu_seconds(lambda: serialise(peer.dags)),
         "round": cpu_seconds(lambda: serialise(DagBag(dag_folder=sys.argv[1]).dags)),
         "peer_round": cpu_seconds(lambda: serialise(DagBag(dag_folder=sys.argv[2]).dags))}
serialised = json.dumps(serialise(bag.dags), sort_keys=True)
print(json.dumps({"dags": len(bag.dags), "errors": len(bag.import_errors), "seconds": seconds, "peer_seconds": peer_seconds,
                  "serialised": serialised, **found}))
"""

PEER = """from airflow.sdk import DAG, chain
from airflow.providers.standard.operators.empty import EmptyOperator
with DAG(dag_id={name!r}, schedule="0 2 * * *", catchup=False) as dag:
    chain(*[EmptyOperator(task_id=f"t{{n}}") for n in range(8)])
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as folder:
        ours, peer, one = (Path(folder) / name for name in ("ours", "peer", "one"))
        text = (ROOT / "dags/pipelines/search_ranking.yaml").read_text(encoding="utf-8")
        for base, count in ((ours, NUM_PIPELINES), (one, 1)):
            (base / "pipelines").mkdir(parents=True)
            for number in range(count):
                name = f"pipeline_{number:03d}"
                renamed = text.replace("name: search_ranking", f"name: {name}")
                (base / "pipelines" / f"{name}.yaml").write_text(renamed, encoding="utf-8")
                (base / f"{name}.py").write_text((ROOT / "dags/search_ranking.py").read_text(encoding="utf-8"), encoding="utf-8")
        peer.mkdir()
        for number in range(NUM_PIPELINES):
            (peer / f"peer_{number:03d}.py").write_text(PEER.format(name=f"peer_{number:03d}"), encoding="utf-8")
        environment = {
            **os.environ,
            "AIRFLOW_HOME": f"{folder}/airflow",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plugins")]),
        }
        subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], env=environment, check=True, capture_output=True)
        found = []
        for seed in ("1", "2"):
            command = [sys.executable, "-c", SCRIPT, str(ours), str(peer), str(one)]
            done = subprocess.run(command, env={**environment, "PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
        first, second = found
        print(f"{first['dags']} pipelines, {first['errors']} errors: {min(first['seconds'], second['seconds']):.2f} s")
        print(f"{NUM_PIPELINES} DAGs of eight empty tasks: {min(first['peer_seconds'], second['peer_seconds']):.2f} s")
        least = {name: min(first[name], second[name]) for name in ("serialise", "peer_serialise", "round", "peer_round")}
        per_dag = {name: 1000 * least[name] / NUM_PIPELINES for name in ("serialise", "peer_serialise")}
        print(f"serialising one: {per_dag['serialise']:.1f} ms of CPU; of eight empty tasks: {per_dag['peer_serialise']:.1f} ms")
        print(f"to parse and serialise all in one process: {least['round']:.2f} s of CPU; peer {least['peer_round']:.2f} s")
        for what, folder_of_dags in (("a pipeline", ours), ("eight empty tasks", peer)):
            seconds = {mode: forked_seconds(mode, folder_of_dags, environment) for mode in ("bare", "preloaded")}
            line = f"a forked process that parses and serialises {what}: {seconds['preloaded']:.3f} s of CPU"
            print(f"{line}, {seconds['bare']:.3f} s without preloading")
        print(f"serialised twice, other hash seeds: {'byte-identical' if first['serialised'] == second['serialised'] else 'DIFFERENT'}")
        started_at = time.monotonic()
        script = "import sys; from airflow.dag_processing.dagbag import DagBag; DagBag(dag_folder=sys.argv[1])"
        subprocess.run([sys.executable, "-c", script, str(one / "pipeline_000.py")], env=environment, check=True, capture_output=True)
        print(f"a new process that parses one: {time.monotonic() - started_at:.2f} s, Airflow's own import included")


def forked_seconds(mode: str, folder: Path, environment: dict[str, str]) -> float:
    """Return the CPU seconds of a process that is forked for one DAG file, as the dag-processor forks it; mean of 20 files."""
    command = [sys.executable, "-c", FORKED_SCRIPT, mode, str(folder)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
