"""From Parquet to a registered model: Nightshift's stages beside the stack of a tutorial, and a floor (E1).

    PYTHONPATH=.:plugins python -m benchmarks.end_to_end [--rows 5000000] [--epochs 1] [--case nightshift]

Thirty days of the simulated shop, the ranker of dags/pipelines/search_ranking.yaml in one process, batches of 4,096 rows. Each case runs in
processes of its own, whose imports count; MLflow is a server, whose CPU does not.

nightshift   the stages ingest to promote, as the operator starts them; a snapshot, a dataset, a report and a decision are more than asked
tutorial     pandas, Great Expectations on the frame, a `Dataset` of searches with a `DataLoader`, the same module and loss with torch's
             AdamW, MLflow's synchronous calls every 50 steps, NDCG by scikit-learn, `mlflow.pytorch.log_model`
rows         the tutorial with a `TensorDataset` of rows and the logistic loss: the first loop of most tutorials, for another loss
floor        what must be done: the columns are read, transformed in numpy, and the same steps made on slices of tensors
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.night import NIGHTS, ROOT, STAGES, ask, driver, environment_of, tracking

CASES = ("nightshift", "tutorial", "rows", "floor")
DAYS, ROWS_PER_SEARCH, BATCH_ROWS = 30, 12, 4096
IDS, FLOATS, BIAS = ("user_id", "query_id", "item_id", "category_id", "position"), ("price", "rating", "popularity"), "position"
LEARNING_RATE, WEIGHT_DECAY = 2e-2, 0.5
STEPS_PER_LOG = 50
AS_OF = NIGHTS["search_ranking"][0]


class Clock:
    """Seconds of the parts of a case."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, float]] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.found[name] = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def nightshift(folder: Path, sources: dict[str, str], epochs: int) -> dict[str, Any]:
    pipelines = folder / "pipelines"
    pipelines.mkdir()
    text = (ROOT / "dags/pipelines/search_ranking.yaml").read_text(encoding="utf-8")
    for old, new in (("epochs: 3", f"epochs: {epochs}"), ("processes_per_node: 2", "processes_per_node: 1")):
        if old not in text:
            raise SystemExit(f"search_ranking.yaml has no {old}")
        text = text.replace(old, new)
    (pipelines / "search_ranking.yaml").write_text(text, encoding="utf-8")
    parts, scalars = {}, {}
    variables = {**sources, "NIGHTSHIFT_PIPELINES": str(pipelines), "NIGHTSHIFT_TABLE_MEMORY": "1TiB"}
    with driver(ROOT, folder / "home", variables) as process:
        ask(process, {"pipeline": "search_ranking", "as_of": AS_OF.isoformat()})
        for stage in STAGES:
            found = ask(process, {"stage": stage})
            parts[stage] = {name: found[name] for name in ("wall", "cpu")}
            scalars |= found["result"]["scalars"]
    return {"parts": parts, "scalars": {name: value for name, value in scalars.items() if "ndcg" in name}}


def tutorial(shop: Path, epochs: int, *, by_row: bool = False) -> dict[str, Any]:
    clock = Clock()
    with clock.part("imports"):
        import great_expectations  # noqa: F401 - its import is timed
        import mlflow
        import pandas as pd
        import sklearn.metrics  # noqa: F401 - its import is timed
        import torch

        from training.models.ranker.module import Ranker, RankerModule
    with clock.part("read"):
        frame = pd.read_parquet(shop / "clicks").drop(columns="dt")
    with clock.part("validate"):
        is_valid = _validated(frame)
    with clock.part("features"):
        data = _features(frame)
    batches = data.rows if by_row else data.searches
    torch.manual_seed(17)
    family, module = Ranker(), RankerModule(architecture(data.sizes))
    optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def loss_of(batch: dict[str, Any]) -> Any:
        if by_row:
            return torch.nn.functional.binary_cross_entropy_with_logits(module(batch), batch["label"])
        return family.loss(module, batch) / (batch["group"][-1] + 1)  # type: ignore[arg-type]

    mlflow.set_experiment("search_ranking")
    with mlflow.start_run():
        with clock.part("train"):
            num_steps = _trained(module, optimizer, batches, loss_of, epochs)
            torch.save(module.state_dict(), shop.parent / "tutorial.pt")
        with clock.part("evaluate"), torch.no_grad():
            ndcg = _evaluated(module, data)
        with clock.part("register"):
            mlflow.pytorch.log_model(
                module, name="model", serialization_format="pickle", pip_requirements=["torch"], registered_model_name="search_ranking"
            )
    return {"parts": clock.found, "ndcg": ndcg, "steps": num_steps, "validated": is_valid}


def _validated(frame: Any) -> bool | None:
    import great_expectations as gx

    context = gx.get_context(mode="ephemeral")
    batch_of = context.data_sources.add_pandas("pandas").add_dataframe_asset("clicks").add_batch_definition_whole_dataframe("all")
    written = json.loads((ROOT / "expectations/search_ranking/clicks.json").read_text(encoding="utf-8"))
    suite = context.suites.add(gx.ExpectationSuite(**written))
    checked = gx.ValidationDefinition(name="clicks", data=batch_of, suite=suite).run(batch_parameters={"dataframe": frame})
    return checked.success


def _features(frame: Any) -> TutorialData:
    import numpy as np
    import pandas as pd

    frame = frame.sort_values(["shown_at", "search_id"])
    age = frame["shown_at"].max().ceil("D") - frame["shown_at"]
    split = np.where(age <= pd.Timedelta("2D"), 2, np.where(age <= pd.Timedelta("3D"), 1, 0))
    train = frame[split == 0]
    ids = np.empty((len(frame), len(IDS)), dtype=np.int32)
    for place, name in enumerate(IDS):
        numbers = {value: number for number, value in enumerate(train[name].value_counts().index, start=1)}
        ids[:, place] = frame[name].map(numbers).fillna(0)
    for name in ("price", "popularity"):
        frame[name] = np.log1p(frame[name])
    known = frame.loc[split == 0, list(FLOATS)]
    floats = ((frame[list(FLOATS)] - known.mean()) / known.std()).to_numpy(dtype=np.float32)
    labels = frame["clicked"].to_numpy(dtype=np.float32)
    return TutorialData(split=split, search=frame["search_id"].to_numpy(), cells=(floats, ids, labels), sizes=ids.max(axis=0) + 1)


@dataclass(frozen=True, kw_only=True)
class TutorialData:
    """Rows by time; split 0 trains, 1 validates, 2 tests."""

    split: Any
    search: Any
    cells: tuple[Any, Any, Any]
    sizes: Any

    def searches(self, part: int) -> Any:
        """Return a loader of batches of whole searches."""
        import numpy as np
        import torch
        from torch.utils.data import DataLoader, Dataset

        rows = np.flatnonzero(self.split == part)
        search = self.search[rows]
        starts = np.flatnonzero(np.concatenate([[True], search[1:] != search[:-1]]))
        bounds, tensors = np.append(rows[starts], rows[-1] + 1), [torch.from_numpy(values) for values in self.cells]

        class Searches(Dataset[Any]):
            def __len__(self) -> int:
                return len(bounds) - 1

            def __getitem__(self, number: int) -> tuple[Any, ...]:
                return tuple(values[bounds[number] : bounds[number + 1]] for values in tensors)

        return DataLoader(Searches(), batch_size=BATCH_ROWS // ROWS_PER_SEARCH, shuffle=part == 0, collate_fn=_collated)

    def rows(self, part: int) -> Iterator[dict[str, Any]]:
        """Yield batches of rows."""
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        chosen = TensorDataset(*(torch.from_numpy(values[self.split == part]) for values in self.cells))
        for cells, numbers, clicked in DataLoader(chosen, batch_size=BATCH_ROWS, shuffle=part == 0):
            yield {"features_float": cells, "features_int": numbers, "label": clicked}


def _collated(searches: list[tuple[Any, Any, Any]]) -> dict[str, Any]:
    import torch

    cells, numbers, clicked = (torch.cat(columns) for columns in zip(*searches, strict=True))
    group = torch.repeat_interleave(torch.arange(len(searches)), torch.tensor([len(search[2]) for search in searches]))
    return {"features_float": cells, "features_int": numbers, "label": clicked, "group": group}


def _trained(module: Any, optimizer: Any, batches: Callable[[int], Any], loss_of: Callable[[Any], Any], epochs: int) -> int:
    """Train; return the number of steps."""
    import mlflow
    import torch

    step = 0
    for epoch in range(epochs):
        module.train()
        for batch in batches(0):
            optimizer.zero_grad()
            loss = loss_of(batch)
            loss.backward()
            optimizer.step()
            step += 1
            if step % STEPS_PER_LOG == 0:
                mlflow.log_metric("train_loss", loss.item(), step=step)
        module.eval()
        with torch.no_grad():
            losses = [loss_of(batch).item() for batch in batches(1)]
        mlflow.log_metric("validation_loss", sum(losses), step=epoch)
    return step


def _evaluated(module: Any, data: TutorialData) -> float:
    """Return NDCG@10 of the test rows. A search is shown on whole pages of one length."""
    import mlflow
    import torch
    from sklearn.metrics import ndcg_score

    scored = [(module({**batch, "features_int": at_first(batch["features_int"])}), batch["label"]) for batch in data.searches(2)]
    scores, clicked = (torch.cat(column).numpy().reshape(-1, ROWS_PER_SEARCH) for column in zip(*scored, strict=True))
    shown = clicked.any(axis=1)
    ndcg = float(ndcg_score(clicked[shown], scores[shown], k=10))
    mlflow.log_metric("ndcg_at_10", ndcg)
    return ndcg


def floor(shop: Path, epochs: int) -> dict[str, Any]:
    clock = Clock()
    with clock.part("imports"):
        import numpy as np
        import pyarrow.parquet as pq
        import torch

        from training.models.ranker.module import Ranker, RankerModule
    with clock.part("read"):
        table = pq.read_table(shop / "clicks", columns=["search_id", "shown_at", "clicked", *IDS, *FLOATS])
        columns = {name: table[name].to_numpy() for name in table.column_names}
    with clock.part("transform"):
        train = columns["shown_at"] < columns["shown_at"].max().astype("datetime64[D]") - np.timedelta64(2, "D")
        ids = np.empty((int(train.sum()), len(IDS)), dtype=np.int32)
        for place, name in enumerate(IDS):
            counts = np.bincount(columns[name][train])
            numbers = np.zeros(len(counts), dtype=np.int32)
            numbers[np.argsort(-counts, kind="stable")] = np.arange(1, len(counts) + 1)
            ids[:, place] = numbers[columns[name][train]]
        floats = np.empty((len(ids), len(FLOATS)), dtype=np.float32)
        for place, name in enumerate(FLOATS):
            values = columns[name][train] if name == "rating" else np.log1p(columns[name][train])
            floats[:, place] = (values - values.mean()) / values.std()
        labels = columns["clicked"][train].astype(np.float32)
    with clock.part("steps"):
        torch.manual_seed(17)
        family, module = Ranker(), RankerModule(architecture(ids.max(axis=0) + 1))
        optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
        cells, numbers, clicked = (
            torch.from_numpy(values.reshape(-1, ROWS_PER_SEARCH, *values.shape[1:])) for values in (floats, ids, labels)
        )
        per_batch, step = BATCH_ROWS // ROWS_PER_SEARCH, 0
        for _ in range(epochs):
            for chosen in torch.randperm(len(clicked)).split(per_batch):
                group = torch.repeat_interleave(torch.arange(len(chosen)), ROWS_PER_SEARCH)
                optimizer.zero_grad()
                taken = (values[chosen].flatten(0, 1) for values in (cells, numbers, clicked))
                batch = dict(zip(("features_float", "features_int", "label"), taken, strict=True)) | {"group": group}
                (family.loss(module, batch) / len(chosen)).backward()  # type: ignore[arg-type]
                optimizer.step()
                step += 1
    return {"parts": clock.found, "steps": step}


def architecture(sizes: Any) -> Any:
    """Return that of search_ranking.yaml, for ids below `sizes`."""
    features = [{"name": name, "dtype": "float32", "cardinality": 0} for name in FLOATS]
    features += [{"name": name, "dtype": "int32", "cardinality": int(size)} for name, size in zip(IDS, sizes, strict=True)]
    return {"features": features, "bias_features": [BIAS], "settings": {"embedding_dim": 16, "hidden": [64, 32]}}


def at_first(ids: Any) -> Any:
    """Return ids as if each row were shown first, as the pipeline scores: its number is that of the most frequent position."""
    placed = ids.clone()
    placed[:, IDS.index(BIAS)] = 1
    return placed


def measure(case: str, folder: Path, shop: Path, epochs: int) -> dict[str, Any]:
    """Run a case in new processes; return its seconds, its memory and its parts."""
    folder.mkdir()
    if case == "nightshift":
        found = nightshift(folder, {"SHOP_URI": shop.as_uri()}, epochs)
        return found | {kind: sum(part[kind] for part in found["parts"].values()) for kind in ("wall", "cpu")}
    with tracking(ROOT, folder / "home", {}) as environment:
        command = [sys.executable, "-m", "benchmarks.end_to_end", "--run", case, "--shop", str(shop), "--epochs", str(epochs)]
        before, started_at = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        output = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True).stdout
        wall, after = time.monotonic() - started_at, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**json.loads(output.splitlines()[-1]), "wall": wall, "cpu": cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--run", choices=CASES[1:], help=argparse.SUPPRESS)
    parser.add_argument("--shop", type=Path, help="days that an earlier run made")
    given = parser.parse_args()
    if given.run:
        found = floor(given.shop, given.epochs) if given.run == "floor" else tutorial(given.shop, given.epochs, by_row=given.run == "rows")
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(found | {"peak_mb": round(peak_mb)}))
        return
    with tempfile.TemporaryDirectory(prefix="nightshift-end-to-end-") as name:
        folder = Path(name)
        shop = given.shop or folder / "shop"
        if given.shop is None:
            searches = str(round(given.rows / DAYS / ROWS_PER_SEARCH))
            first = str(AS_OF.date().replace(month=1, day=2))
            command = [
                sys.executable,
                "-m",
                "devstack.shop",
                "--root",
                str(shop),
                "--first",
                first,
                "--days",
                str(DAYS),
                "--searches",
                searches,
            ]
            subprocess.run(command, cwd=ROOT, env=environment_of(ROOT, {}), check=True, stdout=subprocess.DEVNULL)
        print(f"{given.rows:,} rows, {given.epochs} epochs, load {os.getloadavg()[0]:.1f}", flush=True)
        for case in given.case or CASES:
            found = measure(case, folder / case, shop.resolve(), given.epochs)
            parts = ", ".join(f"{part} {seconds['cpu']:.1f} ({seconds['wall']:.1f})" for part, seconds in found["parts"].items())
            rest = {key: value for key, value in found.items() if key not in ("parts", "wall", "cpu")}
            print(f"{case:10} {found['cpu']:.1f} s of CPU ({found['wall']:.1f} s): {parts}; {rest}", flush=True)


if __name__ == "__main__":
    main()
