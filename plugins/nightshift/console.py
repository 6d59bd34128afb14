"""The command `nightshift`: its subcommands, and in which installation they work.

A subcommand is a module with a function `declare(parser)` (see `training.command_line`), which is imported when it is typed. Those of
the laptop installation (`devstack`) run in a process of their own, with code and Python of the checkout.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from nightshift.completion import ASKED, LINE, NamesParser
from training.command_line import exit_code_of
from training.errors import SpecError, spec_error
from training.installation import HOME, PIPELINES, PYTHON_PATH


class Command(NamedTuple):
    """What a subcommand runs."""

    module: str
    help: str
    function: str = "declare"


COMMANDS: Final[Mapping[str, Command]] = {
    "run": Command("devstack.__main__", "run the next night of a pipeline (in a checkout)"),
    "runs": Command("nightshift.client.runs_command", "list, show and start runs, here or on a server"),
    "schedule": Command("nightshift.client.schedule_command", "let a pipeline's schedule start runs, or not"),
    "init": Command("training.starter.command", "write YAML, suite and DAG file for a table of yours"),
    "check": Command("training.stages.check_data", "check pipelines' YAML files, and with --data their data"),
    "layout": Command("training.models.layout_command", "plan how the processes of a training share its model"),
    "checkpoints": Command("nightshift.client.checkpoints_command", "list, export, restore and import checkpoints"),
    "datasets": Command("nightshift.client.datasets_command", "list, show and deprecate versions of a pipeline's data"),
    "show": Command("nightshift.client.show_command", "show decisions, champion and canary"),
    "approve": Command("nightshift.client.answer_command", "approve a candidate that waits for a person"),
    "decline": Command("nightshift.client.answer_command", "decline a candidate that waits for a person"),
    "rollback": Command("nightshift.client.rollback_command", "make an earlier version champion again"),
    "restore": Command("nightshift.client.runs_command", "start a run whose training begins at a checkpoint", "declare_restore"),
    "register": Command("nightshift.client.register_command", "have a pipeline's gates judge a model from outside"),
    "status": Command("nightshift.client.status_command", "show the state of all pipelines, or of a run"),
    "logs": Command("nightshift.client.logs_command", "print the log of a run's stages"),
    "open": Command("nightshift.client.open_command", "open the page of a run, a pipeline or a model"),
    "backfill": Command("nightshift.client.backfill_command", "run a pipeline for the slots of past days"),
    "compare": Command("nightshift.client.compare_command", "compare two versions or two runs"),
    "gc": Command("training.retention.gc", "show what retention would delete, and delete it"),
    "erase": Command("training.retention.erase_command", "erase the rows of a person, a run or a snapshot"),
    "doctor": Command("nightshift.doctor.command", "check the installation, and say how to repair it"),
    "completion": Command("nightshift.completion", "print the completion of this command for a shell"),
    "services": Command("devstack.__main__", "show the services that run (in a checkout)"),
}
OF_DEVSTACK: Final[Mapping[str, str]] = {"run": "run", "services": "status"}
"""Subcommands that exist in a checkout only, and what `python -m devstack` calls them."""


def main() -> int:
    """Run the command line of this process, in the checkout that it is in; return the exit code."""
    given, checkout = sys.argv[1:], checkout_above(Path.cwd())
    if checkout is not None and not HOME.text():
        # What variables do not name is that of the installation there.
        os.environ[HOME.name] = str(checkout / ".local")
    if ASKED.is_set():
        # A shell asks: argcomplete answers and ends the process.
        import argcomplete

        if checkout is not None and not PIPELINES.text():
            os.environ[PIPELINES.name] = str(checkout / "dags" / "pipelines")
        words = LINE.value().split()[1:2]
        argcomplete.autocomplete(_devstack_parser() if words == ["run"] and importlib.util.find_spec("devstack") else parser(words))
    return run(given)


def run(given: Sequence[str]) -> int:
    """Run one subcommand with its arguments; return the exit code."""
    return exit_code_of(lambda: _run(list(given)))


def _run(given: list[str]) -> int:
    if given and given[0] in OF_DEVSTACK:
        argv, environ = devstack_process(given[0], given[1:], folder=Path.cwd(), environ=os.environ)
        os.execve(argv[0], argv, environ)  # noqa: S606 - our own module, and no shell
    options = parser(given).parse_args(given)
    code: int = options.do(options)
    return code


def parser(given: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of a command line: with all subcommands, and the arguments of the one that is typed."""
    found = NamesParser(
        prog="nightshift",
        description="Retrains machine-learning models on a schedule; a new model replaces the champion only when it has earned it.",
        epilog="`nightshift COMMAND --help` shows the options of one.",
    )
    found.add_argument("--version", action="version", version=f"nightshift {_version()}")
    commands = found.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        own = commands.add_parser(name, help=command.help)
        if name in given[:1] and name not in OF_DEVSTACK:
            getattr(importlib.import_module(command.module), command.function)(own)
    return found


def _devstack_parser() -> argparse.ArgumentParser:
    found = NamesParser(prog="nightshift")
    importlib.import_module("devstack.__main__").declare(found)
    return found


def devstack_process(name: str, given: Sequence[str], *, folder: Path, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return argument list and environment of the process that a subcommand of `OF_DEVSTACK` is.

    The current folder is not searched for modules (`-P`): a folder named `training` in it must not stand in for the package.

    Args:
        name: a key of OF_DEVSTACK.
        given: the user's arguments of the subcommand.
        folder: where the search for a checkout begins, upwards.
        environ: the environment of the caller.

    Raises:
        SpecError: `command.checkout`: `folder` is in no checkout, or in one that is not installed.
    """
    checkout = checkout_above(folder)
    if checkout is None:
        raise _refused(
            "command.checkout",
            f"`nightshift {name}` needs a checkout of Nightshift, and {folder} is not in one",
            hint="change to the folder of a checkout; check, show and rollback work everywhere",
        )
    python = str(checkout / ".venv" / "bin" / "python")
    if not os.access(python, os.X_OK):
        raise _refused("command.checkout", f"the checkout {checkout} is not installed", hint=f"make -C {checkout} install")
    # An empty folder of PYTHONPATH stands for the current folder.
    others = [each for each in PYTHON_PATH.value(environ).split(os.pathsep) if each]
    python_path = os.pathsep.join([str(checkout), str(checkout / "plugins"), *others])
    return [python, "-P", "-m", "devstack", OF_DEVSTACK[name], *given], {**environ, "PYTHONPATH": python_path}


def checkout_above(folder: Path) -> Path | None:
    """Return the checkout that `folder` is in, None for none. One that another user owns is none: its programs would run as this user."""
    for place in (folder, *folder.parents):
        if (place / "devstack").is_dir() and place.stat().st_uid not in (0, os.getuid()):
            continue
        if (place / "devstack" / "__main__.py").is_file() and (place / "plugins" / "nightshift_plugin.py").is_file():
            return place
    return None


def _refused(code: str, message: str, *, hint: str) -> SpecError:
    return spec_error("nightshift", code, message, hint=hint)


def _version() -> str:
    try:
        return importlib.metadata.version("nightshift")
    except importlib.metadata.PackageNotFoundError:
        # It is run from a checkout.
        text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
        return f"{tomllib.loads(text)['project']['version']} (a checkout)"


if __name__ == "__main__":
    sys.exit(main())
