"""Boosted trees in several processes and with rows on disk: the same model, how near to that of one process, and the memory by rows.

    FLIGHTS_URI=file:///path/to/nycflights13 python -m benchmarks.boosted_trees [models | memory]

`models`: a year of flight_delay is ingested and prepared; the train stage runs under torchrun, with one process and with two, twice, in
memory and with rows on disk. `memory`: a dataset of 20 features and one of four times its rows, each trained in a process of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Self

import numpy as np

from training.contracts import ExitCode, RunIdentity, StageRequest
from training.data.dataset.shard_writer import ShardWriter, describe_layout
from training.data.features.transforms import LayoutEntry, Matrix
from training.engine.parallel.single_process import Alone
from training.models.base import FitContext, FitResult
from training.models.boosted_trees import matrices
from training.models.boosted_trees.module import BoostedTrees
from training.runtime import runner
from training.runtime.context import StopFlag
from training.runtime.provenance import CHECKOUT
from training.sources.listing import listing_for
from training.spec import PipelineSpec, freeze, parse_spec, resolve_uris
from training.stages import train
from training.store import Store, WorkFolder

AS_OF: Final = datetime(2014, 1, 1, 7, tzinfo=UTC)
TORCHRUN: Final = ("-m", "training.runtime.torchrun", "--standalone", "--nnodes=1", "--max-restarts=0")
FEATURES: Final = 20
ROWS: Final = 500_000
ROUNDS: Final = 10
MOST_WORSE: Final = 1e-3
SEEDS: Final = (18, 19, 20)
WITHOUT_SAMPLING: Final = {"subsample: 0.8, colsample: 0.8": "subsample: 1.0, colsample: 1.0"}


class Flights:
    """A store with a year of flights in it, and trainings of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.store = Store(str(folder / "store"))
        spec = self._spec(1, {})
        snapshot = self._stage(spec, "ingest", {}, {"listing": listing_for(spec, AS_OF)})
        self.dataset_uri = self._stage(spec, "prepare", {"snapshot": snapshot}, {})
        self.rows = self.store.manifests.get(self.dataset_uri, kind="dataset").meta["rows"]

    def train(self, name: str, *, processes: int, on_disk: bool = False, changes: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """Train under torchrun; return what each rank noted."""
        uri = self._ask(self._spec(processes, changes or {}), "train", name, {"dataset": self.dataset_uri}, {"world_size": processes})
        notes = self._folder / name
        notes.mkdir()
        environment = {
            **os.environ,
            "NOTES": str(notes),
            "ON_DISK": str(int(on_disk)),
            "OMP_NUM_THREADS": "1",
            # Nobody listens there, and nobody is asked twice.
            "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        }
        command = [sys.executable, *TORCHRUN, f"--nproc-per-node={processes}", "-m", "benchmarks.boosted_trees", uri]
        with (notes / "log").open("wb") as log:
            subprocess.run(command, cwd=CHECKOUT, env=environment, stdout=log, stderr=subprocess.STDOUT, check=True)
        return [json.loads((notes / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(processes)]

    def _spec(self, processes: int, changes: Mapping[str, str]) -> PipelineSpec:
        text = (CHECKOUT / "dags/pipelines/flight_delay.yaml").read_text(encoding="utf-8")
        placement = f"  placement: {{nodes: 1, processes_per_node: {processes}, cpus: 2}}\n"
        year = {"window: 60d": "window: 364d", "  checkpoint: {": f"{placement}  checkpoint: {{"}
        for old, new in {**year, **changes}.items():
            if old not in text:
                raise LookupError(f"flight_delay.yaml has no {old!r}")
            text = text.replace(old, new)
        return resolve_uris(parse_spec(text.encode()), {"FLIGHTS_URI": os.environ["FLIGHTS_URI"]})

    def _work_folder(self, stage: str, name: str) -> WorkFolder:
        return self.store.work_folder("flight_delay", stage, name.encode().hex().rjust(64, "0")[-64:])

    def _ask(self, spec: PipelineSpec, stage: str, name: str, inputs: dict[str, str], parameters: dict[str, Any]) -> str:
        work_folder = self._work_folder(stage, name)
        request = StageRequest(
            pipeline="flight_delay",
            stage=stage,
            work_id=work_folder.uri.rsplit("/", 1)[-1],
            attempt_id="a",
            store_uri=self.store.root_uri,
            spec_uri=self.store.put_json(freeze(spec)),
            as_of=AS_OF,
            inputs=inputs,
            parameters=parameters,
            run=RunIdentity(dag_id="flight_delay", run_id="benchmark", task_id=stage),
        )
        return work_folder.write_request(request)

    def _stage(self, spec: PipelineSpec, stage: str, inputs: dict[str, str], parameters: dict[str, Any]) -> str:
        work = importlib.import_module(f"training.stages.{stage}").work
        if runner.run(work, self._ask(spec, stage, "only", inputs, parameters), stop=StopFlag()) is not ExitCode.DONE:
            sys.exit(f"{stage}: {self._work_folder(stage, 'only').error('a')}")
        result = self._work_folder(stage, "only").result()
        return "" if result is None else str(result.artifact_uri)


def train_rank(notes: Path) -> None:
    """Run the train stage as a process of torchrun; write to `notes` what this rank trained."""
    fit = BoostedTrees.fit

    def noted_fit(self: BoostedTrees, context: FitContext) -> FitResult:
        result = fit(self, context)
        noted = {
            "weights": hashlib.sha256(result.weights).hexdigest(),
            "train_loss": result.history[result.best_epoch - 1]["train_loss"],
            "validation_loss": result.validation_loss,
            "rounds": result.num_steps,
        }
        (notes / f"{context.gang.rank}.json").write_text(json.dumps(noted), encoding="utf-8")
        return result

    BoostedTrees.fit = noted_fit  # type: ignore[method-assign]
    if os.environ["ON_DISK"] == "1":
        matrices.stage_memory_bytes = lambda: 1
    runner.main(train.work, polls_stop=True)


def models(folder: Path) -> bool:
    """Compare the models of one process and of two; return whether the goals are met."""
    flights = Flights(folder)
    print(f"flights of {flights.rows}")
    print(f"{'training':<34} {'rounds':>6} {'train loss':>11} {'validation':>11} {'of one':>8}  model")
    is_met = True
    for sampling, changes in (("all rows and columns", WITHOUT_SAMPLING), ("80 % of them, as shipped", {})):
        prefix = sampling.split()[0]
        (alone,) = flights.train(f"alone-{prefix}", processes=1, changes=changes)
        found = {"1 process": [alone]}
        for name, on_disk in (("2 processes", False), ("2 processes again", False), ("2 processes, rows on disk", True)):
            place = f"{name.replace(' ', '-').replace(',', '')}-{prefix}"
            found[name] = flights.train(place, processes=2, on_disk=on_disk, changes=changes)
        print(sampling)
        for name, ranks in found.items():
            digests = sorted({rank["weights"] for rank in ranks})
            worse = ranks[0]["validation_loss"] / alone["validation_loss"] - 1
            losses = f"{ranks[0]['train_loss']:>11.6f} {ranks[0]['validation_loss']:>11.6f} {worse:>+8.3%}"
            print(f"  {name:<32} {ranks[0]['rounds']:>6} {losses}  {', '.join(digest[:12] for digest in digests)}", flush=True)
        of_two = {rank["weights"] for name, ranks in found.items() if name != "1 process" for rank in ranks}
        near = abs(found["2 processes"][0]["validation_loss"] / alone["validation_loss"] - 1)
        # Each process draws its own rows: another sample of them, as another seed is.
        is_met &= len(of_two) == 1 and (near <= MOST_WORSE or not changes)
        goal = f" (at most {MOST_WORSE:.1%})" if changes else ""
        print(f"  models of two processes: {len(of_two)}; log loss {near:.3%} from that of one{goal}", flush=True)
    print("80 % of them, one process, other seeds")
    for seed in SEEDS:
        (other,) = flights.train(f"seed-{seed}", processes=1, changes={"seed: 17": f"seed: {seed}"})
        worse = other["validation_loss"] / alone["validation_loss"] - 1
        print(
            f"  seed {seed:<27} {other['rounds']:>6} {other['train_loss']:>11.6f} {other['validation_loss']:>11.6f} {worse:>+8.3%}",
            flush=True,
        )
    return is_met


def write_rows(folder: Path, rows: int) -> dict[str, Any]:
    """Write a dataset of normal numbers, and a label that some of them say; return its meta."""
    layout = tuple(LayoutEntry(name=f"x{number}", dtype="float32", cardinality=0) for number in range(FEATURES))
    described = describe_layout(layout, has_group=False)
    shards = {}
    for seed, (split, size) in enumerate((("train", rows), ("validation", rows // 10))):
        writer = ShardWriter(folder, split, np.arange(size), None, num_features=FEATURES)
        generator = np.random.default_rng(seed)
        for first in range(0, size, 50_000):
            cells = generator.standard_normal((min(50_000, size - first), FEATURES), dtype=np.float32)
            label = (cells[:, :4].sum(axis=1) + generator.standard_normal(len(cells)) > 0).astype(np.float32)
            writer.write(first, Matrix(cells=cells.view(np.int32), layout=layout), label, None)
        shards[split] = [number for _name, _path, number in writer.files()]
    return {"layout": described, "group": None, "shards": shards}


def fit_rows(folder: Path, kind: str) -> None:
    """Train on the rows of a folder, in this process; print its memory by kind before and at the peak."""
    matrices.stage_memory_bytes = lambda: 1 if kind == "disk" else 1 << 50
    text = (CHECKOUT / "dags/pipelines/flight_delay.yaml").read_bytes()
    spec = parse_spec(text)
    silent: Any = SimpleNamespace(
        log=lambda *_, **__: None, progress=lambda *_, **__: None, newest_entry=lambda: 0, is_due=lambda _round: False
    )
    spec = spec.model_copy(update={"train": spec.train.model_copy(update={"epochs": ROUNDS})})
    context = FitContext(
        spec=spec,
        dataset_path=folder,
        dataset_meta=json.loads((folder / "meta.json").read_text(encoding="utf-8")),
        dataset_digest="0" * 64,
        gang=Alone(),
        checkpoints=silent,
        tracker=silent,
        stop=StopFlag(),
        progress=silent.progress,
        note_straggler=silent.log,
    )
    resident, anonymous = status("VmRSS"), status("RssAnon")
    with Peak() as peak:
        loss = BoostedTrees().fit(context).validation_loss
    print(json.dumps({"resident": status("VmHWM") - resident, "anonymous": peak.num_bytes - anonymous, "loss": loss}))


class Peak:
    """The largest anonymous memory of this process while it is entered, looked at every few milliseconds: the kernel keeps no peak of it.

    Pages of mapped files are not in it: the system takes them back where memory is short.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.003):
            self.num_bytes = max(self.num_bytes, status("RssAnon"))


def status(name: str) -> int:
    """Return a figure of this process's memory in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def memory(folder: Path) -> bool:
    """Measure the peak of trainings of growing datasets; return whether all models are alike."""
    print(f"{FEATURES} features, {ROUNDS} rounds; MB above those of the started process")
    print(f"{'rows':>10} {'stored':>7} {'in memory':>10} {'on disk':>8} {'in memory, anonymous':>21} {'on disk, anonymous':>19}")
    is_alike = True
    for rows in (ROWS, 2 * ROWS, 4 * ROWS, 8 * ROWS):
        place = folder / str(rows)
        (place / "meta.json").parent.mkdir()
        (place / "meta.json").write_text(json.dumps(write_rows(place, rows)), encoding="utf-8")
        found = {}
        for kind in ("memory", "disk"):
            command = [sys.executable, "-m", "benchmarks.boosted_trees", "fit", "--folder", str(place), "--kind", kind]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            ended = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=True)
            found[kind] = json.loads(ended.stdout.splitlines()[-1])
        is_alike &= found["memory"]["loss"] == found["disk"]["loss"]
        stored = rows * 1.1 * (FEATURES + 1) * 4
        sizes = [stored, *(found[kind][name] for name in ("resident", "anonymous") for kind in ("memory", "disk"))]
        texts = [f"{size / 1e6:.0f}" for size in sizes]
        print(f"{rows:>10,} {texts[0]:>7} {texts[1]:>10} {texts[2]:>8} {texts[3]:>21} {texts[4]:>19}", flush=True)
    return is_alike


def main() -> None:
    if "NOTES" in os.environ:
        train_rank(Path(os.environ["NOTES"]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["models", "memory", "fit"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part == "fit":
        fit_rows(options.folder, options.kind)
        return
    is_met = True
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as name:
        folder = Path(name)
        os.environ["NIGHTSHIFT_HOME"] = name
        os.environ["NIGHTSHIFT_DATABASE"] = f"sqlite:///{name}/nightshift.db"
        if options.part in (None, "models"):
            if "FLIGHTS_URI" in os.environ:
                is_met &= models(folder)
            else:
                print("models: skipped: FLIGHTS_URI says where nycflights13 is, and is not set")
        if options.part in (None, "memory"):
            is_met &= memory(folder)
    if not is_met:
        sys.exit("the goals are missed")


if __name__ == "__main__":
    main()
