"""Trainings of several processes that save and load checkpoints, as a program: it imports torch once and forks the ranks.

    python -m tests.unit.training.large.checkpoint.sharded_ranks FOLDER

Every layout of `LAYOUTS` saves one checkpoint below FOLDER, and then loads that of every layout. FOLDER/outcome.json says, for each pair
`<saved as>/<loaded as>`, the names of the tensors that came back with other bits on any rank: none.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch._dynamo  # Before the forks: the first operation of a DTensor imports it.
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from tests.unit.training.engine.loop_bench import LoopBench
from training.engine.checkpoint.checkpoints import Checkpoints
from training.engine.checkpoint.tensors import local_part
from training.engine.parallel.gang import Gang
from training.large.checkpoint.savers import Savers
from training.store import Store

META: Final = {"step": 7, "epoch": 2, "history": [{"loss": 0.5}]}
MESHES: Final[dict[str, tuple[int, ...]]] = {
    "one": (),
    "replicated": (2,),
    "shard 2": (2,),
    "shard 4": (4,),
    "replicas of shards": (2, 2),
    "columns": (2,),
    "rows and columns": (2, 2),
    "layers": (1, 2),
    "shards of layers": (2, 2),
    "replicas of layers": (2, 1, 2),
    "stages": (2,),
    "replicas of stages": (2, 2),
}
PLACEMENTS: Final[dict[str, list[Any]]] = {
    "shard 2": [Shard(0)],
    "shard 4": [Shard(0)],
    "replicas of shards": [Replicate(), Shard(0)],
    "columns": [Shard(1)],
    "rows and columns": [Shard(0), Shard(1)],
    # As FSDP2 places what tensor parallel has divided by rows: the shards are those of each process's part.
    "layers": [_StridedShard(0, split_factor=2), Shard(0)],
    "shards of layers": [_StridedShard(0, split_factor=2), Shard(0)],
    "replicas of layers": [Replicate(), _StridedShard(0, split_factor=2), Shard(0)],
    "stages": [],
    "replicas of stages": [],
}
DIVIDED_LAYERS: Final = ("layers", "shards of layers", "replicas of layers")
STAGES: Final = ("stages", "replicas of stages")
LAYOUTS: Final = tuple(MESHES)
PLAIN: Final = ("buffer", "scalar", "none")


def whole_state() -> dict[str, torch.Tensor]:
    """Return tensors of sizes that divide and do not divide, one with fewer rows than ranks, and small ones that are never cut."""
    generator = torch.Generator().manual_seed(5)
    return {
        "even": torch.randn(8, 6, generator=generator),
        "uneven": torch.randn(7, 5, generator=generator),
        "fewer rows than ranks": torch.randn(1, 3, generator=generator),
        "half": torch.randn(9, 4, generator=generator).to(torch.bfloat16),
        "cube": torch.randn(3, 4, 2, generator=generator),
        "large": torch.randint(0, 250, (1030, 1021), generator=generator, dtype=torch.uint8),
        "buffer": torch.tensor([1.0, float("nan"), -0.0]),
        "scalar": torch.tensor(3, dtype=torch.int64),
        "none": torch.empty(0, 4),
    }


def placed(layout: str, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a state as this rank has it in a layout."""
    if layout not in PLACEMENTS:
        return {name: tensor.clone() for name, tensor in state.items()}
    if layout in STAGES:
        # The processes of one stage are neighbours, as in a pipeline with replicas.
        stage = dist.get_rank() // (world_size(layout) // 2)
        return {name: tensor.clone() for number, (name, tensor) in enumerate(state.items()) if number % 2 == stage}
    mesh = init_device_mesh("cpu", MESHES[layout])
    if layout in DIVIDED_LAYERS:
        return {name: tensor.clone() if name in PLAIN else layer_part(tensor, mesh, PLACEMENTS[layout]) for name, tensor in state.items()}
    return {
        name: tensor.clone() if name in PLAIN else distribute_tensor(tensor, mesh, PLACEMENTS[layout])  # type: ignore[no-untyped-call]
        for name, tensor in state.items()
    }


def layer_part(tensor: torch.Tensor, mesh: DeviceMesh, placements: list[Any]) -> torch.Tensor:
    """Return this process's part of a tensor: of its rows of the layer a shard."""
    *_, shard, layer = mesh.get_coordinate() or []
    *replicas, num_shards, num_parts = mesh.shape
    # A plan refuses a width that cannot be divided: such a tensor is replicated over the tensor group.
    is_divisible = tensor.shape[0] % num_parts == 0
    chosen = placements if is_divisible else [*(Replicate() for _ in replicas), Shard(0), Replicate()]
    rows = tensor.chunk(num_parts)[layer] if is_divisible else tensor
    shards = rows.chunk(num_shards)
    part = shards[shard] if shard < len(shards) else rows[:0]
    return DTensor.from_local(part.clone(), mesh, chosen, run_check=False, shape=tensor.shape, stride=tensor.stride())


def world_size(layout: str) -> int:
    return max(1, torch.Size(MESHES[layout]).numel())


def run_ranks(folder: Path, num_ranks: int, work: Callable[[Gang], None]) -> list[int]:
    """Fork ranks that meet over gloo and do `work`; return their exit statuses."""
    folder.mkdir(parents=True, exist_ok=True)
    meeting = folder / f"meeting-{len(list(folder.glob('meeting-*')))}"
    meeting.touch()
    meeting.unlink()
    pids = []
    for rank in range(num_ranks):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                with joined(meeting, rank, num_ranks) as gang:
                    work(gang)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        pids.append(pid)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    meeting.touch()
    return statuses


@contextmanager
def joined(meeting: Path, rank: int, num_ranks: int) -> Iterator[Gang]:
    torch.set_num_threads(1)
    gang = Gang(rank, num_ranks, torch.device("cpu"))
    if num_ranks > 1:
        store = dist.FileStore(str(meeting), num_ranks)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=timedelta(seconds=60))
    yield gang
    if num_ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


def opened(folder: Path, gang: Gang, *, is_sharded: bool = True, **options: Any) -> Checkpoints:
    """Open the checkpoints of the training below a folder; rank 0 takes the lease."""
    bench = object.__new__(LoopBench)
    bench.folder, bench.store, bench.num_attempts = folder, Store(str(folder / "store")), os.getpid()
    context = bench.context(rank=gang.rank, elastic=True)
    savers = Savers.of(gang) if is_sharded else None
    return bench.checkpoints(context, savers=savers, **options)


def save(folder: Path, layout: str) -> Callable[[Gang], None]:
    def work(gang: Gang) -> None:
        is_sharded = layout in PLACEMENTS
        if not is_sharded and not gang.is_first:
            return
        checkpoints = opened(folder / layout, gang, is_sharded=is_sharded)
        state = placed(layout, whole_state())
        checkpoints.reserve(state)
        checkpoints.save(state, META, name="epoch_2")  # type: ignore[arg-type]
        for tensor in state.values():
            local_part(tensor).zero_()
        checkpoints.wait()
        checkpoints.close()

    return work


def load(folder: Path, layout: str) -> Callable[[Gang], None]:
    def work(gang: Gang) -> None:
        wanted, state = placed(layout, whole_state()), placed(layout, whole_state())
        found = {}
        for source in LAYOUTS:
            # Every process reads by itself.
            checkpoints = opened(folder / source, Gang(1, 1, torch.device("cpu")), is_sharded=False)
            for tensor in state.values():
                local_part(tensor).fill_(9)
            filled = checkpoints.restore_into(checkpoints.newest_entry(), state)
            checkpoints.close()
            others = [name for name in state if not torch.equal(bits(state[name]), bits(wanted[name]))]
            found[f"{source}/{layout}"] = [*others, *(set(state) - filled.names)] + ([] if filled.meta["step"] == 7 else ["step"])
        (folder / f"loaded-{layout}-{gang.rank}.json").write_text(json.dumps(found))

    return work


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return local_part(tensor).contiguous().reshape(-1).view(torch.uint8)


def main(folder: Path) -> None:
    for layout in LAYOUTS:
        statuses = run_ranks(folder / "meetings", world_size(layout), save(folder, layout))
        assert set(statuses) == {0}, (layout, statuses)
    for layout in LAYOUTS:
        statuses = run_ranks(folder / "meetings", world_size(layout), load(folder, layout))
        assert set(statuses) == {0}, (layout, statuses)
    outcome: dict[str, list[str]] = {}
    for path in folder.glob("loaded-*.json"):
        for pair, names in json.loads(path.read_text()).items():
            outcome[pair] = sorted({*outcome.get(pair, []), *names})
    (folder / "outcome.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
