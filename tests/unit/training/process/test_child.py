"""A bound process does not outlive its parent."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from training.runtime.provenance import CHECKOUT
from training.runtime.template import end_of


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_command_dies_when_its_parent_is_killed() -> None:
    script = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'training.process.child', '--parent', str(os.getpid()), '--',"
        " sys.executable, '-c', 'import signal; print(\"up\", flush=True); signal.pause()'], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_alive(pid)
    handle = end_of(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    ended = select.poll()
    ended.register(handle, select.POLLIN)
    signalled = ended.poll(10_000)
    os.close(handle)
    parent.stdout.close()
    assert signalled, "the child outlived its parent"
    assert not is_alive(pid)


def test_command_is_not_started_for_a_parent_that_has_ended_already() -> None:
    command = [sys.executable, "-m", "training.process.child", "--parent", "999999999", "--", "echo", "started"]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT, check=False)
    assert answer.returncode == 137
    assert answer.stdout == ""
