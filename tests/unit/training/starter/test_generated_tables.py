"""What `init` accepts, ingest reads: generated tables with what files in the wild have, from `init` to the stages before a training."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from nightshift.console import parser
from tests.commands import command
from tests.unit.training.starter.generated_tables import GeneratedTable, generated
from training.command_line import exit_code_of
from training.contracts import ExitCode

NUM_TABLES = 200
NUM_AT_ONCE = 20
PARSER = parser(["init"])
"""Made once: it takes a tenth of the time of an `init`."""
CODE = re.compile(r"\[([a-z_]+\.[a-z_0-9]+)\]")


def init(arguments: Sequence[str]) -> int:
    options = PARSER.parse_args(["init", *arguments])
    return exit_code_of(lambda: int(options.do(options)))


def written(seed: int, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[GeneratedTable, str]:
    """Return the table of a seed, and what `init` printed; nothing where it refused the table with a code."""
    table = generated(seed, folder / "data")
    options = ["--time", "ordered_at", "--label", "outcome", "--to", str(folder / "to")]
    ended = init([str(table.path), *options])
    found = capsys.readouterr()
    assert ended == ExitCode.DONE or CODE.search(found.err), f"seed {seed}: {table.words}: {found.err}"
    assert ended == ExitCode.DONE or table.damages, f"seed {seed} is refused: {table.words}: {found.err}"
    return table, found.out if ended == ExitCode.DONE else ""


def check(seed: int, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    table, text = written(seed, folder, capsys)
    if not text:
        return
    night, variable = re.findall(r"--as-of (\S+)", text)[0], re.findall(r"export (\w+)=", text)[0]
    monkeypatch.setenv(variable, table.path.parent.as_uri())
    monkeypatch.setenv("NIGHTSHIFT_EXPECTATIONS", str(folder / "to" / "expectations"))
    (yaml,) = (folder / "to" / "dags" / "pipelines").glob("*.yaml")
    ended = command("check")(["--data", "--as-of", night, str(yaml)])
    said = capsys.readouterr()
    unannounced = set(CODE.findall(said.out + said.err)) - set(CODE.findall(text))
    assert ended == ExitCode.DONE or not unannounced, f"seed {seed}: {table.words}: {said.out}"


@pytest.mark.parametrize("first", range(0, NUM_TABLES, NUM_AT_ONCE))
def test_sound_tables_are_accepted_and_others_refused_with_a_code(first: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(first, first + NUM_AT_ONCE):
        written(seed, tmp_path / str(seed), capsys)


@pytest.mark.parametrize("seed", [1, 4])
def test_what_was_accepted_passes_the_check_of_its_data(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(seed, tmp_path, capsys, monkeypatch)


@pytest.mark.long
def test_ten_thousand_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(10_000):
        if seed < 500:
            check(seed, tmp_path / str(seed), capsys, monkeypatch)
        else:
            written(seed, tmp_path / str(seed), capsys)
        shutil.rmtree(tmp_path / str(seed))
