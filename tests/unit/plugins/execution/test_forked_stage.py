"""Stages that are forked from the template: what they have, how they end, and what is left."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from devstack.environment import environment
from devstack.processes import ProcessId, kill_all, marked_by_home
from nightshift.execution.forked_stage import FOLDER, ForkedStage, fork_stage
from nightshift.execution.local import LocalLauncher
from nightshift.execution.stage_environment import stage_environment
from nightshift.settings import Settings
from training.code.stages import stage_code
from training.installation import OF_STAGES, OF_SYSTEM
from training.process.identity import pid_namespace
from training.runtime.attempt_errors import HUNG
from training.runtime.provenance import CHECKOUT
from training.runtime.template import READ_AT_START, at_start
from training.spec import load_spec
from training.stage_table import ALL_STAGES

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 240.0
MEBIBYTE = 2**20
SPEC = load_spec(CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml")
PROGRAM = "forked_program"
WAITS = "import time; print('up', flush=True); time.sleep(600)"
SESSIONS = """
import os, sys, time
from training.process.child import bind_to_parent
parent = os.getpid()
if os.fork() == 0:
    os.setsid()
    bind_to_parent(parent)
os.write(1, f"{os.getpid()}\\n".encode())
time.sleep(600)
"""
"""A launcher and its rank, which has a session of its own."""
TASK = """
import sys
from pathlib import Path
from tests.unit.plugins.execution.test_forked_stage import environment_of, started
stage, lines = started(Path(sys.argv[1]), Path(sys.argv[2]).read_text())
for line in lines:
    print(line, flush=True)
"""


def environment_of(home: Path, **more: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(home)]),
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        # By which it is found.
        "NIGHTSHIFT_SERVICE": f"test:0:{home}",
        **more,
    }


def started(home: Path, program: str, *, folder: Path = CHECKOUT, **more: str) -> tuple[ForkedStage, Iterator[str]]:
    """Return a forked stage that runs a program, and the lines that it writes."""
    name = f"{PROGRAM}_{time.monotonic_ns()}"
    (home / f"{name}.py").write_text(program, encoding="utf-8")
    said: list[str] = []
    stage = fork_stage(home, [name, "argument"], environment_of(home, **more), folder, said.append)
    assert stage is not None, said
    return stage, (line.decode().rstrip("\n") for line in stage.stdout)


def run(home: Path, program: str, **more: Any) -> tuple[int, list[str]]:
    stage, lines = started(home, program, **more)
    found = list(lines)
    return stage.wait(), found


def refusal(home: Path, environment: Mapping[str, str], *, folder: Path = CHECKOUT) -> str:
    """Return why a stage is not forked."""
    said: list[str] = []
    assert fork_stage(home, ["this"], environment, folder, said.append) is None
    return said[0]


def template_pid(home: Path) -> int:
    return int(run(home, "import os; print(os.getppid())")[1][0])


def is_alive(pid: int) -> bool:
    return ProcessId.of(pid) is not None


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of an installation, whose template ends with the tests."""
    folder = tmp_path_factory.mktemp("home")
    yield folder
    kill_all(lambda: marked_by_home(folder))


@pytest.fixture
def own_home(tmp_path: Path) -> Iterator[Path]:
    """The home of an installation for one test."""
    yield tmp_path
    kill_all(lambda: marked_by_home(tmp_path))


def test_fork_is_as_a_new_process_with_its_environment_folder_arguments_and_no_thread_or_open_file(home: Path, tmp_path: Path) -> None:
    program = """
import json, os, sys, tempfile, time
from training.process.child import other_threads
print(json.dumps([dict(os.environ), os.getcwd(), sys.argv[1:], sys.orig_argv[1:], __name__, sys.path[0]]))
print(json.dumps([time.tzname[0], tempfile.gettempdir(), os.getpgid(0) == os.getpid(), other_threads(), sys.stdin.read()]))
print(json.dumps([os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]))
"""
    own = {"TZ": "Asia/Tokyo", "TMPDIR": str(tmp_path), "NIGHTSHIFT_DATABASE": "sqlite:////secret"}
    code, lines = run(home, program, **own)
    environment, folder, arguments, command, name, first = json.loads(lines[0])
    assert code == 0
    assert environment == environment_of(home, **own)
    assert (folder, arguments, name, first) == (str(CHECKOUT), ["argument"], "__main__", str(CHECKOUT))
    assert command[0] == "-m"
    assert re.fullmatch(rf"{PROGRAM}_\d+", command[1])
    assert command[2:] == ["argument"]
    assert json.loads(lines[1]) == ["JST", str(tmp_path), True, [], ""]
    assert {place.partition(":")[0] for place in json.loads(lines[2])} <= {"/dev/null", "pipe", "/dev/urandom"}


def test_ps_shows_the_command_of_a_fork(home: Path) -> None:
    shown = run(home, "print(open('/proc/self/cmdline').read().rstrip(chr(0)).split(chr(0))[1:])")[1][0]
    assert re.fullmatch(rf"\['-m', '{PROGRAM}_\d+', 'argument'\]", shown)


def test_two_forks_draw_other_numbers(home: Path) -> None:
    program = "import numpy, random; print(numpy.random.rand(), random.random())"
    first, second = (run(home, program)[1][0].split() for _ in range(2))
    assert not {*first} & {*second}


def test_forks_end_with_their_code_or_signal(home: Path) -> None:
    assert run(home, "raise SystemExit(65)")[0] == 65
    assert run(home, "raise SystemExit('no rows')") == (1, ["no rows"])
    assert run(home, "import os; os.kill(os.getpid(), 9)")[0] == -signal.SIGKILL
    code, lines = run(home, "raise ValueError('wrong')")
    assert (code, lines[-1]) == (1, "ValueError: wrong")


def test_fork_that_hangs_is_ended_with_its_stack_in_the_log(home: Path) -> None:
    program = """
from training.process import liveness
liveness.watch()
liveness.limit({"start": 0.2})
import threading; threading.Event().wait()
"""
    code, lines = run(home, program)
    assert 128 - code == HUNG
    assert any(f"{PROGRAM}" in line and "line 5 in <module>" in line for line in lines)


def test_fork_is_asked_to_stop_and_killed_if_it_does_not(home: Path) -> None:
    stage, lines = started(home, WAITS)
    assert next(lines) == "up"
    stage.terminate()
    assert stage.wait() == -signal.SIGTERM
    stage, lines = started(home, f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}")
    assert next(lines) == "up"
    stage.terminate()
    stage.kill()
    assert stage.wait() == -signal.SIGKILL
    assert not stage.is_lost
    # It has ended: nothing happens.
    stage.terminate()


@pytest.mark.parametrize("kills", [lambda task: os.kill(task, signal.SIGKILL), lambda task: os.killpg(task, signal.SIGKILL)])
def test_kill_of_the_task_or_its_group_ends_the_stage_and_its_ranks_within_a_second(
    home: Path, tmp_path: Path, kills: Callable[[int], None]
) -> None:
    (tmp_path / "program").write_text(SESSIONS, encoding="utf-8")
    path = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "plugins")])
    task = subprocess.Popen(
        [sys.executable, "-c", TASK, str(home), str(tmp_path / "program")],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert task.stdout is not None
    with task.stdout:
        pids = [int(task.stdout.readline()) for _ in range(2)]
        assert all(map(is_alive, pids))
        kills(task.pid)
        task.wait()
        killed_at = time.monotonic()
        assert until(lambda: not any(map(is_alive, pids)))
    assert time.monotonic() - killed_at < 1.0


def test_kill_of_the_template_ends_its_forks_and_the_next_stage_has_another(own_home: Path) -> None:
    stage, lines = started(own_home, SESSIONS)
    pids = [int(next(lines)) for _ in range(2)]
    first = template_pid(own_home)
    os.kill(first, signal.SIGKILL)
    assert stage.wait() == -signal.SIGKILL
    assert stage.is_lost
    assert until(lambda: not any(map(is_alive, pids)))
    assert template_pid(own_home) != first


def test_stage_that_ended_with_its_template_is_known_as_such(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_HOME", str(own_home))
    stage, _ = started(own_home, WAITS)
    os.kill(template_pid(own_home), signal.SIGKILL)
    ended = LocalLauncher(Settings.from_environment())._follow(stage, lambda line: None)
    assert (ended.exit_code, ended.code) == (137, "process.template")


def test_peak_of_memory_is_the_stages_alone(home: Path) -> None:
    program = """
from training.runtime.resource_usage import UsageMeter
held = bytearray(200 * 2**20)
print(UsageMeter().usage().peak_memory_bytes)
"""
    stage, lines = started(home, program)
    measured = int(next(lines))
    stage.wait()
    idle, _ = started(home, "pass")
    idle.wait()
    assert 200 * MEBIBYTE <= measured < 300 * MEBIBYTE
    assert 200 * MEBIBYTE <= stage.peak_bytes < 300 * MEBIBYTE
    assert idle.peak_bytes < 64 * MEBIBYTE


def test_new_program_that_a_fork_starts_has_all_of_its_memory_counted(home: Path) -> None:
    program = """
import subprocess, sys
from training.runtime.resource_usage import UsageMeter
other = subprocess.Popen([sys.executable, "-c", "x = bytearray(200 * 2**20); print(); input()"], stdin=subprocess.PIPE, stdout=-1)
other.stdout.readline()
print(UsageMeter().usage().peak_memory_bytes)
other.communicate(b"\\n")
"""
    assert int(run(home, program)[1][0]) >= 200 * MEBIBYTE


def test_socket_and_its_folder_are_the_users_alone_and_the_template_has_no_secret(home: Path) -> None:
    run(home, "pass", NIGHTSHIFT_DATABASE="postgresql://ada:planted@db", AWS_SECRET_ACCESS_KEY="planted")
    assert (home / FOLDER).stat().st_mode & 0o777 == 0o700
    assert (home / FOLDER / pid_namespace()).stat().st_mode & 0o777 == 0o600
    environment = Path(f"/proc/{template_pid(home)}/environ").read_text(encoding="utf-8").rstrip("\0").split("\0")
    assert {entry.partition("=")[0] for entry in environment} <= {*environment_of(home), "LC_CTYPE"}


def test_folder_that_others_can_read_is_not_used(own_home: Path) -> None:
    (own_home / FOLDER).mkdir(mode=0o755)
    assert "is not this user's alone" in refusal(own_home, environment_of(own_home))


def test_template_has_every_library_and_no_other_thread_or_gpu_context(home: Path) -> None:
    has = """
import os, sys
from training.process.child import ALLOCATOR_THREAD
heavy = "duckdb fastapi great_expectations mlflow pandas pyarrow scipy.stats sklearn sqlalchemy torch xgboost"
print(sorted(set(heavy.split()) - set(sys.modules)))
import torch
print(torch.cuda.is_initialized())
tasks = f"/proc/{os.getppid()}/task"
print({open(f"{tasks}/{thread}/comm").read().strip() for thread in os.listdir(tasks) if int(thread) != os.getppid()} - {ALLOCATOR_THREAD})
"""
    assert until(lambda: run(home, has)[1] == ["[]", "False", "set()"])


@pytest.mark.parametrize("stage", ALL_STAGES)
def test_template_has_of_this_package_what_the_stage_imports_too(home: Path, stage: str) -> None:
    program = "import sys; print(*(getattr(sys.modules[name], '__file__', '') for name in sys.modules if name.startswith('training')))"
    has = {Path(path).relative_to(CHECKOUT).as_posix() for path in run(home, program)[1][0].split()}
    assert "training/runtime/runner.py" in has
    assert has <= stage_code(stage, SPEC).files.keys()


@pytest.mark.parametrize(
    ("change", "folder", "differing"),
    [
        ({"PYTHONHASHSEED": "1"}, CHECKOUT, "environment (PYTHONHASHSEED)"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, CHECKOUT, "environment (OMP_WAIT_POLICY)"),
        ({"PYTHONPATH": "/elsewhere"}, CHECKOUT, "environment (PYTHONPATH)"),
        ({}, Path("/tmp"), "folder"),
    ],
)
def test_stage_that_needs_other_values_at_its_start_has_a_new_process(
    home: Path, change: Mapping[str, str], folder: Path, differing: str
) -> None:
    run(home, "pass")
    reason = refusal(home, environment_of(home, **change), folder=folder)
    assert reason == f"the stage has a new process: it needs another {differing} than its template has"


def test_each_variable_of_a_stage_is_read_at_its_start_or_when_it_is_used(installation: Path) -> None:
    del installation
    given = {name: "x" for name in (*OF_SYSTEM, *OF_STAGES)}
    passed = stage_environment(Settings.from_environment(), "promote", SPEC, given)
    # Read when a request is made, when a context is opened, or by this package, which reads none while it is imported.
    used_later = {name for name in passed if name.startswith("NIGHTSHIFT_")} - {"NIGHTSHIFT_SERVICE"}
    used_later |= {"TZ", "TMPDIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}
    used_later |= {"CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "MLFLOW_TRACKING_URI"}
    used_later |= {name for name in passed if name.lower().endswith("_proxy")}
    assert {name for name in passed if not name.startswith("OMP_")} - used_later == READ_AT_START


def test_all_stages_of_an_installation_are_forked_from_one_template(installation: Path) -> None:
    del installation
    given = environment(Settings.from_environment())
    has = at_start(stage_environment(Settings.from_environment(), "ingest", SPEC, given))
    assert {stage: at_start(stage_environment(Settings.from_environment(), stage, SPEC, given)) for stage in ALL_STAGES} == {
        stage: has for stage in ALL_STAGES
    }


def test_an_edit_between_two_stages_is_what_the_second_runs_while_the_first_goes_on(own_home: Path) -> None:
    checkout = own_home / "checkout"
    shutil.copytree(CHECKOUT / "training", checkout / "training", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {"folder": checkout, "PYTHONPATH": os.pathsep.join([str(checkout), str(own_home)])}
    waits, lines = started(own_home, f"import os; print(os.getppid(), flush=True); {WAITS}", **environment)
    first = int(next(lines))
    runner = checkout / "training" / "runtime" / "runner.py"
    runner.write_text(runner.read_text(encoding="utf-8") + "\nEDITED = True\n", encoding="utf-8")
    program = "import os; from training.runtime import runner; print(os.getppid(), runner.EDITED, runner.__file__)"
    code, (line,) = run(own_home, program, **environment)
    assert code == 0
    second, edited, path = line.split()
    assert (int(second) != first, edited, path) == (True, "True", str(runner))
    waits.terminate()
    assert waits.wait() == -signal.SIGTERM
    assert until(lambda: not is_alive(first)), "nothing of the old template is left"


def test_stages_that_begin_together_start_one_template(own_home: Path) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(template_pid(own_home))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
