"""How commands end: exit codes, messages, closed pipes."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from training.command_line import exit_code_of, number_from
from training.errors import UnavailableError


def test_an_error_is_printed_with_its_hint_and_is_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> int:
        raise UnavailableError("server.unreachable", "no answer", hint="start it")

    assert exit_code_of(fails) == 74
    assert capsys.readouterr().err == "error: [server.unreachable] no answer (start it)\n"


def test_ctrl_c_is_exit_code_130_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    assert exit_code_of(interrupted) == 130
    assert capsys.readouterr().err == "\n"


@pytest.mark.parametrize(("least", "text"), [(1, "0"), (0, "-1"), (1, "x"), (1, ""), (1, "1.5"), (0, "\u0661")])
def test_number_below_the_least_or_no_number_is_a_wrong_command_line(least: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=number_from(least))
    assert parser.parse_args(["--limit", "7"]).limit == 7
    with pytest.raises(SystemExit) as ended:
        parser.parse_args([f"--limit={text}"])
    assert ended.value.code == 2
    assert f"is not a whole number from {least} on" in capsys.readouterr().err


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_a_reader_that_closes_the_pipe_ends_the_command_quietly(size: int) -> None:
    code = f"""
import sys
from training.command_line import exit_code_of
def command():
    sys.stdin.read()
    sys.stdout.write("x" * {size})
    return 0
sys.exit(exit_code_of(command))
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
