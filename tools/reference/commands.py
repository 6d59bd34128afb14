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

from nightshift.console import COMMANDS, OF_DEVSTACK
from tools.reference.markdown import NOTICE, code, table

TARGET: Final = re.compile(r"^([a-z-]+):.*## (.*)$", re.MULTILINE)
GROUPS: Final = {
    "runs": ("list", "show", "metrics", "start", "restore"),
    "checkpoints": ("list", "export", "restore", "import"),
    "datasets": ("list", "show", "deprecate"),
}
OF_NIGHTSHIFT: Final = [
    line for name in COMMANDS if name not in OF_DEVSTACK for line in ((name,), *((name, each) for each in GROUPS.get(name, ())))
]
MODULES: Final[tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]] = (
    ("devstack.__main__", ((), ("run",), ("backfill",), ("start",), ("stop",), ("status",), ("follow",), ("env",), ("supervise",))),
    ("nightshift.console", ((), *OF_NIGHTSHIFT)),
    ("training.registry.__main__", ((),)),
    ("training.spec.check", ((),)),
    ("training.spec.schema", ((),)),
    ("training.store.probe", ((),)),
    ("devstack.shop", ((),)),
    ("tools.reference.__main__", ((),)),
)
"""Module to the beginnings of a command line that have a help of their own."""
CONSOLE: Final = "nightshift.console"
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
    by_module = " ".join(["python -m", module.removesuffix(".__main__"), *arguments])
    named = PROGRAM.search(text)
    typed = by_module if named is None else named[1]
    more = "" if typed == by_module else f"Module: `{by_module}`.\n\n"
    if module == CONSOLE:
        more = "" if arguments else NIGHTSHIFT
    return f"## {typed}\n{more}```text\n{text}\n```\n"


def page(root: Path) -> str:
    """Return the page."""
    targets = TARGET.findall((root / "Makefile").read_text(encoding="utf-8"))
    parts = [
        f"# Commands\n{NOTICE}\n## make\nIn a checkout. `make` alone lists the targets.\n\n",
        table(("target", "what it does"), [(code(f"make {name}"), text.replace("<", "&lt;")) for name, text in targets]),
        f"\n## Stages\n`{STAGES}` does the work of one attempt again, outside of Airflow. Its request is in the store.\n",
    ]
    for module, lines in MODULES:
        for arguments in lines:
            parts.append(f"\n{_section(module, arguments)}")
    return "".join(parts)
