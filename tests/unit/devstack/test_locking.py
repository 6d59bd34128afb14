"""A lock that one command holds, and another waits for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from devstack.locking import locked
from training.errors import NightshiftError

ROOT = Path(__file__).resolve().parents[3]
HOLD = """
import sys
from pathlib import Path
from devstack.locking import locked
with locked(Path(sys.argv[1])):
    import subprocess
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_lock_of_a_killed_command_is_free_although_what_it_started_lives(tmp_path: Path) -> None:
    path = tmp_path / "home" / "start.lock"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        waited_for: list[str] = []
        asked, entered = threading.Event(), threading.Event()

        def second() -> None:
            with locked(path, lambda pid: (waited_for.append(pid), asked.set())[0]):
                entered.set()

        thread = threading.Thread(target=second)
        thread.start()
        assert asked.wait(240)
        assert waited_for == [str(holder.pid)]
        assert not entered.is_set()

        holder.kill()

        assert entered.wait(240)
        thread.join(240)
        assert path.read_text() == ""
    finally:
        os.killpg(holder.pid, 9)
        holder.wait()


def test_lock_that_is_a_link_is_refused_and_the_file_behind_it_stays(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (tmp_path / "start.lock").symlink_to(precious)
    with pytest.raises(NightshiftError, match=r"services\.lock"), locked(tmp_path / "start.lock"):
        pass
    assert precious.read_text() == "keep"
