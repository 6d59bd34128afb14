"""Completion of the command `nightshift` in bash, zsh and fish, by argcomplete.

    eval "$(nightshift completion bash)"                                             in ~/.bashrc; zsh likewise, in ~/.zshrc
    nightshift completion fish > ~/.config/fish/completions/nightshift.fish

Commands, options and their values are completed, and names of pipelines and models: those of the YAML files, so that no service is asked.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from training.command_line import example
from training.installation import PIPELINES, Variable

SHELLS: Final = ("bash", "zsh", "fish")
ASKED: Final = Variable(name="_ARGCOMPLETE", set_by="others", meaning="argcomplete: a shell asks the command `nightshift` for completions")
LINE: Final = Variable(name="COMP_LINE", set_by="others", meaning="argcomplete: the line that is completed")
_MODEL: Final = re.compile(r"^promote:.*?\bmodel:\s*([a-z][a-z0-9_-]*)", re.DOTALL | re.MULTILINE)
Completer = Callable[..., list[str]]


class Runnable(Protocol):
    """What a subcommand runs (`nightshift.console.Command`)."""

    @property
    def module(self) -> str: ...

    @property
    def arguments(self) -> tuple[str, ...]: ...

    @property
    def with_server(self) -> str: ...

    @property
    def server_subcommands(self) -> tuple[str, ...]: ...

    @property
    def help(self) -> str: ...


def complete(commands: Mapping[str, Runnable], *, checkout: Path | None) -> None:
    """Print what may follow the line that the shell has, and end the process.

    Args:
        commands: by name.
        checkout: whose pipelines are offered; None: those of NIGHTSHIFT_PIPELINES.
    """
    import argcomplete

    line = LINE.value().split()
    argcomplete.autocomplete(parser_with(commands, line[1] if len(line) > 1 else "", checkout))


def parser_with(commands: Mapping[str, Runnable], name: str, checkout: Path | None) -> argparse.ArgumentParser:
    """Return a parser of all commands by name, with the options of one of them; only its module is imported."""
    found = argparse.ArgumentParser(prog="nightshift")
    found.add_argument("--version", action="store_true")
    choices = found.add_subparsers(dest="command")
    for each, command in commands.items():
        own = parser_of(command) if each == name else None
        choices.add_parser(each, help=command.help)
        if own is not None:
            _name_completers(own, folder_of_pipelines(checkout))
            # The parser of the module itself, which argparse has no other way to take.
            choices.choices[each] = own
    return found


def parser_of(command: Runnable) -> argparse.ArgumentParser | None:
    """Return the parser of a command; None where its module is not there (`devstack`, outside of a checkout) or has none."""
    # Of two modules the one that has all subcommands.
    full = command.module if command.server_subcommands else command.with_server or command.module
    for name in (full, f"{command.module}.__main__"):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        if hasattr(module, "parser"):
            found: argparse.ArgumentParser = module.parser()
            for argument in command.arguments:
                found = subparsers_of(found)[argument]
            return found
    return None


def subparsers_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Return the parsers of subcommands by name; empty: there are none."""
    # argparse has no public list of a parser's actions; argcomplete reads it too.
    found = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return next(found, None) or {}


def folder_of_pipelines(checkout: Path | None) -> Path | None:
    """Return the folder of the YAML files; None: it is not known."""
    named = PIPELINES.text()
    if named:
        return Path(named)
    return None if checkout is None else checkout / "dags" / "pipelines"


def pipeline_names(folder: Path | None) -> list[str]:
    """Return the names of pipelines, which are those of their files."""
    return [] if folder is None else sorted(path.stem for path in folder.glob("*.yaml"))


def model_names(folder: Path | None) -> list[str]:
    """Return the models that pipelines promote, without a whole parse: a completion that is wrong is refused later."""
    texts = () if folder is None else (path.read_text(encoding="utf-8", errors="replace") for path in folder.glob("*.yaml"))
    return sorted({match.group(1) for text in texts if (match := _MODEL.search(text))})


def _name_completers(parser: argparse.ArgumentParser, folder: Path | None) -> None:
    names: dict[str, Callable[[Path | None], Iterable[str]]] = {"pipeline": pipeline_names, "model": model_names, "name": _both}
    for each in _all_parsers(parser):
        for action in each._actions:
            if action.dest in names and not action.choices:
                action.completer = _completer(list(names[action.dest](folder)))  # type: ignore[attr-defined]


def _both(folder: Path | None) -> list[str]:
    return sorted({*pipeline_names(folder), *model_names(folder)})


def _completer(names: list[str]) -> Completer:
    def found(**_line: Any) -> list[str]:
        return names

    return found


def _all_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for each in subparsers_of(parser).values():
        yield from _all_parsers(each)


def parser() -> argparse.ArgumentParser:
    """Return the parser of `nightshift completion`."""
    found = argparse.ArgumentParser(
        prog="nightshift completion",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        epilog=example('eval "$(nightshift completion bash)"'),
    )
    found.add_argument("shell", choices=SHELLS, help="the shell that will read the output")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a shell's code; return the exit code."""
    from argcomplete.shell_integration import shellcode

    options = parser().parse_args(arguments)
    sys.stdout.write(shellcode(["nightshift"], shell=options.shell) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
