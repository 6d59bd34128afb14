"""What a stage used, measured on real processes: at least what they are known to have used."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from training.contracts import RunIdentity, StageRequest, StageResult, Usage
from training.runtime.provenance import CHECKOUT
from training.runtime.resource_usage import UsageMeter, usage_text
from training.spec import freeze, load_spec
from training.store import Store

MEBIBYTE = 2**20
CHILD = """
import sys
block = b"x" * (100 * 2**20)
print("ready", flush=True)
sys.stdin.read()
"""
WRITER = """
import sys, time
with open(sys.argv[1], "wb", buffering=0) as file:
    file.write(b"x" * (30 * 2**20))
while time.process_time() < 1.0:
    pass
"""
STAGE = f"""
import subprocess, sys, time
from training.runtime.runner import StageContext, StageOutput, main

def work(context: StageContext) -> StageOutput:
    block = b"x" * (200 * 2**20)
    path = context.folder / "file"
    with path.open("wb", buffering=0) as file:
        file.write(memoryview(block)[: 50 * 2**20])
    with path.open("rb", buffering=0) as file:
        assert len(file.readall()) == 50 * 2**20
    subprocess.run([sys.executable, "-c", {WRITER!r}, str(path)], check=True)
    child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\\n"
    uri, manifest = context.store.manifests.put_files("dataset", {{"file": b"data"}}, {{}})
    return StageOutput(artifact_uri=uri, digest=manifest.digest, scalars={{"own_cpu_seconds": time.process_time()}})

main(work)
"""
RANK = """
import os, sys, time
from pathlib import Path
from training.runtime.runner import StageContext, StageOutput, main

READY, DONE = Path(sys.argv[0]).with_name("ready"), Path(sys.argv[0]).with_name("done")

def work(context: StageContext) -> StageOutput:
    if context.rank:
        block = b"x" * (150 * 2**20)
        READY.touch()
        while not DONE.exists():
            time.sleep(0.01)
        return StageOutput(artifact_uri="", digest="")
    while not READY.exists():
        time.sleep(0.01)
    uri, manifest = context.store.manifests.put_files("dataset", {"file": b"data"}, {})
    return StageOutput(artifact_uri=uri, digest=manifest.digest)

main(work)
"""
TORCHRUN = """
import os, subprocess, sys
from pathlib import Path
same = {**os.environ, "TORCHELASTIC_RUN_ID": "r", "WORLD_SIZE": "2"}
ranks = [subprocess.Popen([sys.executable, *sys.argv[1:]], env={**same, "RANK": str(rank)}) for rank in range(2)]
code = ranks[0].wait()
Path(sys.argv[1]).with_name("done").touch()
sys.exit(code or ranks[1].wait())
"""
"""As torchrun does it: the ranks are children of one process, and find its variables."""


def asked(folder: Path) -> tuple[str, Store, str]:
    store = Store(str(folder / "store"))
    request = StageRequest(
        pipeline="search_ranking",
        stage="prepare",
        work_id="f" * 64,
        attempt_id="a1",
        store_uri=store.root_uri,
        spec_uri=store.put_json(freeze(load_spec(CHECKOUT / "dags/pipelines/search_ranking.yaml"))),
        as_of=datetime(2026, 2, 1, 2, tzinfo=UTC),
        inputs={},
        run=RunIdentity(dag_id="search_ranking", run_id="r1", task_id="prepare"),
    )
    return store.work_folder("search_ranking", "prepare", "f" * 64).write_request(request), store, request.attempt_id


def ran(folder: Path, program: str, *, through: tuple[str, ...] = ()) -> tuple[StageResult, str]:
    """Run a stage's program in a process of its own; return (its result, its log)."""
    path = folder / "stage.py"
    path.write_text(program, encoding="utf-8")
    uri, store, _ = asked(folder)
    done = subprocess.run(
        [sys.executable, *through, str(path), uri],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = store.work_folder("search_ranking", "prepare", "f" * 64).result()
    assert result is not None
    return result, done.stdout


@pytest.mark.slow
def test_stage_and_its_children_are_measured(tmp_path: Path) -> None:
    result, log = ran(tmp_path, STAGE)
    usage = result.usage
    assert usage is not None
    assert usage.peak_memory_bytes >= 300 * MEBIBYTE
    assert usage.peak_memory_bytes < 2000 * MEBIBYTE
    assert usage.cpu_seconds >= float(result.scalars["own_cpu_seconds"]) + 0.95, "with that of a child that has ended"
    assert usage.read_bytes >= 50 * MEBIBYTE
    assert usage.written_bytes >= 80 * MEBIBYTE, "with those of a child that has ended"
    assert usage_text(usage) in log


def test_memory_of_another_rank_is_in_the_peak(tmp_path: Path) -> None:
    result, _ = ran(tmp_path, RANK, through=("-c", TORCHRUN))
    assert result.usage is not None
    assert result.usage.peak_memory_bytes >= 150 * MEBIBYTE


def process_files(proc: Path, pid: int, *, name: str, threads: dict[str, str | None]) -> None:
    """Write what /proc has of a process; a thread whose children are None has ended between the listing and the look."""
    for thread, children in threads.items():
        folder = proc / str(pid) / "task" / thread
        folder.mkdir(parents=True)
        if children is not None:
            (folder / "children").write_text(children, encoding="ascii")
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S " + " ".join(["0"] * 40), encoding="utf-8")
    (proc / str(pid) / "status").write_text(f"Name:\t{name}\nVmHWM:\t1 kB\n", encoding="utf-8")


def test_children_of_other_threads_count_when_a_thread_ends_during_the_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.runtime.resource_usage.PROC", tmp_path)
    process_files(tmp_path, os.getpid(), name="stage", threads={"1": None, "2": "7", "3": None})
    process_files(tmp_path, 7, name="child", threads={"7": None})
    monkeypatch.setattr(Path, "iterdir", lambda folder: iter(sorted(Path(entry) for entry in os.scandir(folder))))
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert UsageMeter().usage().peak_memory_bytes == 2 * 1024


def test_process_whose_name_is_a_superscript_digit_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.runtime.resource_usage.PROC", tmp_path)
    process_files(tmp_path, os.getpid(), name="²", threads={"1": ""})
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert UsageMeter().usage().peak_memory_bytes == 1024


def test_result_is_read_back_with_its_usage_and_without() -> None:
    run = RunIdentity(dag_id="p", run_id="r", task_id="t")
    values = {"pipeline": "p", "stage": "prepare", "work_id": "f", "artifact_uri": "u", "digest": "d", "attempt_id": "a"}
    plain = StageResult(**values, run=run, attempts=1, committed_at="2026-02-01T02:00:00+00:00")
    assert StageResult.from_json(plain.to_json()) == plain
    usage = Usage(peak_memory_bytes=2**30, cpu_seconds=1.5, read_bytes=2048, written_bytes=3)
    measured = StageResult(**values, run=run, attempts=1, committed_at="2026-02-01T02:00:00+00:00", usage=usage)
    assert StageResult.from_json(measured.to_json()) == measured


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (200 * MEBIBYTE, "200.0 MiB"), (3 * 2**30, "3.0 GiB")]
)
def test_sizes_read_as_people_write_them(size_bytes: int, text: str) -> None:
    usage = Usage(peak_memory_bytes=size_bytes, cpu_seconds=1.26, read_bytes=0, written_bytes=0)
    assert usage_text(usage) == f"peak {text} of memory, 1.3 s of CPU, 0 B read, 0 B written"
