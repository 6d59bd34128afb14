"""Writes the missing pools in the format of `airflow pools import`: python pools.py EXISTING.json MISSING.json

Existing pools keep their size. Tasks of a pool that does not exist never run, so pools that pipelines name are created too.
"""

import json
import sys
from pathlib import Path

from nightshift.airflow_ext.pools import POOLS
from nightshift.settings import Settings
from training.errors import SpecError
from training.spec import load_spec

wanted = {pool.name: {"slots": pool.slots, "description": pool.description} for pool in POOLS}
for path in sorted(Settings.from_environment().pipelines_path.glob("*.yaml")):
    try:
        name = load_spec(path).train.placement.pool
    except SpecError as err:
        # Airflow shows an import error for that DAG. The pools of the other pipelines are still created.
        sys.stderr.write(f"{err}\n")
        continue
    if name:
        wanted.setdefault(name, {"slots": 1, "description": "Named by a pipeline"})
existing, missing = (Path(argument) for argument in sys.argv[1:])
known = json.loads(existing.read_text(encoding="utf-8"))
missing.write_text(json.dumps({name: pool for name, pool in wanted.items() if name not in known}), encoding="utf-8")
