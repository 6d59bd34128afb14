"""The shell lines of README.md, docs/operating.md and docs/tutorial.md run in order in a clean shell on a fresh checkout."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest

from devstack.processes import marked_by_home
from devstack.shop import write_day
from nightshift.console import COMMANDS
from tests.integration.installation import FIRST_DAY, FLIGHTS, ROOT, free_ports
from training.contracts import sha256_hex

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3600)]

MANUAL = (ROOT / "README.md", ROOT / "docs" / "operating.md", ROOT / "docs" / "tutorial.md")
"""Pages whose lines are run, in this order, in one shell."""
BASH = "/bin/bash"
NUM_DAYS = 45
NUM_SEARCHES = 60
ANSWER = b"y\n"
"""What the user types when `rollback` asks."""

FIRST_WORDS = "make|eval|airflow|mlflow|nightshift|python|export|ls|sh|curl|docker|kubectl|helm|cp|mkdir|gunzip|unzip|umask|python3"
WORDS = re.compile(rf"(\w+=(\$\(.*?\)|\S*) )*({FIRST_WORDS})\s")
"""First words of a shell line, after the variables that it sets."""

SHELL_FENCES = ("", "sh", "bash", "shell", "console")
"""Languages of fenced blocks that hold shell lines; a block without a language does."""

OTHER_BLOCKS = (
    "resolve →",
    "services are up",
)
"""First words of the blocks that are not for a shell: a diagram, output."""

CLUSTER = "needs a Kubernetes cluster; tests/kubernetes and tests/unit/docker cover it"
DOCKER = "needs docker; tests/unit/docker covers the files"
WHEEL = "needs a wheel of torch, half a gigabyte"
NOT_HERE = {
    "docker compose": DOCKER,
    "NIGHTSHIFT_COMMIT=$(git rev-parse HEAD) docker compose": DOCKER,
    "docker run": DOCKER,
    "gunzip --stdout backup": DOCKER,
    "cp .env backup": DOCKER,
    "umask 077": DOCKER,
    "python3 -m benchmarks.gpu": "needs a card; tests/unit/benchmarks rehearses it",
    "unzip -q torch": WHEEL,
    "MYPYPATH=.local/torch": WHEEL,
    "cp backup/env": DOCKER,
    "mkdir -p backup": DOCKER,
    "kubectl ": CLUSTER,
    "helm ": CLUSTER,
    "make image": DOCKER,
    "export NIGHTSHIFT_BACKEND=kubernetes": CLUSTER,
    "export NIGHTSHIFT_STORE=s3://": CLUSTER,
    "curl ": "needs the password that `make status` shows; tests/unit/plugins/api and client send such requests",
    "make start": "follows the settings of a cluster, " + CLUSTER,
}
"""Beginnings of the lines that one machine cannot run, with the reason."""

SUBSTITUTES = {
    "FROM=2026-02-10 TO=2026-02-12": ("FROM=2026-02-10 TO=2026-02-11", "two nights cover a range; the third only costs time"),
}
"""Parts of lines that run in another form, with the reason."""

REFUSED = {
    "nightshift rollback": (77, "[rollback.", "one champion only, if no later night was accepted"),
}
"""Beginnings of lines that may be refused: exit code, code of the error, reason."""


def blocks(path: Path) -> Iterator[list[str]]:
    """Yield in order the indented blocks, the fenced ones for a shell, and the commands of numbered steps, as lines that are not empty.

    A line that ends with a backslash goes on in the next one.
    """
    block: list[str] = []
    fence: str | None = None
    step: list[str] = []
    for line in [*re.sub(r"\\\n\s*", "", path.read_text(encoding="utf-8")).splitlines(), "end"]:
        if line.startswith("```"):
            fence = None if fence is not None else line[3:].strip()
            continue
        in_step = fence is None and (re.match(r"\d+\. ", line) or (step and re.match(r" {3}\S", line)))
        if step and not in_step:
            yield from ([command] for command in re.findall(r"`([^`]+)`", " ".join(step)) if WORDS.match(f"{command} "))
            step = []
        if in_step:
            step.append(line.strip())
        elif fence in SHELL_FENCES or (fence is None and line.startswith("    ")):
            block.append(line.strip())
        elif line.strip() and block:
            yield [text for text in block if text]
            block = []


def shell_lines(path: Path) -> list[str]:
    """Return the shell lines of a document, without their comments.

    Raises:
        AssertionError: a line that is not a shell line, in a block that is not one of OTHER_BLOCKS.
    """
    lines = []
    for block in blocks(path):
        if block[0].startswith(OTHER_BLOCKS):
            continue
        for line in block:
            assert line.startswith("#") or WORDS.match(f"{line} "), f"{path.name}: add it to WORDS or OTHER_BLOCKS: {line}"
            lines += [] if line.startswith("#") else [re.sub(r"\s+# .*", "", line)]
    return lines


def manual_lines() -> list[str]:
    return [line for path in MANUAL for line in shell_lines(path)]


def reason_not_here(line: str) -> str:
    return next((reason for start, reason in NOT_HERE.items() if line.startswith(start)), "")


def substituted(line: str) -> str:
    for part, (other, _reason) in SUBSTITUTES.items():
        line = line.replace(part, other)
    return line


@dataclass(frozen=True)
class CleanShell:
    """Runs scripts in a checkout as a new shell of a user would: no variable of this process, a terminal as input."""

    folder: Path
    environment: dict[str, str]

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        keyboard, terminal = pty.openpty()
        try:
            os.write(keyboard, ANSWER)
            return subprocess.run(
                [BASH, "--noprofile", "--norc", "-c", script],
                cwd=self.folder,
                env=self.environment,
                stdin=terminal,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
        finally:
            os.close(terminal)
            os.close(keyboard)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[CleanShell]:
    """A shell in a copy of this checkout with its virtual environment, free ports and a small shop; stopped at the end."""
    if not FLIGHTS.is_dir():
        pytest.skip(f"no flights at {FLIGHTS}")
    requirements = sha256_hex(b"".join((ROOT / name).read_bytes() for name in ("requirements.txt", "constraints.txt")))[:16]
    assert (Path(sys.prefix) / f".installed-{requirements}").exists(), "these requirements are not installed here: make install-dev"
    folder = tmp_path / "nightshift"
    copy_checkout(folder)
    (folder / ".venv").symlink_to(sys.prefix)
    for number in range(NUM_DAYS):
        write_day(folder / ".local" / "data" / "shop", date.fromordinal(FIRST_DAY.toordinal() + number), searches=NUM_SEARCHES)
    airflow_port, mlflow_port = free_ports(2)
    environment = {
        "HOME": str(tmp_path),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "NIGHTSHIFT_AIRFLOW_PORT": str(airflow_port),
        "NIGHTSHIFT_MLFLOW_PORT": str(mlflow_port),
        "FLIGHTS_URI": FLIGHTS.as_uri(),
    }
    made = CleanShell(folder, environment)
    try:
        yield made
    finally:
        done = made.run("make stop")
        assert done.returncode == 0, done.stdout
        assert not marked_by_home(folder / ".local")


def copy_checkout(folder: Path) -> None:
    command = ["/usr/bin/env", "git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def script_of(lines: list[str]) -> str:
    """Return a script that numbers each line's output and ends at the first line that fails; REFUSED lines may be refused."""
    steps = []
    for number, line in enumerate(lines):
        allowed = next((refused[0] for start, refused in REFUSED.items() if line.startswith(start)), 0)
        check = f'code=$?; echo "@@ {number} ended with $code"; [ $code = 0 ] || [ $code = {allowed} ] || exit 1'
        steps.append(f"echo '@@ {number}'\n{substituted(line)}\n{check}")
    return "\n".join(steps)


def outputs_of(lines: list[str], done: subprocess.CompletedProcess[str]) -> dict[str, tuple[int, str]]:
    """Return (exit code, output) of each line; fails with the line at which the shell ended, if that is not the last one."""
    found = re.findall(r"^@@ (\d+)\n(.*?)^@@ \1 ended with (\d+)$", done.stdout, re.MULTILINE | re.DOTALL)
    last = lines[int(re.findall(r"^@@ (\d+)$", done.stdout, re.MULTILINE)[-1])]
    assert (len(found), done.returncode) == (len(lines), 0), f"the shell ended at: {last}\n{done.stdout[-6000:]}"
    return {lines[int(number)]: (int(exit_code), output) for number, output, exit_code in found}


def test_lines_of_the_manual_run_in_order_in_a_clean_shell(shell: CleanShell) -> None:
    lines = [line for line in manual_lines() if not reason_not_here(line)]
    runs = "airflow dags list-runs flight_delay --output json"

    outputs = outputs_of([*lines, runs], shell.run(script_of([*lines, runs])))

    for line, (exit_code, output) in outputs.items():
        wanted = next((code for start, (_exit, code, _reason) in REFUSED.items() if line.startswith(start)), "")
        assert exit_code == 0 or wanted in output, f"{line}\n{output[-3000:]}"
        assert "Traceback" not in output, f"{line}\n{output[-3000:]}"

    def output(start: str) -> str:
        return next(text for line, (_exit, text) in outputs.items() if line.startswith(start))

    for run in ("make run", "make run PIPELINE=flight_delay", "make run PIPELINE=cancelled_orders", "make run PIPELINE=airport_demand"):
        assert "decision  " in output(run), output(run)
    assert re.search(r"2026-02-10 .*(accepted|rejected)", output("make backfill"))
    assert re.search(r"2026-02-11 .*(accepted|rejected)", output("make backfill"))
    assert "champion: " in output("nightshift show")
    assert "already done" in output("python -m training.stages.train")
    # The flights end in 2013: the last night before now has none. The other two runs have, and started after it, one at a time.
    found = output(runs)
    listed = json.loads(found[found.index("[") : found.rindex("]") + 1])
    states = [run["state"] for run in listed if not run["run_id"].startswith("scheduled")]
    assert sorted(states) == ["failed", "success", "success"], found


def test_each_shell_line_of_the_manual_is_found_and_each_exception_still_has_its_line() -> None:
    manual, docs = manual_lines(), [line for path in sorted((ROOT / "docs").glob("*.md")) for line in shell_lines(path)]

    assert {"make run", 'eval "$(make env)"', "make run PIPELINE=cancelled_orders"} <= set(manual)
    assert [start for start in NOT_HERE if not any(line.startswith(start) for line in manual + docs)] == []
    assert [part for part in SUBSTITUTES if not any(part in line for line in manual)] == []
    assert [start for start in REFUSED if not any(line.startswith(start) for line in manual)] == []


@pytest.mark.parametrize("block", ["    sudo make run", "```sh\nsudo make run\n```", "```\nsudo make run\n```"])
def test_line_with_an_unknown_first_word_is_reported(tmp_path: Path, block: str) -> None:
    (tmp_path / "README.md").write_text(f"# Title\n\n{block}\n", encoding="utf-8")

    with pytest.raises(AssertionError, match=r"README.md: add it to WORDS or OTHER_BLOCKS: sudo make run"):
        shell_lines(tmp_path / "README.md")


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_each_shell_line_of_the_docs_is_one_of_the_manual_or_has_a_reason(path: Path) -> None:
    manual = " ".join(manual_lines())
    for line in shell_lines(path):
        if line.startswith("nightshift "):
            # tests/rest/integration/test_examples_of_the_help.py runs each command.
            assert line.split()[1] in COMMANDS, f"{path.name}: there is no such command: {line}"
        elif not reason_not_here(line):
            command = " ".join(line.split()[:3])
            assert command in manual, f"{path.name}: run it in this test, or add it to NOT_HERE with the reason: {line}"
