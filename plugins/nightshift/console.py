"""The command `nightshift` of the wheel: one name for commands that are also run as `python -m …`.

Each subcommand replaces this process by `python -m MODULE ARGUMENTS`, so options, output and exit codes are those of the module. The
current folder is not searched for modules (`-P`): a folder named `training` in it must not stand in for the package.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nightshift.completion import ASKED, complete
from nightshift.server_variables import names_server
from training.errors import NightshiftError, Problem, SpecError
from training.installation import DATABASE, HOME, PYTHON_PATH, STORE, TRACKING

SOURCE: Final = "nightshift"
DISTRIBUTION: Final = "nightshift"


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """What a subcommand runs."""

    module: str
    arguments: tuple[str, ...] = ()
    """Come before those of the user."""
    help: str
    with_server: str = ""
    """Module that runs instead where --server or a variable names a server; empty: the same one."""
    server_subcommands: tuple[str, ...] = ()
    """Those that `with_server` has; empty: all."""
    needs_checkout: bool = False
    """It starts an installation, which exists in a checkout only."""
    needs_home: bool = False
    """It asks the services of the installation, unless variables name a server."""
    needs_ledger: bool = False
    needs_mlflow: bool = False
    """It writes to MLflow: on a laptop to the installation's, unless a variable names another."""
    needs_store: bool = False
    """In a checkout, it is that of the installation there, unless a variable names another."""


COMMANDS: Final[Mapping[str, Command]] = {
    "run": Command(module="devstack", arguments=("run",), help="run the next night of a pipeline (in a checkout)", needs_checkout=True),
    "runs": Command(module="nightshift.client.runs_command", help="list, show and start runs, here or on a server", needs_home=True),
    "init": Command(module="training.starter", help="write YAML, suite and DAG file for a table of yours"),
    "check": Command(module="training.stages.check_data", help="check pipelines' YAML files, and with --data their data"),
    "layout": Command(module="training.models.layout", help="plan how the processes of a training share its model"),
    "checkpoints": Command(
        module="training.engine.checkpoint",
        with_server="nightshift.client.checkpoints_command",
        server_subcommands=("list",),
        help="list, export, restore and import checkpoints",
        needs_store=True,
    ),
    "datasets": Command(
        module="training.registry.datasets",
        with_server="nightshift.client.datasets_command",
        server_subcommands=("list", "show", "deprecate"),
        help="list, show and deprecate versions of a pipeline's data",
        needs_ledger=True,
    ),
    "show": Command(
        module="training.registry",
        arguments=("show",),
        with_server="nightshift.client.models_command",
        help="show decisions, champion and canary",
        needs_ledger=True,
    ),
    "approve": Command(
        module="nightshift.client.answer_command",
        arguments=("approve",),
        help="approve a candidate that waits for a person",
        needs_home=True,
    ),
    "decline": Command(
        module="nightshift.client.answer_command",
        arguments=("decline",),
        help="decline a candidate that waits for a person",
        needs_home=True,
    ),
    "rollback": Command(
        module="training.registry",
        arguments=("rollback",),
        with_server="nightshift.client.models_command",
        help="make an earlier version champion again",
        needs_ledger=True,
        needs_mlflow=True,
    ),
    "restore": Command(
        module="nightshift.client.runs_command",
        arguments=("restore",),
        help="start a run whose training begins at a checkpoint",
        needs_home=True,
    ),
    "register": Command(
        module="nightshift.client.register_command", help="have a pipeline's gates judge a model from outside", needs_home=True
    ),
    "status": Command(module="nightshift.client.status_command", help="show the state of all pipelines, or of a run", needs_home=True),
    "logs": Command(module="nightshift.client.logs_command", help="print the log of a run's stages", needs_home=True),
    "open": Command(module="nightshift.client.open_command", help="open the page of a run, a pipeline or a model", needs_home=True),
    "backfill": Command(module="nightshift.client.backfill_command", help="run a pipeline for the slots of past days", needs_home=True),
    "compare": Command(module="nightshift.client.compare_command", help="compare two versions or two runs", needs_home=True),
    "gc": Command(module="training.retention.gc", help="show what retention would delete, and delete it", needs_home=True),
    "doctor": Command(module="nightshift.doctor", help="check the installation, and say how to repair it", needs_home=True),
    "completion": Command(module="nightshift.completion", help="print the completion of this command for a shell"),
    "services": Command(module="devstack", arguments=("status",), help="show the services that run (in a checkout)", needs_checkout=True),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; return an exit code only where it could not be started."""
    if ASKED.is_set():
        # A shell asks: argcomplete answers and ends the process.
        complete(COMMANDS, checkout=checkout_above(Path.cwd()))
    options = parser().parse_args(arguments)
    try:
        argv, environ = process_of(options.command, options.arguments, folder=Path.cwd(), environ=os.environ)
    except NightshiftError as err:
        sys.stderr.write(f"error: {err}\n")
        return int(err.exit_code)
    os.execve(argv[0], argv, environ)  # noqa: S606 - our own modules, and no shell


def process_of(name: str, given: Sequence[str], *, folder: Path, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return argument list and environment of the process that a subcommand is.

    Args:
        name: a key of COMMANDS.
        given: the user's arguments of the subcommand.
        folder: where the search for a checkout begins, upwards.
        environ: the environment of the caller.

    Raises:
        SpecError: `command.checkout`, it needs a checkout and `folder` is in none, or none that is installed; `command.ledger`, neither a
            variable nor a checkout says where the ledger is.
    """
    command, checkout, environment = COMMANDS[name], checkout_above(folder), dict(environ)
    if PYTHON_PATH.is_set(environment):
        environment["PYTHONPATH"] = os.pathsep.join(_python_path(environment))
    python = sys.executable
    if command.needs_checkout:
        python = _of_checkout(name, folder, checkout, environment)
    elif command.needs_home and checkout is not None and not HOME.text(environment):
        environment["NIGHTSHIFT_HOME"] = str(checkout / ".local")
    elif command.with_server and names_server(given, environment) and _is_for_server(command, given):
        return [python, "-P", "-m", command.with_server, *command.arguments, *given], environment
    elif command.needs_ledger and not (DATABASE.text(environment) or HOME.text(environment)):
        if checkout is None:
            raise _refused(
                "command.ledger",
                f"the ledger's place is not known: NIGHTSHIFT_DATABASE and NIGHTSHIFT_HOME are not set, and {folder} is not in a checkout",
                hint="export NIGHTSHIFT_DATABASE=postgresql+psycopg2://user:password@host:port/name, or change to a checkout",
            )
        environment["NIGHTSHIFT_HOME"] = str(checkout / ".local")
    elif command.needs_store and checkout is not None and not (STORE.text(environment) or HOME.text(environment)):
        environment["NIGHTSHIFT_HOME"] = str(checkout / ".local")
    if command.needs_mlflow:
        environment |= _mlflow_of(environment)
    return [python, "-P", "-m", command.module, *command.arguments, *given], environment


def _is_for_server(command: Command, given: Sequence[str]) -> bool:
    """Return whether the module that asks a server has what the user typed: exporting a checkpoint needs the store."""
    return not command.server_subcommands or any(each in command.server_subcommands for each in given[:1])


def _of_checkout(name: str, folder: Path, checkout: Path | None, environment: dict[str, str]) -> str:
    """Return the Python of a checkout, and have `environment` name its code."""
    if checkout is None:
        raise _refused(
            "command.checkout",
            f"`nightshift {name}` needs a checkout of Nightshift, and {folder} is not in one",
            hint="change to the folder of a checkout; check, show and rollback work everywhere",
        )
    python = str(checkout / ".venv" / "bin" / "python")
    if not os.access(python, os.X_OK):
        raise _refused("command.checkout", f"the checkout {checkout} is not installed", hint=f"make -C {checkout} install")
    folders = [str(checkout), str(checkout / "plugins"), *_python_path(environment)]
    environment["PYTHONPATH"] = os.pathsep.join(folders)
    return python


def _mlflow_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the laptop installation's MLflow, where no variable names a server."""
    if TRACKING.text(environ):
        return {}
    # Light commands need neither.
    from nightshift.mlflow_account import laptop_variables
    from nightshift.settings import Settings

    return laptop_variables(Settings.from_environment(environ))


def _python_path(environ: Mapping[str, str]) -> list[str]:
    """Return the folders of PYTHONPATH. An empty one stands for the current folder, whose `training` may be anything."""
    return [folder for folder in PYTHON_PATH.value(environ).split(os.pathsep) if folder]


def checkout_above(folder: Path) -> Path | None:
    """Return the checkout that `folder` is in, None for none. One that another user owns is none: its programs would run as this user."""
    for place in (folder, *folder.parents):
        if (place / "devstack").is_dir() and place.stat().st_uid not in (0, os.getuid()):
            continue
        if (place / "devstack" / "__main__.py").is_file() and (place / "plugins" / "nightshift_plugin.py").is_file():
            return place
    return None


def _refused(code: str, message: str, *, hint: str) -> SpecError:
    return SpecError(SOURCE, [Problem(code=code, message=message, hint=hint)])


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    lines = "\n".join(f"  {name:<13}{command.help}" for name, command in COMMANDS.items())
    found = argparse.ArgumentParser(
        prog="nightshift",
        description="Retrains machine-learning models on a schedule; a new model replaces the champion only when it has earned it.",
        epilog=f"commands:\n{lines}\n\n`nightshift COMMAND --help` shows the options of one.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("--version", action="version", version=f"nightshift {_version()}")
    found.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    found.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS")
    return found


def _version() -> str:
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "(a checkout: pyproject.toml has the version)"


if __name__ == "__main__":
    sys.exit(main())
