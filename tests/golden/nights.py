"""What two nights of three pipelines come to: digests, metrics and gates, without ids, times and latency.

    python -m tests.golden.nights OUT.json [--only CASE]

Run in two checkouts on one machine, the files must be equal; the committed one holds exactly with the versions and the CPU capability
that it names, elsewhere its numbers to rtol 1e-5. The code version is pinned, so an edit of the code renames no work.
The stages are the processes that the operator would start, one after the other; MLflow is a SQLite file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from benchmarks.night import STAGES, ask, driver
from tests.golden.synthetic_flights import write_flights
from training.runtime.provenance import CHECKOUT

FILE: Final = CHECKOUT / "tests/golden/nights.json"
EXAMPLE: Final = CHECKOUT / "docs/examples/cancelled_orders"
LIBRARIES: Final = ("torch", "xgboost-cpu", "numpy", "duckdb")
UNSTABLE: Final = ("latency", "second", "mlflow", "_id", "_uri", "_at", "bytes", "attempt", "code_version", "model_digest")
"""Parts of the names of values that differ from run to run."""
SAME_BYTES: Final = ("ingest", "prepare")
"""Stages whose artifact holds no time and no id; of a training the weights are compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A pipeline, its sources and the `as_of` of its two nights."""

    pipeline: Path
    suite: Path
    """Folder with the suites of the pipeline."""
    sources: Callable[[Path], dict[str, str]]
    """Makes the source's files in a folder; returns the variables that name them."""
    nights: tuple[datetime, datetime]


def _shop(folder: Path) -> dict[str, str]:
    command = [sys.executable, "-m", "devstack.shop", "--root", str(folder), "--first", "2026-01-02", "--days", "31"]
    subprocess.run(command, cwd=CHECKOUT, check=True, stdout=subprocess.DEVNULL)
    return {"SHOP_URI": folder.as_uri()}


def _flights(folder: Path) -> dict[str, str]:
    write_flights(folder, date(2013, 3, 11), 52)  # after the change of clocks, which skips an hour
    return {"FLIGHTS_URI": folder.as_uri()}


def _orders(_folder: Path) -> dict[str, str]:
    return {"ORDERS_URI": (EXAMPLE / "data").as_uri()}


def _two(first: datetime) -> tuple[datetime, datetime]:
    return first, first + timedelta(days=1)


CASES: Final = {
    "search_ranking": Case(
        pipeline=CHECKOUT / "dags/pipelines/search_ranking.yaml",
        suite=CHECKOUT / "expectations/search_ranking",
        sources=_shop,
        nights=_two(datetime(2026, 2, 1, 2, tzinfo=UTC)),
    ),
    "flight_delay": Case(
        pipeline=CHECKOUT / "dags/pipelines/flight_delay.yaml",
        suite=CHECKOUT / "expectations/flight_delay",
        sources=_flights,
        nights=_two(datetime(2013, 5, 1, 6, tzinfo=UTC)),
    ),
    "cancelled_orders": Case(
        pipeline=EXAMPLE / "cancelled_orders.yaml",
        suite=EXAMPLE / "orders.json",
        sources=_orders,
        nights=_two(datetime(2026, 3, 15, 2, tzinfo=UTC)),
    ),
}


def nights_of(case: str, folder: Path) -> list[dict[str, Any]]:
    """Run both nights of a case in a new installation; return what they came to."""
    what, found = CASES[case], []
    with driver(CHECKOUT, folder / "home", _variables(what, folder)) as process:
        for as_of in what.nights:
            ask(process, {"pipeline": what.pipeline.stem, "as_of": as_of.isoformat()})
            found.append({stage: _came_to(stage, ask(process, {"stage": stage})["result"]) for stage in STAGES})
    for night, gates in zip(found, _decisions(what, folder), strict=True):
        night["gates"] = gates
    return found


def _came_to(stage: str, result: dict[str, Any]) -> dict[str, Any]:
    kept = _stable({name: value for name, value in result["scalars"].items() if name != "key"})
    return {**({"digest": result["digest"]} if stage in SAME_BYTES else {}), **kept}


def setting() -> dict[str, str]:
    """Return what the digests hold for."""
    import torch

    return {"cpu_capability": torch.backends.cpu.get_cpu_capability(), **{name: metadata.version(name) for name in LIBRARIES}}


def _variables(case: Case, folder: Path) -> dict[str, str]:
    pipelines, suites = folder / "pipelines", folder / "expectations" / case.pipeline.stem
    pipelines.mkdir(parents=True)
    suites.mkdir(parents=True)
    shutil.copy(case.pipeline, pipelines)
    for suite in sorted(case.suite.glob("*.json")) if case.suite.is_dir() else [case.suite]:
        shutil.copy(suite, suites)
    return {
        **case.sources(folder / "source"),
        "NIGHTSHIFT_CODE_VERSION": "golden",
        "NIGHTSHIFT_PIPELINES": str(pipelines),
        "NIGHTSHIFT_EXPECTATIONS": str(suites.parent),
    }


def _decisions(case: Case, folder: Path) -> list[list[dict[str, Any]]]:
    """Return the gates of each decision, the first decision first, by the command that users have."""
    environment = {**os.environ, "NIGHTSHIFT_HOME": str(folder / "home"), "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'plugins'}"}
    command = [sys.executable, "-m", "nightshift.console", "show", case.pipeline.stem, "--json"]
    shown = subprocess.run(command, cwd=CHECKOUT, env=environment, check=True, capture_output=True, text=True).stdout
    decisions = sorted(json.loads(shown)[case.pipeline.stem]["decisions"], key=lambda entry: entry["version"])
    return [[_stable(reason) for reason in entry["reasons"] if "latency" not in reason["gate"]] for entry in decisions]


def _stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _stable(item)
            for name, item in sorted(value.items())
            if name not in ("words", "uri", "headline") and not any(part in name for part in UNSTABLE)
        }
    return [_stable(item) for item in value] if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", choices=sorted(CASES), action="append")
    options = parser.parse_args()
    nights: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="nightshift-golden-") as folder:
        for case in options.only or CASES:
            nights[case] = nights_of(case, Path(folder) / case)
            sys.stderr.write(f"{case}: {len(nights[case])} nights\n")
    options.out.write_text(json.dumps({"setting": setting(), "nights": nights}, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
