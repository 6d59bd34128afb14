"""Folders for temporary files: those of the dead are removed, and those of others that only look dead from here are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from training.process import identity, scratch
from training.process.identity import UNKNOWN, pid_namespace
from training.process.scratch import PREFIX, scratch_folder

ROOT = Path(__file__).resolve().parents[3]
HOLD = """
from training.process.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "file").write_text("half")
    print(folder, flush=True)
    input()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def holder(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that has a folder; return both."""
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", HOLD], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def sweep() -> None:
    with scratch_folder():
        pass


def test_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_stays(temporary: Path) -> None:
    (dead, left), (alive, used) = holder(temporary), holder(temporary)
    try:
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        sweep()
        assert (left.exists(), used.exists()) == (False, True)
    finally:
        alive.communicate("\n")
    assert list(temporary.iterdir()) == []


def test_folder_of_a_zombie_is_removed(temporary: Path) -> None:
    process, left = holder(temporary)
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    sweep()
    assert not left.exists()
    process.wait()


def test_folder_of_another_hosts_or_containers_process_stays_although_its_pid_does_not_run_here(temporary: Path) -> None:
    names = [f"{PREFIX}{'0' * 16}-4194303-77-abc", f"{PREFIX}unknown-4194303-77-abc", f"{PREFIX}4194303-abc", f"{PREFIX}model-abc"]
    for name in names:
        (temporary / name).mkdir()
    sweep()
    assert sorted(path.name for path in temporary.iterdir()) == sorted(names)


def test_folder_whose_pid_another_process_has_now_is_removed(temporary: Path) -> None:
    left = temporary / f"{PREFIX}{pid_namespace()}-{os.getpid()}-1-abc"
    left.mkdir()
    sweep()
    assert not left.exists()


def test_process_in_a_namespace_of_its_own_has_another_place() -> None:
    command = [
        "unshare",
        "--fork",
        "--pid",
        "--mount-proc",
        sys.executable,
        "-c",
        "import training.process.identity as p; print(p.pid_namespace())",
    ]
    seen = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    if seen.returncode != 0:
        pytest.skip(f"no pid namespace can be made here: {seen.stderr.strip()[-200:]}")
    assert len(seen.stdout.strip()) == len(pid_namespace()) == 16
    assert seen.stdout.strip() != pid_namespace()


def test_host_with_another_name_is_another_place(monkeypatch: pytest.MonkeyPatch) -> None:
    here = pid_namespace()
    monkeypatch.setattr(identity.socket, "gethostname", lambda: "another")
    assert pid_namespace() != here


def test_nothing_is_swept_where_the_namespace_is_not_known(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "pid_namespace", lambda: UNKNOWN)
    left = temporary / f"{PREFIX}{UNKNOWN}-4194303-77-abc"
    left.mkdir()
    sweep()
    assert [path.name for path in temporary.iterdir()] == [left.name]
