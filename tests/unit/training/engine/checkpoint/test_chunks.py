"""Format 2 by one process: how blocks are cut, what is read, and which planted index is refused before a byte is copied."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from tests.unit.training.engine.loop_bench import LoopBench
from tests.unit.training.store.power_loss import Disk, recording
from training.contracts import sha256_hex
from training.engine.checkpoint.checkpoints import Checkpoints
from training.engine.checkpoint.chunks import OWN_BLOCK_BYTES, Chunk, Piece, blocks_for, overlapping
from training.engine.checkpoint.format import BLOCK_BYTES
from training.errors import DataError, NightshiftError, NoUsableCheckpointError
from training.large.checkpoint.savers import Savers
from training.store import Manifest, Store
from training.store.manifests import FileEntry

META: Any = {"step": 1, "epoch": 0}
LARGE = OWN_BLOCK_BYTES
FIT = BLOCK_BYTES // (LARGE - 1)


def state(value: float = 1.0) -> dict[str, torch.Tensor]:
    return {"module/w": torch.arange(12.0).reshape(3, 4) + value, "module/b": torch.full((5,), value), "step": torch.tensor(value)}


def alone(bench: LoopBench, **options: Any) -> Checkpoints:
    return bench.checkpoints(bench.context(), savers=Savers(0, 1, HashStore()), **options)


def saved(bench: LoopBench, tensors: dict[str, torch.Tensor] | None = None) -> Manifest:
    checkpoints = alone(bench)
    checkpoints.save(tensors or state(), META)
    checkpoints.wait()
    checkpoints.close()
    return bench.store.manifests.get(bench.saved[-1]["uri"])


def commit(bench: LoopBench, uri: str, step: int = 2) -> int:
    """Commit a manifest as the newest checkpoint; return its entry."""
    lease = bench.context().lease
    assert lease is not None
    lease.commit("checkpoint", {"uri": uri, "step": step, "epoch": 0})
    return bench.work_folder.chain().history()[-1].number


def zeros() -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in state().items()}


@pytest.mark.parametrize(
    ("sizes", "blocks"),
    [
        ([], []),
        ([0, 10, 0, 20], [[(1, 0, 10), (3, 0, 20)]]),
        ([10, LARGE, 20], [[(0, 0, 10)], [(1, 0, LARGE)], [(2, 0, 20)]]),
        ([2 * BLOCK_BYTES + 5], [[(0, 0, BLOCK_BYTES)], [(0, BLOCK_BYTES, 2 * BLOCK_BYTES)], [(0, 2 * BLOCK_BYTES, 2 * BLOCK_BYTES + 5)]]),
        ([LARGE - 1] * (FIT + 1), [[(n, 0, LARGE - 1) for n in range(FIT)], [(FIT, 0, LARGE - 1)]]),
    ],
    ids=["nothing", "small ones share", "a large one has its own", "larger than a block", "no more than a block"],
)
def test_large_chunks_have_blocks_of_their_own_and_small_ones_share(sizes: list[int], blocks: list[list[tuple[int, int, int]]]) -> None:
    assert blocks_for(sizes) == [[Piece(*piece) for piece in block] for block in blocks]


def test_one_process_reads_back_what_it_saved_as_a_whole_and_into_tensors(bench: LoopBench) -> None:
    saved(bench)
    reader = bench.checkpoints(bench.context())
    entry = reader.newest_entry()
    restored = reader.restore(entry)
    assert {name: tensor.tolist() for name, tensor in restored.state.items()} == {name: t.tolist() for name, t in state().items()}
    assert restored.meta == {**META, "identity": {"world_size": 1, "dataset": "ab" * 32}}
    found = zeros()
    filled = reader.restore_into(entry, found)
    assert all(torch.equal(found[name], tensor) for name, tensor in state().items())
    assert (filled.meta, filled.names) == (restored.meta, frozenset(state()))


def test_tensor_of_another_memory_format_is_filled(bench: LoopBench) -> None:
    saved(bench)
    reader = bench.checkpoints(bench.context())
    found = {"module/w": torch.zeros(4, 3).t()}
    reader.restore_into(reader.newest_entry(), found)
    assert torch.equal(found["module/w"], state()["module/w"])


def test_state_may_be_a_part_of_the_checkpoint_and_blocks_of_others_are_not_read(bench: LoopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    large = {name: torch.full((OWN_BLOCK_BYTES,), number, dtype=torch.uint8) for number, name in enumerate("abc")}
    saved(bench, large)
    reader = bench.checkpoints(bench.context())
    entry, read, get = reader.newest_entry(), [], bench.store.objects.get_bytes
    monkeypatch.setattr(bench.store.objects, "get_bytes", lambda digest: (read.append(digest), get(digest))[1])
    found = torch.zeros(OWN_BLOCK_BYTES, dtype=torch.uint8)
    assert reader.restore_into(entry, {"b": found}).names == {"b"}
    assert torch.equal(found, large["b"])
    assert read == [sha256_hex(bytes([1]) * OWN_BLOCK_BYTES)]


def test_optional_names_stay_as_they_are_where_the_checkpoint_has_none(bench: LoopBench) -> None:
    saved(bench)
    reader = bench.checkpoints(bench.context())
    found = {**zeros(), "best/w": torch.ones(2)}
    filled = reader.restore_into(reader.newest_entry(), found, optional_prefixes=("best/",))
    assert filled.names == frozenset(state())
    assert found["best/w"].tolist() == [1, 1]
    with pytest.raises(DataError, match="tensor best/w is missing"):
        reader.restore_into(reader.newest_entry(), found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"module/w": torch.zeros(4, 3)}, r"module/w is float32 \[3, 4\], this attempt has float32 \[4, 3\]"),
        ({"module/w": torch.zeros(3, 4, dtype=torch.float64)}, r"this attempt has float64 \[3, 4\]"),
        ({"more": torch.zeros(1)}, "tensor more is missing"),
    ],
    ids=["shape", "dtype", "name"],
)
@pytest.mark.parametrize("is_sharded", [True, False], ids=["format 2", "format 1"])
def test_state_that_the_checkpoint_does_not_have_is_refused_before_a_byte_is_copied(
    bench: LoopBench, change: dict[str, torch.Tensor], words: str, is_sharded: bool
) -> None:
    checkpoints = alone(bench) if is_sharded else bench.checkpoints(bench.context())
    checkpoints.save(state(), META)
    checkpoints.wait()
    found = {**zeros(), **change}
    with pytest.raises(DataError, match=words) as caught:
        checkpoints.restore_into(checkpoints.newest_entry(), found)
    checkpoints.close()
    assert caught.value.code == "checkpoint.unreadable"
    assert not any(tensor.any() for tensor in found.values())


def of_w(meta: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = meta["tensors"]["module/w"]
    return entry


def halves(meta: dict[str, Any], second: int) -> None:
    """Cut the 3 rows of module/w into rows 0 and 1, and one row at `second`."""
    (chunk,) = of_w(meta)["chunks"]
    rest = {**chunk, "offsets": [second, 0], "sizes": [1, 4], "offset": chunk["offset"] + 32}
    of_w(meta)["chunks"] = [{**chunk, "sizes": [2, 4]}, rest]


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "unknown dtype": lambda meta: of_w(meta).update(dtype="float4_e2m1fn_x2"),
    "dtype with code": lambda meta: of_w(meta).update(dtype="__import__('os')"),
    "gap": lambda meta: of_w(meta)["chunks"][0].update(sizes=[2, 4]),
    "no chunks": lambda meta: of_w(meta).update(chunks=[]),
    "overlap": lambda meta: halves(meta, 1),
    "outside of the tensor": lambda meta: halves(meta, 3),
    "same chunk twice": lambda meta: of_w(meta).update(chunks=of_w(meta)["chunks"] * 2),
    "huge shape": lambda meta: of_w(meta).update(shape=[2**62, 4]),
    "huge shape and chunk": lambda meta: (of_w(meta).update(shape=[2**62, 4]), of_w(meta)["chunks"][0].update(sizes=[2**62, 4])),
    "negative shape": lambda meta: of_w(meta).update(shape=[-3, 4]),
    "negative offset": lambda meta: of_w(meta)["chunks"][0].update(offset=-8),
    "negative offsets": lambda meta: of_w(meta)["chunks"][0].update(offsets=[-1, 0]),
    "offset beyond the bytes": lambda meta: of_w(meta)["chunks"][0].update(offset=10**9),
    "rank without bytes": lambda meta: of_w(meta)["chunks"][0].update(rank=7),
    "rank that is no number": lambda meta: of_w(meta)["chunks"][0].update(rank=True),
    "other dimensions": lambda meta: of_w(meta)["chunks"][0].update(offsets=[0], sizes=[12]),
    "more keys": lambda meta: of_w(meta)["chunks"][0].update(module="os"),
    "offset missing": lambda meta: of_w(meta)["chunks"][0].pop("offset"),
    "chunks that are no list": lambda meta: of_w(meta).update(chunks={"a": 1}),
    "entry that is a text": lambda meta: meta["tensors"].update({"module/w": "x"}),
    "tensors that are a list": lambda meta: meta.update(tensors=[1]),
    "no tensors": lambda meta: meta.pop("tensors"),
    "newer format": lambda meta: meta.update(format=3),
    "tensors on the same bytes": lambda meta: meta["tensors"].update({f"w{n}": of_w(meta) for n in range(1000)}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_planted_index_is_refused_before_a_byte_is_copied_and_the_checkpoint_before_is_used(
    bench: LoopBench, change: Callable[[dict[str, Any]], object]
) -> None:
    manifest = saved(bench)
    meta = copy.deepcopy({**manifest.meta, "step": 2})
    change(meta)
    entry = commit(bench, bench.store.manifests.put(Manifest(kind="checkpoint", files=manifest.files, meta=meta)))
    reader, found = bench.checkpoints(bench.context()), zeros()
    for read in (lambda: reader.restore_into(entry, found), lambda: reader.restore(entry)):
        with pytest.raises(DataError) as caught:
            read()
        assert caught.value.code == "checkpoint.unreadable"
    assert not any(tensor.any() for tensor in found.values())
    assert reader.restore(reader.newest_entry()).meta["step"] == 1


class Planted:
    """Writes a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._canary,)


def test_pickle_as_a_block_is_numbers_and_as_a_manifest_refused_and_never_run(bench: LoopBench, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    planted = pickle.dumps(Planted(canary))
    manifest = saved(bench)
    block = FileEntry(digest=bench.store.objects.put_bytes(planted), size_bytes=len(planted))
    chunk = {"offsets": [0], "sizes": [len(planted)], "rank": 0, "offset": 0}
    tensors = {"t": {"dtype": "uint8", "shape": [len(planted)], "chunks": [chunk]}}
    meta = {**manifest.meta, "tensors": tensors}
    entry = commit(bench, bench.store.manifests.put(Manifest(kind="checkpoint", files={"rank-00000-block-00000": block}, meta=meta)))
    reader, found = bench.checkpoints(bench.context()), torch.zeros(len(planted), dtype=torch.uint8)
    reader.restore_into(entry, {"t": found})
    assert bytes(found.tolist()) == planted
    # A manifest's name is the digest of its first line.
    key = bench.store.manifests.key(sha256_hex(planted.partition(b"\n")[0]))
    bench.store.bucket.create(key, planted)
    entry = commit(bench, bench.store.bucket.uri(key))
    with pytest.raises(DataError, match="is not a readable manifest"):
        reader.restore_into(entry, {"t": found})
    assert not canary.exists()


@pytest.mark.parametrize("damage", ["missing", "shorter"])
def test_checkpoint_with_a_block_that_is_missing_or_short_is_passed_over(bench: LoopBench, damage: str) -> None:
    checkpoints = alone(bench)
    checkpoints.save(state(1.0), META)
    checkpoints.save(state(2.0), {**META, "step": 2})
    checkpoints.wait()
    checkpoints.close()
    (block,) = bench.store.manifests.get(bench.saved[-1]["uri"]).files.values()
    path = Path(bench.store.root_uri.removeprefix("file://")) / bench.store.objects.key(block.digest)
    path.unlink() if damage == "missing" else path.write_bytes(path.read_bytes()[:-1])
    reader = bench.checkpoints(bench.context())
    entry = reader.newest_entry()
    assert reader.restore(entry).meta["step"] == 1
    with pytest.raises(NoUsableCheckpointError, match="it could not be restored"):
        reader.newest_entry(before=entry)


def test_block_with_other_bits_is_found_when_it_is_read_and_the_record_before_can_be_asked_for(bench: LoopBench) -> None:
    checkpoints = alone(bench)
    checkpoints.save(state(1.0), META)
    checkpoints.save(state(2.0), {**META, "step": 2})
    checkpoints.wait()
    checkpoints.close()
    (block,) = bench.store.manifests.get(bench.saved[-1]["uri"]).files.values()
    path = Path(bench.store.root_uri.removeprefix("file://")) / bench.store.objects.key(block.digest)
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    reader, found = bench.checkpoints(bench.context()), zeros()
    entry = reader.newest_entry()
    with pytest.raises(NightshiftError) as caught:
        reader.restore_into(entry, found)
    assert caught.value.code == "object.altered"
    assert reader.restore_into(reader.newest_entry(before=entry), found).meta["step"] == 1
    assert torch.equal(found["module/w"], state(1.0)["module/w"])


def boxes(shape: list[int], chance: random.Random) -> list[Chunk]:
    """Cut a tensor into boxes at random."""
    cut = [[(0, size)] for size in shape]
    for number, size in enumerate(shape):
        at = sorted({0, size, *(chance.randrange(size) for _ in range(chance.randrange(3)))})
        cut[number] = list(pairwise(at))
    found: list[list[tuple[int, int]]] = [[]]
    for ranges in cut:
        found = [[*box, one] for box in found for one in ranges]
    return [Chunk(offsets=[a for a, _ in box], sizes=[b - a for a, b in box], rank=0, offset=0) for box in found]


@pytest.mark.parametrize("seed", range(20))
def test_overlap_is_found_in_boxes_of_any_dimensions_and_only_there(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    chunks = boxes([chance.randrange(2, 9) for _ in range(chance.randrange(1, 4))], chance)
    chance.shuffle(chunks)
    assert overlapping(chunks) is None
    extra = copy.deepcopy(chance.choice(chunks))
    assert overlapping([*chunks, extra]) is not None


def test_power_loss_at_any_call_of_two_saves_leaves_a_checkpoint_that_was_committed(tmp_path: Path) -> None:
    bench = LoopBench(tmp_path)
    with recording(tmp_path / "store") as recorder:
        checkpoints = alone(bench)
        for step in (1, 2):
            checkpoints.save(state(float(step)), {"step": step, "epoch": 0})
            checkpoints.wait()
            recorder.answered(f"step {step}")
        checkpoints.close()
    disk, chance = Disk("store"), random.Random(4)  # noqa: S311
    (tmp_path / "pool").mkdir()
    seen = set()
    for number, call in enumerate(recorder.calls):
        disk.do(call)
        folder = tmp_path / f"crash-{number}"
        disk.write_after_crash(folder, chance, tmp_path / "pool")
        least = max((int(key.removeprefix("step ")) for key in disk.answered if key.startswith("step ")), default=0)
        seen.add(step_after(bench, folder / "store", least))
    assert seen == {0, 1, 2}


def step_after(bench: LoopBench, folder: Path, least: int) -> int:
    """Return the step that a training resumes from after a power loss: that of a checkpoint that is whole, and not before `least`."""
    crashed = object.__new__(LoopBench)
    crashed.folder, crashed.num_attempts = bench.folder, 10
    crashed.store = Store(str(folder))
    uris = [entry.value["payload"]["uri"] for entry in crashed.work_folder.chain().history() if entry.value["kind"] == "checkpoint"]
    assert len(uris) >= least
    if not uris:
        return 0
    manifest = crashed.store.manifests.get(f"{crashed.store.root_uri}/{uris[-1].partition('/store/')[2]}")
    assert all(len(crashed.store.objects.get_bytes(block.digest)) == block.size_bytes for block in manifest.files.values())
    return int(manifest.meta["step"])
