"""Parts as processes with time limits, and their lines. The standard library alone: this process outlives what a part may do to it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

Line = dict[str, Any]
MIN_SECONDS: Final = 10.0
"""Left of the whole limit: below it a part is not begun."""
MAX_ERROR_CHARACTERS: Final = 2000


@dataclass(kw_only=True)
class Limits:
    """Of each part, and of all of them together, from the making of this on."""

    part_seconds: float
    total_seconds: float
    begun_at: float = field(default_factory=time.monotonic)

    def next_seconds(self) -> float:
        """Return how long the next part may take."""
        return min(self.part_seconds, self.begun_at + self.total_seconds - time.monotonic())


class Record:
    """The lines, on standard output and in a file: each is on the disk before the next part begins."""

    def __init__(self, path: Path | None) -> None:
        self.lines: list[Line] = []
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
        self.log_path = None if path is None else path.with_name(path.name + ".log")
        if self.log_path is not None:
            self.log_path.write_bytes(b"")

    def write(self, line: Line) -> None:
        self.lines.append(line)
        text = json.dumps(line, default=str)
        print(text, flush=True)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())


def run_part(name: str, command: Sequence[str], environment: Mapping[str, str], limits: Limits, record: Record) -> Line:
    """Run a part's process to its end or its limit; write its line, which is returned.

    What the process prints on standard output are figures, one JSON object a line: those that came before its end count.
    """
    seconds = limits.next_seconds()
    if seconds < MIN_SECONDS and seconds < limits.part_seconds:
        line: Line = {"part": name, "error": f"not begun: the limit of {limits.total_seconds:g} s for all parts is used up"}
        record.write(line)
        return line
    started_at = time.monotonic()
    output, error = _ended(command, environment, seconds, record.log_path)
    line = {"part": name, "seconds": round(time.monotonic() - started_at, 1)}
    for text in output.splitlines():
        # The last one may be cut.
        with suppress(json.JSONDecodeError):
            found = json.loads(text)
            line |= found if isinstance(found, dict) else {}
    if error and "error" not in line:
        line["error"] = error
    record.write(line)
    return line


def _ended(command: Sequence[str], environment: Mapping[str, str], seconds: float, log: Path | None) -> tuple[str, str]:
    """Return what a process printed, and why it failed, empty where it did not. All that it started is ended with it."""
    errors = None if log is None else log.open("ab")
    try:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
    except OSError as err:
        return "", f"{type(err).__name__}: {err}"
    finally:
        if errors is not None:
            errors.close()
    try:
        output, _ = process.communicate(timeout=seconds)
        error = "" if process.returncode == 0 else _words(process.returncode)
    except subprocess.TimeoutExpired:
        _kill(process.pid)
        output, _ = process.communicate()
        error = f"ended at its limit of {seconds:.0f} s"
    finally:
        _kill(process.pid)
    return output, error


def _words(code: int) -> str:
    return f"ended with code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def installed(wheels: Path, target: Path, environment: dict[str, str], record: Record) -> None:
    """Install the wheels of what this Python lacks into `target`, and put it on the path of `environment`; write a line."""
    missing = [wheel for wheel in sorted(wheels.glob("*.whl")) if not is_installed(wheel.name.partition("-")[0])]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir"]
    line: Line = {"part": "wheels", "installed": [wheel.name for wheel in missing]}
    if missing:
        # pip's own settings could name an index or other folders.
        output, error = _ended(
            [*command, "--target", str(target), *map(str, missing)], environment | {"PIP_CONFIG_FILE": os.devnull}, 120.0, record.log_path
        )
        line |= {"error": (error + output)[:MAX_ERROR_CHARACTERS]} if error else {}
    environment["PYTHONPATH"] += os.pathsep + str(target)
    record.write(line)


def is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
