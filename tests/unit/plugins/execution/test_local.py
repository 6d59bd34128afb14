"""Local placement: output as it comes, ends as they are, and nothing left behind."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nightshift.execution import local
from nightshift.execution import stage_environment as environments
from nightshift.execution.attempt_end import Ended
from nightshift.execution.backend import spec_environment
from nightshift.execution.local import MAX_LINE_BYTES, LocalLauncher, child_command, printable, program_of
from nightshift.execution.stage_environment import stage_environment
from nightshift.settings import Settings
from training.contracts import RunIdentity, StageRequest
from training.runtime.attempt_errors import HUNG
from training.runtime.available_memory import memory_limit_bytes
from training.runtime.provenance import CHECKOUT
from training.spec import load_spec, resolve_uris
from training.spec.descriptors.sources import SOURCES, SourceDescriptor
from training.stage_table import ALL_STAGES

PATIENCE_SECONDS = 240.0
SPEC = load_spec(CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml")
LONER = """
import os, signal, time
os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(60)
"""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


@pytest.fixture
def launcher(installation: Path) -> LocalLauncher:
    return LocalLauncher(Settings.from_environment())


def python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", program, *arguments]


def run(launcher: LocalLauncher, program: str, *arguments: str, say: Callable[[str], None] = lambda line: None) -> Ended:
    return launcher.run(python(program, *arguments), {"PATH": os.environ["PATH"]}, say)


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def request(stage: str) -> StageRequest:
    identity = RunIdentity(dag_id="search_ranking", run_id="r1", task_id=stage)
    return StageRequest(
        pipeline="search_ranking",
        stage=stage,
        work_id="f" * 64,
        attempt_id="a1",
        store_uri="file:///store",
        spec_uri="file:///store/spec",
        as_of=datetime(2026, 2, 1, 2, tzinfo=UTC),
        inputs={},
        run=identity,
    )


def test_lines_come_while_the_process_runs(launcher: LocalLauncher, tmp_path: Path) -> None:
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        (tmp_path / "heard").touch()

    # The second line is only said once the first was heard.
    program = """
import pathlib, sys, time
print("one", flush=True)
end = time.monotonic() + 240
while not pathlib.Path(sys.argv[1]).exists() and time.monotonic() < end: time.sleep(0.01)
print("two" if pathlib.Path(sys.argv[1]).exists() else "unheard", file=sys.stderr, flush=True)
"""
    assert run(launcher, program, str(tmp_path / "heard"), say=say).exit_code == 0
    assert lines == ["one", "two"]


def test_process_that_hangs_is_ended_with_its_stack_in_the_log_and_a_code_of_its_own(launcher: LocalLauncher) -> None:
    lines: list[str] = []
    program = f"""
import sys, threading
sys.path.insert(0, {str(CHECKOUT)!r})
from training.process import liveness
liveness.watch()
liveness.limit({{"start": 0.2}})
threading.Event().wait()
"""
    assert run(launcher, program, say=lines.append).exit_code == HUNG
    assert '  File "<string>", line 7 in <module>' in lines


def test_a_line_without_end_comes_in_pieces(launcher: LocalLauncher) -> None:
    lines: list[str] = []
    run(launcher, f"print('x' * {3 * MAX_LINE_BYTES + 5})", say=lines.append)
    assert [len(line) for line in lines] == [MAX_LINE_BYTES] * 3 + [5]


@pytest.mark.parametrize(
    ("piece", "text"),
    [
        (b"plain\n", "plain"),
        (b"20 %\r40 %\r\n", r"20 %\r40 %"),
        (b"\x1b[31mred\x00", r"\x1b[31mred\x00"),
        ("\x85next \u2028 café".encode(), r"\x85next \u2028 café"),
        (b"tab\there", "tab\there"),
        (b"\xff", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_a_line_cannot_forge_another(piece: bytes, text: str) -> None:
    assert printable(piece) == text


def test_exit_codes_are_reported_as_shells_report_them(launcher: LocalLauncher) -> None:
    assert run(launcher, "raise SystemExit(65)").exit_code == 65
    killed = run(launcher, "import os; os.kill(os.getpid(), 9)")
    assert (killed.exit_code, killed.signal_name) == (137, "SIGKILL")


def test_the_peak_of_memory_is_known(launcher: LocalLauncher) -> None:
    ended = run(launcher, "x = bytearray(200 * 2**20)")
    assert ended.peak_bytes > 200 * 2**20
    assert 0 < ended.limit_bytes == memory_limit_bytes()


def test_stop_asks_first_and_returns_at_once(launcher: LocalLauncher) -> None:
    program = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print("up", flush=True)
time.sleep(60)
"""
    assert run(launcher, program, say=lambda line: launcher.stop()).exit_code == 75


def test_who_does_not_stop_is_killed(launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "GRACE_SECONDS", 0.1)
    assert run(launcher, STUBBORN, say=lambda line: launcher.stop()).exit_code == 128 + signal.SIGKILL


def test_stop_before_the_start_and_after_the_end_does_nothing(launcher: LocalLauncher) -> None:
    launcher.stop()
    assert run(launcher, "pass").exit_code == 0
    launcher.stop()


def test_nothing_survives_a_kill_of_the_parent(tmp_path: Path) -> None:
    # The parent stands for Airflow's task; its child ignores SIGTERM and is in a session of its own, as torchrun's workers are.
    parent_program = f"""
import os, sys
from nightshift.execution.local import LocalLauncher
from nightshift.settings import Settings
child = [sys.executable, "-c", {LONER!r}]
command = [sys.executable, "-m", "training.process.child", "--parent", str(os.getpid()), "--", *child]
launcher = LocalLauncher(Settings.from_environment())
launcher.run(command, os.environ, lambda line: print(line, flush=True))
"""
    path = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "plugins")])
    parent = subprocess.Popen(
        python(parent_program), env={**os.environ, "PYTHONPATH": path, "NIGHTSHIFT_HOME": str(tmp_path)}, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        child_pid = int(parent.stdout.readline())
        assert is_alive(child_pid)
        parent.kill()
        parent.wait()
    assert until(lambda: not is_alive(child_pid))


def test_the_child_stays_in_the_tasks_group(launcher: LocalLauncher) -> None:
    lines: list[str] = []
    run(launcher, "import os; print(os.getpgid(0), os.getsid(0))", say=lines.append)
    assert lines == [f"{os.getpgid(0)} {os.getsid(0)}"]


OF_A_SERVICE = {
    "PATH": "/bin",
    "HOME": "/home/ada",
    "LANG": "C.UTF-8",
    "SHOP_URI": "file:///shop",
    "ALERTS_URI": "https://hooks.test/secret",
    "ALERTS_TOKEN": "secret",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite://",
    "AIRFLOW__API_AUTH__JWT_SECRET": "secret",
    "AIRFLOW_CONN_SLACK_DEFAULT": "slack://:secret@",
    "_AIRFLOW_PROCESS_CONTEXT": "client",
    "NIGHTSHIFT_TOKEN": "secret",
    "NIGHTSHIFT_SERVER": "https://airflow.test",
    "NIGHTSHIFT_WEBHOOK_SECRET": "secret",
    "NIGHTSHIFT_STORE": "s3://nightshift/store",
    "NIGHTSHIFT_DATABASE": "sqlite:////d",
    "NIGHTSHIFT_PLACES": "SHOP_URI",
    "NIGHTSHIFT_STAGE_MEMORY": "4GiB",
    "NIGHTSHIFT_MODEL_PATH": "/models",
    "NIGHTSHIFT_SERVICE": "scheduler",
    "MLFLOW_TRACKING_URI": "http://127.0.0.1:5000",
    "MLFLOW_TRACKING_PASSWORD": "p",
    "MLFLOW_BACKEND_STORE_URI": "postgresql://ada:secret@db/mlflow",
    "MLFLOW_FLASK_SERVER_SECRET_KEY": "secret",
    "AWS_PROFILE": "night",
    "GOOGLE_APPLICATION_CREDENTIALS": "/secret.json",
    "AZURE_STORAGE_ACCOUNT_KEY": "azure",
    "NCCL_DEBUG": "INFO",
    "PYTHONPATH": "/elsewhere",
    "GITHUB_TOKEN": "secret",
}
EVERY_STAGE = {
    *("PATH", "HOME", "LANG", "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONHASHSEED", "OMP_NUM_THREADS", "OMP_WAIT_POLICY"),
    *("GLOO_SOCKET_IFNAME", "NIGHTSHIFT_STOP_NOTICE_SECONDS", "NIGHTSHIFT_EXPECTATIONS", "NIGHTSHIFT_STAGE_MEMORY"),
    *("NIGHTSHIFT_MODEL_PATH", "NIGHTSHIFT_SERVICE", "MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "AWS_PROFILE"),
}
DATABASE, MLFLOW = {"NIGHTSHIFT_DATABASE"}, {"MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_PASSWORD"}
OWN = {
    "ingest": DATABASE,
    "validate": set(),
    "prepare": set(),
    "tune": MLFLOW,
    "train": MLFLOW | {"NCCL_DEBUG"},
    "refit": MLFLOW | {"NCCL_DEBUG"},
    "evaluate": MLFLOW,
    "promote": DATABASE | MLFLOW,
    "trial": DATABASE | MLFLOW | {"NCCL_DEBUG"},
    "canary": set(),
    "repair": DATABASE | MLFLOW,
}


def test_a_stage_plans_with_its_share_of_the_memory_unless_the_installation_states_another(installation: Path) -> None:
    del installation
    given = {**OF_A_SERVICE, "NIGHTSHIFT_STAGE_MEMORY": "", "NIGHTSHIFT_SLOTS": "cpu:3,train:1"}
    shared = stage_environment(Settings.from_environment(given), "train", SPEC, given)["NIGHTSHIFT_STAGE_MEMORY"]
    assert shared == f"{memory_limit_bytes() // 4 // 2**20}MiB"
    stated = stage_environment(Settings.from_environment(OF_A_SERVICE), "train", SPEC, OF_A_SERVICE)
    assert stated["NIGHTSHIFT_STAGE_MEMORY"] == "4GiB"


@pytest.mark.parametrize("stage", ALL_STAGES)
def test_a_stage_gets_these_variables_and_no_other(installation: Path, stage: str) -> None:
    del installation
    passed = stage_environment(Settings.from_environment(OF_A_SERVICE), stage, SPEC, OF_A_SERVICE)
    assert passed.keys() == EVERY_STAGE | OWN[stage]
    assert not [name for name, value in passed.items() if "secret" in value]
    assert passed["PYTHONPATH"] == os.pathsep.join([str(CHECKOUT), "/models"])


def test_only_ingest_gets_the_account_of_the_cloud_that_a_source_is_in(installation: Path) -> None:
    settings = Settings.from_environment({"NIGHTSHIFT_HOME": str(installation)})
    spec = resolve_uris(SPEC, {"SHOP_URI": "gs://shop-data/shop"})
    clouds = {
        stage: {name for name in stage_environment(settings, stage, spec, OF_A_SERVICE) if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))}
        for stage in ALL_STAGES
    }
    assert clouds == {stage: {"GOOGLE_APPLICATION_CREDENTIALS"} if stage == "ingest" else set() for stage in ALL_STAGES}


def test_only_ingest_gets_what_the_kind_of_a_source_reads(installation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del installation
    kind = SourceDescriptor(variables=("WAREHOUSE_DSN",))
    monkeypatch.setattr(environments, "SOURCES", dict.fromkeys(SOURCES.built_in, kind))
    inherited = {"WAREHOUSE_DSN": "host=db", "OTHER_DSN": "host=db"}
    got = {stage: stage_environment(Settings.from_environment(), stage, SPEC, inherited).keys() & inherited.keys() for stage in ALL_STAGES}
    assert got == {stage: {"WAREHOUSE_DSN"} if stage == "ingest" else set() for stage in ALL_STAGES}


def test_every_variable_that_the_work_reads_reaches_its_stages(installation: Path) -> None:
    del installation
    rows = (CHECKOUT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8").splitlines()
    read = {name[1] for row in rows if "`training/" in row and (name := re.match(r"\| `(NIGHTSHIFT_\w+)`", row))}
    passed = stage_environment(Settings.from_environment(), "promote", SPEC, dict.fromkeys(read, "1"))
    # Retention is housekeeping's, pipelines are read by commands, and a store is named by each request.
    not_of_stages = {"NIGHTSHIFT_RETENTION", "NIGHTSHIFT_PIPELINES", "NIGHTSHIFT_STORE"}
    assert read - passed.keys() == not_of_stages | {"NIGHTSHIFT_MODEL_FAMILY"}


def test_waiting_threads_of_a_stage_sleep_unless_the_installation_says_otherwise(installation: Path) -> None:
    del installation
    settings = Settings.from_environment()
    assert stage_environment(settings, "train", SPEC, {})["OMP_WAIT_POLICY"] == "PASSIVE"
    assert stage_environment(settings, "train", SPEC, {"OMP_WAIT_POLICY": "ACTIVE"})["OMP_WAIT_POLICY"] == "ACTIVE"


@pytest.mark.parametrize(
    ("stage", "model", "expected"), [("evaluate", "ranker", "ranker"), ("train", "ranker", None), ("evaluate", "own.m:C", None)]
)
def test_an_evaluation_knows_its_model_family_when_it_starts(stage: str, model: str, expected: str | None) -> None:
    spec = SPEC.model_copy(update={"train": SPEC.train.model_copy(update={"model": model})})
    assert spec_environment(stage, spec).get("NIGHTSHIFT_MODEL_FAMILY") == expected


def test_user_values_never_reach_the_command_line() -> None:
    uri = "file:///store/stages/search_ranking/ingest/f/attempts/a1/_REQUEST.json"
    program = program_of(uri, request("ingest"), SPEC)
    assert program == ["training.stages.ingest", uri]
    shield = [sys.executable, "-m", "training.process.child", "--parent", "42", "--"]
    assert child_command(program, parent_pid=42) == [*shield, sys.executable, "-m", *program]


def test_training_in_several_processes_is_torchruns() -> None:
    program = program_of("uri", request("train"), SPEC)
    assert program[0] == "training.runtime.torchrun"
    assert {"--nproc-per-node=2", "--max-restarts=0"} < set(program)
    assert program[-3:] == ["-m", "training.stages.train", "uri"]
    alone = SPEC.model_copy(update={"train": SPEC.train.model_copy(update={"placement": type(SPEC.train.placement)()})})
    assert "training.runtime.torchrun" not in program_of("uri", request("train"), alone)


def test_a_stop_from_another_thread_is_safe(launcher: LocalLauncher) -> None:
    up = threading.Event()
    stopper = threading.Thread(target=lambda: (up.wait(PATIENCE_SECONDS), launcher.stop()))
    stopper.start()
    assert run(launcher, "import time; print('up', flush=True); time.sleep(60)", say=lambda line: up.set()).exit_code == 143
    stopper.join()
