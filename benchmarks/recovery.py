"""How long a killed training takes to its next new step (R1).

    python benchmarks/recovery.py [--mb 200] [--rounds 5] [--parallel "" "{shard: 2}"]

Two processes under the launcher that a stage uses, on one machine. In each round, a rank is killed by SIGKILL once a checkpoint is
committed; the launcher ends, the same command is started again at once, and the training resumes. Printed are medians:

    ends      SIGKILL until the launcher has ended
    starts    until the first rank has restored (launcher, imports, lease, dataset, restore)
    step      until the first step after that is done

What an orchestrator waits before it starts the command again is not in it. The peer is torchrun itself: a script of DistributedDataParallel
with torch.save after each tenth step, started again in the same way. (torchrun's own restarts, --max-restarts, fail on gloo: the new ranks
find the addresses of the old ones.)
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from benchmarks.large_ranker import PARAMETER_BYTES, STEPS_FILE  # noqa: E402

LIMIT_SECONDS: Final = 120.0
NUM_COPIES: Final = 4
"""Of the parameters in a checkpoint: the weights, the best ones, and two moments."""


def main() -> None:
    if "RANK" in os.environ:
        return train_peer(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=200, help="of a checkpoint: weights, best weights, moments")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parallel", nargs="*", default=["", "{shard: 2}"], help="values of train.parallel")
    arguments = parser.parse_args()
    num_bytes = arguments.mb * 10**6 // NUM_COPIES
    os.environ |= {PARAMETER_BYTES: str(num_bytes), "NIGHTSHIFT_MODEL_PACKAGES": "benchmarks", "OMP_NUM_THREADS": "1"}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ |= {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    print(f"{arguments.mb} MB, 2 processes, {arguments.rounds} kills each, load {os.getloadavg()[0]:.1f}")
    for parallel in arguments.parallel:
        with scratch() as folder:
            os.environ["NIGHTSHIFT_DATABASE"] = f"sqlite:///{folder}/nightshift.db"
            report(f"nightshift, {parallel or 'data parallel'}", own_rounds(Path(folder), parallel, arguments.rounds))
    with scratch() as folder:
        report("torchrun, torch.save", [peer_round(Path(folder) / str(n), num_bytes) for n in range(arguments.rounds)])


def scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="recovery-")


def report(name: str, found: list[dict[str, float]]) -> None:
    parts = {key: [one[key] for one in found] for key in found[0]}
    totals = parts.pop("total")
    text = ", ".join(f"{key} {statistics.median(values):.2f}" for key, values in parts.items())
    print(f"  {name:32s} kill to next step {statistics.median(totals):.2f} s ({min(totals):.2f} to {max(totals):.2f}); {text}", flush=True)


def own_rounds(folder: Path, parallel: str, rounds: int) -> list[dict[str, float]]:
    from tests.training_bench import Bench

    bench = Bench(folder, epochs=1000, batch_size=240, processes=2, every="1s", parallel=parallel)
    bench.spec = bench.spec.model_copy(
        update={"train": bench.spec.train.model_copy(update={"model": "benchmarks.large_ranker:LargeRanker"})}
    )
    return [own_round(bench, folder, f"round-{number}") for number in range(rounds)]


def own_round(bench: Any, folder: Path, name: str) -> dict[str, float]:
    from tests.distributed.launched import rank_of

    steps = folder / f"{name}.steps"
    os.environ[STEPS_FILE] = str(steps)
    log = folder / f"{name}.log"

    def start(attempt_id: str) -> subprocess.Popen[bytes]:
        launcher = ["-m", "training.runtime.torchrun", "--standalone", "--nnodes=1", "--nproc-per-node=2", "--max-restarts=0"]
        command = [sys.executable, *launcher, "-m", "training.stages.train", bench.ask_train(name, attempt_id)]
        with log.open("ab") as file:
            return subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)

    first = start("a1")
    try:
        # After the first epoch, the best weights are in a checkpoint too.
        await_condition(lambda: first.poll() is not None or len(bench.checkpoints(name)) >= 3, log)
        check_running(first, log)
        killed_at = time.time()
        os.kill(rank_of(first.pid, 1), signal.SIGKILL)
        first.wait(LIMIT_SECONDS)
    finally:
        first.kill()
        first.wait()
    ended_at = time.time()
    num_lines = len(steps.read_text(encoding="utf-8").splitlines())
    second = start("a2")
    try:
        # The start of the second forward pass is the end of the first step.
        await_condition(lambda: second.poll() is not None or len(steps.read_text(encoding="utf-8").splitlines()) >= num_lines + 2, log)
        # A save may be cut off here: only rounds of other names follow.
    finally:
        second.kill()
        second.wait()
    times = [float(line.split()[1]) for line in steps.read_text(encoding="utf-8").splitlines()[num_lines:]]
    if "resuming after step" not in log.read_text(encoding="utf-8", errors="replace") + log_of(bench, name):
        sys.exit(f"{name} did not resume: {log.read_text(encoding='utf-8', errors='replace')[-9000:]}")
    return {"ends": ended_at - killed_at, "starts": times[0] - ended_at, "step": times[1] - times[0], "total": times[1] - killed_at}


def log_of(bench: Any, name: str) -> str:
    paths = [path for path in Path(bench.store.root_uri[7:]).rglob("log*.txt") if "a2" in str(path)]
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)


def check_running(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.poll() is not None:
        sys.exit(f"the training ended: {log.read_text(encoding='utf-8', errors='replace')[-9000:]}")


def await_condition(condition: Callable[[], bool], log: Path) -> None:
    until = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > until:
            sys.exit(f"waited {LIMIT_SECONDS:.0f} s; {log.read_text(encoding='utf-8', errors='replace')[-9000:]}")
        time.sleep(0.02)


def peer_round(folder: Path, num_bytes: int) -> dict[str, float]:
    """Kill one of torchrun's two ranks after a checkpoint; return when ranks that are started again have done a step."""
    folder.mkdir(parents=True)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=0"]
    log = folder / "log.txt"

    def start(name: str) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            command = [sys.executable, *launcher, __file__, str(folder), str(num_bytes), name]
            return subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)

    first = start("first")
    try:
        await_condition(lambda: len(lines(folder / "first")) > 12, log)
        killed_at = time.time()
        os.kill(int((folder / "pid-1").read_text(encoding="utf-8")), signal.SIGKILL)
        first.wait(LIMIT_SECONDS)
    finally:
        first.terminate()
        first.wait()
    ended_at = time.time()
    second = start("second")
    try:
        await_condition(lambda: len(lines(folder / "second")) >= 1, log)
        done_at = float(lines(folder / "second")[0])
        return {"ends": ended_at - killed_at, "starts and step": done_at - ended_at, "total": done_at - killed_at}
    finally:
        second.terminate()
        second.wait()
        shutil.rmtree(folder)


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def train_peer(folder: Path, num_bytes: int, name: str) -> None:
    """Train in a process of torchrun's until it is killed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    (folder / f"pid-{rank}").write_text(str(os.getpid()), encoding="utf-8")
    width = int((num_bytes / 4 / 8) ** 0.5)
    module = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(8)))
    wrapped = DistributedDataParallel(module)
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    path = folder / "state.pt"
    if path.exists():
        state: Mapping[str, Any] = torch.load(path, weights_only=True)
        module.load_state_dict(state["module"])
        optimizer.load_state_dict(state["optimizer"])
    for step in range(10**6):
        optimizer.zero_grad()
        wrapped(torch.ones(8, width)).square().mean().backward()
        optimizer.step()
        if rank == 0:
            if step % 10 == 9:
                # `best` stands for the copy of the weights that the other side keeps.
                state = {"module": module.state_dict(), "best": module.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, path.with_suffix(".new"))
                path.with_suffix(".new").rename(path)
            with (folder / name).open("a", encoding="utf-8") as file:
                file.write(f"{time.time()}\n")


if __name__ == "__main__":
    main()
