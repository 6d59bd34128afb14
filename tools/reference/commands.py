"""The commands: the Makefile's targets and the `--help` of each module that has one."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import sys
from pathlib import Path
from typing import Final
from unittest import mock

from nightshift.console import COMMANDS
from tools.reference.markdown import code, notice, table

TARGET: Final = re.compile(r"^([a-z-]+):.*## (.*)$", re.MULTILINE)
MODULES: Final[tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]] = (
    ("nightshift.console", ((),)),
    ("devstack.__main__", ((), ("run",), ("backfill",), ("start",), ("stop",), ("status",), ("follow",), ("env",), ("supervise",))),
    ("training.starter.command", ((),)),
    ("training.stages.check_data", ((),)),
    ("nightshift.client.status_command", ((),)),
    ("nightshift.client.runs_command", ((), ("list",), ("show",), ("metrics",), ("start",), ("restore",))),
    ("nightshift.client.logs_command", ((),)),
    ("nightshift.client.open_command", ((),)),
    ("nightshift.client.register_command", ((),)),
    ("nightshift.client.backfill_command", ((),)),
    ("nightshift.client.compare_command", ((),)),
    ("nightshift.doctor.__main__", ((),)),
    ("nightshift.completion", ((),)),
    ("nightshift.client.models_command", ((), ("show",), ("rollback",))),
    ("nightshift.client.answer_command", ((), ("approve",), ("decline",))),
    ("nightshift.client.checkpoints_command", ((), ("list",))),
    ("nightshift.client.datasets_command", ((), ("list",), ("show",), ("deprecate",))),
    ("training.registry.cli", ((), ("show",), ("rollback",), ("check",))),
    ("training.registry.datasets", ((), ("list",), ("show",), ("deprecate",))),
    ("training.spec.check", ((),)),
    ("training.models.layout", ((),)),
    ("training.engine.checkpoint.cli", ((), ("list",), ("export",), ("restore",), ("import",))),
    ("training.spec.schema", ((),)),
    ("training.retention.__main__", ((),)),
    ("training.retention.gc", ((),)),
    ("training.store.probe", ((),)),
    ("devstack.shop", ((),)),
    ("tools.reference.__main__", ((),)),
)
"""Module to the beginnings of a command line that have a help of their own."""
CONSOLE: Final = "nightshift.console"
CONSOLE_NAME: Final = "nightshift"
WITH_SERVER: Final = frozenset(command.with_server for command in COMMANDS.values() if command.with_server)
"""Modules whose commands have the names of those that work without a server."""
PROGRAM: Final = re.compile(r"^usage: ((?:python -m [\w.]+|nightshift)(?: [a-z]+)*)", re.MULTILINE)
STAGES: Final = "python -m training.stages.<stage> REQUEST_URI"
NIGHTSHIFT: Final = 'Installed by the wheel (`make wheel`). In a checkout, `eval "$(make env)"` puts it on the path.\n\n'
WIDTH: Final = "100"


def help_of(module: str, arguments: tuple[str, ...]) -> str:
    """Return what `--help` prints, for a terminal of 100 columns."""
    said = io.StringIO()
    main = importlib.import_module(module).main
    patches = (mock.patch.dict(os.environ, {"COLUMNS": WIDTH}), mock.patch.object(sys, "argv", [module, *arguments, "--help"]))
    with patches[0], patches[1], contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main()
    return said.getvalue().rstrip()


def _section(module: str, arguments: tuple[str, ...]) -> str:
    """Return the heading, which is the line that a user types, what else starts the command, and its help."""
    text = help_of(module, arguments)
    by_module = " ".join(["python -m", module.removesuffix(".__main__").removesuffix(".cli").removesuffix(".command"), *arguments])
    named = PROGRAM.search(text)
    if module == CONSOLE:
        return f"## {CONSOLE_NAME}\n{NIGHTSHIFT}```text\n{text}\n```\n"
    if named is None or named[1] in (by_module, CONSOLE_NAME):
        return f"## {by_module}\n```text\n{text}\n```\n"
    where = " with a server" if module in WITH_SERVER else ""
    return f"## {named[1]}{where}\nModule: `{by_module}`.\n\n```text\n{text}\n```\n"


def page(root: Path) -> str:
    """Return the page."""
    targets = TARGET.findall((root / "Makefile").read_text(encoding="utf-8"))
    parts = [
        f"# Commands\n{notice()}\n## make\nIn a checkout. `make` alone lists the targets.\n\n",
        table(("target", "what it does"), [(code(f"make {name}"), text.replace("<", "&lt;")) for name, text in targets]),
        f"\n## Stages\n`{STAGES}` does the work of one attempt again, outside of Airflow. Its request is in the store.\n",
    ]
    for module, lines in MODULES:
        for arguments in lines:
            parts.append(f"\n{_section(module, arguments)}")
    return "".join(parts)
