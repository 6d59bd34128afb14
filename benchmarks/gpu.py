"""What a training reaches on one GPU, beside its floors and peers, in under 20 minutes.

    python benchmarks/gpu.py [--only G0 G1 …] [--device cpu] > gpu.json

G0 floors: matrix products, copies, transfers. G1 a transformer of 354 million parameters, from fp32 to bf16 with fused attention and a
compiled model, beside a loop written by hand. G2 FSDP2 on one GPU beside the plain model. G3 the loader beside batches that are on the GPU.
G4 what a checkpoint stops a step for, beside torch.save. G5 metrics after every step. G6 deterministic algorithms on and off. G7 CUDA
graphs for a small ranker. One JSON object on standard output, progress on standard error. `--device cpu` rehearses it with small sizes; the
figures mean nothing then. Exit code 1 where a part fails, or where two deterministic trainings differ.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from benchmarks.checkpoint_stall import opened  # noqa: E402
from benchmarks.language_model import MEDIUM, TINY, LanguageModel, Shape, next_token_loss, random_batch  # noqa: E402
from tests.unit.training.engine.loop_bench import LoopBench  # noqa: E402
from tests.unit.training.models.family_bench import CARDINALITIES, FLOATS, LAYOUT  # noqa: E402
from training.data.loader import Batch, Loader, ShardSet  # noqa: E402
from training.data.shards import describe_layout  # noqa: E402
from training.data.transforms import Matrix  # noqa: E402
from training.engine.devices import device_words  # noqa: E402
from training.engine.optim import MAX_GRAD_NORM, Schedule, ScheduledOptimizer  # noqa: E402
from training.engine.optimizers import OptimizerSettings  # noqa: E402
from training.engine.parallel.ddp import ReplicatedModel  # noqa: E402
from training.engine.parallel.gang import Gang  # noqa: E402
from training.engine.parallel.strategy import Strategy, SumLoss  # noqa: E402
from training.engine.tracking import Tracker  # noqa: E402
from training.models.ranker.module import RankerModule  # noqa: E402
from training.spec.layout import Layout  # noqa: E402

Figures = dict[str, Any]
WARM_UP_STEPS: Final = 5
PEAK_TFLOPS: Final = {"H100": 989.0, "H200": 989.0, "A100": 312.0}
"""Of bf16 products, by a word of the device's name."""


class Bench:
    """Sizes of a device, and how its work is timed."""

    def __init__(self, kind: str) -> None:
        self.device = torch.device(kind)
        self.is_gpu = kind == "cuda"
        self.shape: Shape = MEDIUM if self.is_gpu else TINY
        self.rows = 8 if self.is_gpu else 2
        self.steps = 40 if self.is_gpu else 3
        self.gang = Gang(0, 1, self.device)

    def wait(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], *, steps: int | None = None) -> float:
        """Return the median time of a call, after some that are not counted."""
        for _ in range(WARM_UP_STEPS):
            work()
        found = []
        for _ in range(steps or self.steps):
            self.wait()
            started_at = time.perf_counter()
            work()
            self.wait()
            found.append(time.perf_counter() - started_at)
        return statistics.median(found)

    def training(self, module: nn.Module, precision: str, *, loss: SumLoss = next_token_loss, strategy: Strategy | None = None) -> Training:
        return Training(self, strategy or ReplicatedModel(self.gang, precision=precision), module, loss)


class Training:
    """The step of the training loop: what `training.engine.loop` does between two batches."""

    def __init__(self, bench: Bench, strategy: Strategy, module: nn.Module, loss: SumLoss) -> None:
        self.strategy, self.loss, self.losses = strategy, loss, list[float]()
        parameters = strategy.place(module)
        self.optimizer = ScheduledOptimizer(parameters, Schedule(learning_rate=1e-4, total_steps=10**6), OptimizerSettings())
        self.number = 0

    def step(self, batch: Batch) -> None:
        self.optimizer.clear_gradients()
        rows = len(batch["label"])
        total = self.strategy.backward([batch], self.loss, rows)
        self.strategy.clip(MAX_GRAD_NORM)
        self.losses.append(float(total) / rows)
        self.optimizer.step(self.number)
        self.number += 1

    def state(self) -> dict[str, torch.Tensor]:
        module = {f"module/{name}": tensor for name, tensor in self.strategy.state().items()}
        return module | {f"optimizer/{name}": tensor for name, tensor in self.optimizer.state().items()}


def floors(bench: Bench) -> Figures:
    """G0."""
    size, num_bytes = (8192, 2**30) if bench.is_gpu else (64, 2**20)
    left, right = (torch.randn(size, size, device=bench.device, dtype=torch.bfloat16) for _ in range(2))
    product = bench.seconds(lambda: torch.mm(left, right))
    cells = torch.ones(num_bytes, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(cells)
    host = torch.ones(num_bytes, dtype=torch.uint8, pin_memory=bench.is_gpu)
    return {
        "bf16_tflops": 2 * size**3 / product / 1e12,
        "copy_gb_per_second": 2 * num_bytes / bench.seconds(lambda: target.copy_(cells), steps=10) / 1e9,
        "to_device_gb_per_second": num_bytes / bench.seconds(lambda: target.copy_(host, non_blocking=True), steps=10) / 1e9,
        "from_device_gb_per_second": num_bytes / bench.seconds(lambda: host.copy_(cells, non_blocking=True), steps=10) / 1e9,
    }


def ladder(bench: Bench) -> Figures:
    """G1."""
    found: Figures = {}
    rungs: dict[str, dict[str, Any]] = {
        "fp32": {"precision": "fp32", "fused": False},
        "tf32": {"precision": "fp32", "fused": False, "tf32": True},
        "bf16": {"precision": "bf16", "fused": False, "tf32": True},
        "bf16, fused attention": {"precision": "bf16", "fused": True, "tf32": True},
        "bf16, fused attention, compiled": {"precision": "bf16", "fused": True, "tf32": True, "compiled": True},
        "the same, four times the rows": {"precision": "bf16", "fused": True, "tf32": True, "compiled": True, "rows": 4 * bench.rows},
    }
    for name, rung in rungs.items():
        torch.backends.cuda.matmul.allow_tf32 = bool(rung.get("tf32"))
        say(f"  {name}")
        found[name] = rate(bench, **{key: value for key, value in rung.items() if key != "tf32"})
    found["by hand, as the fourth"] = by_hand(bench)
    found["ours beside the one by hand"] = (
        found["bf16, fused attention"]["tokens_per_second"] / found["by hand, as the fourth"]["tokens_per_second"]
    )
    return found


def rate(bench: Bench, *, precision: str, fused: bool, compiled: bool = False, rows: int = 0) -> Figures:
    torch.manual_seed(1)
    module: nn.Module = LanguageModel(bench.shape, fused_attention=fused)
    num_parameters = sum(parameter.numel() for parameter in module.parameters())
    if compiled and bench.is_gpu:
        module.compile()
    training, batch = bench.training(module, precision), random_batch(bench.shape, rows or bench.rows)
    return figures_of(bench, bench.seconds(lambda: training.step(batch)), len(batch["label"]), num_parameters) | {
        "loss": training.losses[-1]
    }


def figures_of(bench: Bench, seconds: float, rows: int, num_parameters: int) -> Figures:
    tokens = rows * bench.shape.length / seconds
    found = {"step_seconds": seconds, "tokens_per_second": tokens}
    peak = next((value for word, value in PEAK_TFLOPS.items() if bench.is_gpu and word in torch.cuda.get_device_name()), None)
    if peak is not None:
        found["mfu"] = tokens * bench.shape.flops_per_token(num_parameters) / (peak * 1e12)
    return found


def by_hand(bench: Bench) -> Figures:
    """A step as a script has it that serves no other model."""
    torch.manual_seed(1)
    module = LanguageModel(bench.shape).to(bench.device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.0, fused=True)
    batch = random_batch(bench.shape, bench.rows)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        moved = {name: cells.to(bench.device, non_blocking=True) for name, cells in batch.items()}
        with torch.autocast(bench.device.type, dtype=torch.bfloat16):
            loss = next_token_loss(module, moved) / bench.rows
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(module.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        loss.item()

    return figures_of(bench, bench.seconds(step), bench.rows, sum(parameter.numel() for parameter in module.parameters()))


def sharded(bench: Bench) -> Figures:
    """G2."""
    from training.engine.parallel.sharded import ShardedModel

    batch, found = random_batch(bench.shape, bench.rows), {}
    backend = "nccl" if bench.is_gpu else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        for name, strategy in (("plain", None), ("FSDP2", ShardedModel(bench.gang, Layout(), precision="bf16"))):
            torch.manual_seed(1)
            training = bench.training(LanguageModel(bench.shape), "bf16", strategy=strategy)
            found[name] = bench.seconds(lambda training=training: training.step(batch))
    finally:
        dist.destroy_process_group()
    return {**found, "FSDP2 beside plain": found["plain"] / found["FSDP2"]}


def ranker(bench: Bench) -> nn.Module:
    features = [{"name": entry.name, "dtype": entry.dtype, "cardinality": entry.cardinality} for entry in LAYOUT]
    settings = {"embedding_dim": 64 if bench.is_gpu else 4, "hidden": [1024, 512, 256] if bench.is_gpu else [8]}
    architecture: Any = {"features": features, "bias_features": [], "settings": settings}
    torch.manual_seed(1)
    return RankerModule(architecture)


def random_rows(num_rows: int) -> Batch:
    """Return a batch of the ranker's on the CPU."""
    ids = [torch.randint(0, size, (num_rows,), dtype=torch.int32) for size in CARDINALITIES.values()]
    floats, label = torch.randn(num_rows, len(FLOATS)), torch.randint(0, 2, (num_rows,)).float()
    return {"features_float": floats, "features_int": torch.stack(ids, dim=1), "label": label}


def ranker_loss(module: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(module(batch), batch["label"], reduction="sum")


def rows_of(folder: Path, num_rows: int) -> Mapping[str, Any]:
    """Write shards of random rows; return the dataset's meta."""
    import numpy as np

    from tests.shard_files import write_shards

    generator = np.random.default_rng(1)
    floats = [generator.standard_normal(num_rows, dtype=np.float32).view(np.int32) for _ in FLOATS]
    ids = [generator.integers(0, size, num_rows, dtype=np.int32) for size in CARDINALITIES.values()]
    layout = describe_layout(LAYOUT, has_group=False)
    matrix = Matrix(cells=np.ascontiguousarray(np.stack([*floats, *ids], axis=1)), layout=LAYOUT, num_unseen={})
    label = generator.integers(0, 2, num_rows).astype(np.float32)
    written = write_shards(folder, "train", matrix, label, None, np.arange(num_rows), shard_bytes=2**27)
    return {"layout": layout, "group": None, "shards": {"train": [rows for _, _, rows in written]}}


def loading(bench: Bench) -> Figures:
    """G3."""
    size = 65_536 if bench.is_gpu else 64
    num_batches = 64 if bench.is_gpu else 4
    with tempfile.TemporaryDirectory() as name:
        meta: Any = rows_of(Path(name), size * num_batches)
        loader = Loader(ShardSet(Path(name), meta, "train"), dataset_digest="ab" * 32, seed=1, batch_size=size)
        training = bench.training(ranker(bench), "bf16", loss=ranker_loss)
        ready = next(iter(loader.batches(0)))
        on_device = {key: cells.to(bench.device) for key, cells in ready.items()}
        floor = bench.seconds(lambda: training.step(on_device))
        bench.wait()
        started_at = time.perf_counter()
        for batch in loader.batches(1):
            training.step(batch)
        bench.wait()
        seconds = (time.perf_counter() - started_at) / num_batches
    return {"rows_per_second": size / seconds, "rows_per_second_on_device": size / floor, "waits": 1 - floor / seconds}


def checkpoints(bench: Bench) -> Figures:
    """G4."""
    training, batch = bench.training(LanguageModel(bench.shape), "bf16"), random_batch(bench.shape, bench.rows)
    plain = bench.seconds(lambda: training.step(batch))
    state = training.state()
    found: Figures = {"bytes": sum(tensor.numel() * tensor.element_size() for tensor in state.values()), "step_seconds": plain}
    with tempfile.TemporaryDirectory() as name:
        saved = opened(Path(name), is_sharded=False)
        saved.reserve(state)
        for place in ("first", "second", "third"):
            bench.wait()
            started_at = time.perf_counter()
            saved.save(state, {"step": training.number, "epoch": 0})
            found[f"{place}_stall_seconds"] = time.perf_counter() - started_at
            started_at, steps = time.perf_counter(), 0
            while not all(save.future.done() for save in saved._writer._saves._in_flight):
                training.step(batch)
                steps += 1
            bench.wait()
            found[f"{place}_step_beside_it"] = (time.perf_counter() - started_at) / max(1, steps) / plain
            saved.wait()
        saved.close()
        started_at = time.perf_counter()
        torch.save(state, Path(name) / "state.pt")
        found["torch.save_seconds"] = time.perf_counter() - started_at
    return found


def tracking(bench: Bench) -> Figures:
    """G5: nothing answers at the tracker's address, so points go to its journal."""
    os.environ |= {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    training, batch = bench.training(ranker(bench), "bf16", loss=ranker_loss), random_rows(4096)
    plain = bench.seconds(lambda: training.step(batch), steps=5 * bench.steps)
    with tempfile.TemporaryDirectory() as name:
        tracker = Tracker(LoopBench(Path(name)).context(), tags={}, parameters={})

        def tracked() -> None:
            training.step(batch)
            tracker.log(training.number, train_loss_step=training.losses[-1], grad_norm=1.0, learning_rate=1e-4)

        seconds = bench.seconds(tracked, steps=5 * bench.steps)
        tracker.close()
    return {"step_seconds": plain, "with_a_point_each_step": seconds / plain}


def determinism(bench: Bench) -> Figures:
    """G6."""
    batch, found = random_batch(bench.shape, bench.rows), {}
    for name, is_on in (("off", False), ("on", True)):
        torch.use_deterministic_algorithms(is_on)
        torch.manual_seed(1)
        first = LanguageModel(bench.shape)
        second = copy.deepcopy(first)
        trainings = [bench.training(module, "bf16") for module in (first, second)]
        found[f"{name}_step_seconds"] = bench.seconds(lambda trainings=trainings: trainings[0].step(batch))
        while trainings[1].number < trainings[0].number:
            trainings[1].step(batch)
        found[f"{name}_equal"] = all(
            torch.equal(one, two) for one, two in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
        )
    found["cost"] = found["on_step_seconds"] / found["off_step_seconds"]
    return found


def graphs(bench: Bench) -> Figures:
    """G7."""
    batch, found = random_rows(1024), {}
    for name in ("eager", "reduce-overhead"):
        module = ranker(bench)
        if name != "eager" and bench.is_gpu:
            module.compile(mode=name)
        training = bench.training(module, "bf16", loss=ranker_loss)
        found[name] = bench.seconds(lambda training=training: training.step(batch), steps=5 * bench.steps)
    return {**found, "gain": found["eager"] / found["reduce-overhead"]}


PARTS: Final[Mapping[str, Callable[[Bench], Figures]]] = {
    "G0": floors,
    "G1": ladder,
    "G2": sharded,
    "G3": loading,
    "G4": checkpoints,
    "G5": tracking,
    "G6": determinism,
    "G7": graphs,
}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=tuple(PARTS))
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        say("[gpu.absent] torch finds no GPU: check the driver, CUDA_VISIBLE_DEVICES and torch's build")
        return 1
    bench = Bench(arguments.device)
    found: Figures = {"device": device_words(bench.device), "torch": torch.__version__}
    for name in arguments.only:
        say(f"{name} {PARTS[name].__name__}")
        started_at = time.perf_counter()
        try:
            found[name] = PARTS[name](bench)
        except (RuntimeError, ValueError, TypeError) as err:
            # The other parts still count.
            found[name] = {"error": f"{type(err).__name__}: {str(err)[:500]}"}
        found[name]["seconds"] = time.perf_counter() - started_at
    print(json.dumps(found, indent=2))
    is_wrong = any("error" in found[name] for name in arguments.only) or not found.get("G6", {}).get("on_equal", True)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
