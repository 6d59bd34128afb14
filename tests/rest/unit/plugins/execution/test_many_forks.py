"""A template that has forked many stages: what one fork leaves is smaller than the noise of memory, so these are a thousand processes."""

import os
from pathlib import Path

import pytest

from nightshift.execution.forked_stage import fork_stage
from tests.unit.plugins.execution.test_forked_stage import MEBIBYTE, PROGRAM, environment_of, home, run, template_pid, until
from training.runtime.provenance import CHECKOUT

__all__ = ["home"]
pytestmark = pytest.mark.slow


def test_a_thousand_forks_leave_no_process_no_open_file_and_no_memory(home: Path) -> None:
    pid = template_pid(home)
    program = f"""
import os
print(len(os.listdir("/proc/{pid}/fd")), open("/proc/{pid}/statm").read().split()[1])
print(open("/proc/{pid}/task/{pid}/children").read())
"""
    assert until(lambda: "great_expectations" in run(home, "import sys; print('xgboost' in sys.modules and 'great_expectations')")[1])
    name = f"{PROGRAM}_idle"
    (home / f"{name}.py").write_text("", encoding="utf-8")

    def forks(number: int) -> tuple[int, int]:
        for _ in range(number):
            stage = fork_stage(home, [name], environment_of(home), CHECKOUT, print)
            assert stage is not None
            assert (stage.stdout.read(), stage.wait()) == (b"", 0)
        files, pages = run(home, program)[1][0].split()
        return int(files), int(pages)

    files, pages = forks(20)
    more_files, more_pages = forks(1000)
    assert more_files == files
    assert (more_pages - pages) * os.sysconf("SC_PAGE_SIZE") < 4 * MEBIBYTE
    # The one that asks.
    assert len(run(home, program)[1][1].split()) == 1
