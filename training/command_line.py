"""The frame of every command: how it is declared, and how it ends: what it raises becomes a message and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Final

from training.errors import NightshiftError, shown
from training.sanitizing import TerminalStream

INTERRUPTED: Final = 130


def describe(parser: argparse.ArgumentParser, command: Callable[[argparse.Namespace], int], example: str, text: str | None = None) -> None:
    """Make a parser that of a subcommand of `nightshift`; its arguments are added as usual.

    Args:
        command: is given the options, among them `error` (which prints a message and ends with exit code 2); returns the exit code.
        example: how it is typed: the end of its `--help`.
        text: beginning of its `--help`: as a rule the module's docstring.
    """
    parser.description, parser.epilog = text, f"example:\n  {example}"
    parser.set_defaults(do=command, error=parser.error)


def exit_code_of(command: Callable[[], int]) -> int:
    """Run a command; return its exit code, that of the error which it raised and this function prints, or 130 after Ctrl-C."""
    try:
        # Whatever a command prints, of users, of data or of a server, speaks to the terminal by line breaks alone.
        with redirect_stdout(TerminalStream(sys.stdout)), redirect_stderr(TerminalStream(sys.stderr)):
            code = command()
        # Here, where a reader that has closed the pipe can be handled: Python's own flush at the end would print a traceback.
        sys.stdout.flush()
    except NightshiftError as err:
        TerminalStream(sys.stderr).write(f"error: {err}\n")
        return int(err.exit_code)
    except BrokenPipeError:
        # `| head` has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return INTERRUPTED
    return code


def number_from(least: int) -> Callable[[str], int]:
    """Return what argparse reads an option by that is a whole number from `least` on."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number from {least} on")
        return int(text)

    return read
