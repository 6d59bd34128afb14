"""Which of Airflow's providers the shipped DAG files load. A process of its own: what this one has imported depends on other tests."""

import os
import subprocess
import sys
from pathlib import Path

from training.runtime.provenance import CHECKOUT

SCRIPT = """
import sys
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import Asset

def amazon():
    return {name for name in sys.modules if name.startswith("airflow.providers.amazon")}

# For an asset of any kind, Airflow imports the providers that know a scheme of URIs.
Asset("custom://any/asset")
before = amazon()
bag = DagBag(dag_folder=sys.argv[1])
print("errors", bag.import_errors)
print("dags", sorted(bag.dags))
print("loaded", sorted(amazon() - before))
"""


def test_the_shipped_dag_files_load_nothing_of_the_amazon_provider(tmp_path: Path) -> None:
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'plugins'}"}
    environment |= {"AIRFLOW__CORE__LOAD_EXAMPLES": "False", "AIRFLOW__CORE__DAG_DISCOVERY_SAFE_MODE": "False"}
    command = [sys.executable, "-c", SCRIPT, str(CHECKOUT / "dags")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "errors {}" in done.stdout
    assert "dags ['flight_delay', 'housekeeping', 'rollback', 'search_ranking']" in done.stdout
    assert "loaded []" in done.stdout
