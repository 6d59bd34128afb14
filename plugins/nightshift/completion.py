"""Completion of the command `nightshift` in bash, zsh and fish, by argcomplete.

    eval "$(nightshift completion bash)"                                             in ~/.bashrc; zsh likewise, in ~/.zshrc
    nightshift completion fish > ~/.config/fish/completions/nightshift.fish

Commands, options and their values are completed, and names of pipelines and models: those of the YAML files, so that no service is asked.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from training.command_line import describe
from training.installation import PIPELINES, Variable

SHELLS: Final = ("bash", "zsh", "fish")
ASKED: Final = Variable(name="_ARGCOMPLETE", set_by="others", meaning="argcomplete: a shell asks the command `nightshift` for completions")
LINE: Final = Variable(name="COMP_LINE", set_by="others", meaning="argcomplete: the line that is completed")
_MODEL: Final = re.compile(r"^promote:.*?\bmodel:\s*([a-z][a-z0-9_-]*)", re.DOTALL | re.MULTILINE)


class NamesParser(argparse.ArgumentParser):
    """A parser whose arguments `pipeline`, `model` and `name`, also those of its subcommands, are completed by the names that there are."""

    def __init__(self, **options: Any) -> None:
        """Make a parser whose texts keep their lines."""
        super().__init__(formatter_class=argparse.RawTextHelpFormatter, **options)

    def add_argument(self, *flags: Any, **options: Any) -> argparse.Action:
        """Add an argument as argparse does."""
        action = super().add_argument(*flags, **options)
        if action.dest in _COMPLETERS and not action.choices:
            # Where argcomplete looks for it.
            action.completer = _COMPLETERS[action.dest]  # type: ignore[attr-defined]
        return action


def pipeline_names(**_line: Any) -> list[str]:
    """Return the names of pipelines, which are those of their files."""
    return [path.stem for path in _files()]


def model_names(**_line: Any) -> list[str]:
    """Return the models that pipelines promote, without a whole parse: a completion that is wrong is refused later."""
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in _files())
    return sorted({match.group(1) for text in texts if (match := _MODEL.search(text))})


def _files() -> list[Path]:
    folder = PIPELINES.text()
    return sorted(Path(folder).glob("*.yaml")) if folder else []


_COMPLETERS: Final[Mapping[str, Callable[..., list[str]]]] = {
    "pipeline": pipeline_names,
    "model": model_names,
    "name": lambda **_line: sorted({*pipeline_names(), *model_names()}),
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    describe(parser, _print_code, 'eval "$(nightshift completion bash)"', __doc__)
    parser.add_argument("shell", choices=SHELLS, help="the shell that will read the output")


def _print_code(options: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(["nightshift"], shell=options.shell) + "\n")
    return 0
