"""What `init` accepts, ingest reads: generated tables with what files in the wild have, from `init` through the stages of a night.

GENERATED_TABLES chooses how many of them `test_many_tables` makes (10000), GENERATED_SEED of which seed the first is (0). It runs the check
of the data on every twentieth of them, and a night on every two hundredth. Failures are listed at the end, and written to
GENERATED_FAILURES as they come if it names a file.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nightshift.console import parser
from tests.commands import command
from tests.unit.training.stages.evaluate_bench import LATENCY, run_stage, without_services
from tests.unit.training.starter.generated_tables import GeneratedTable, generated
from training.command_line import exit_code_of
from training.contracts import ExitCode
from training.sources.listing import listing_for
from training.spec import parse_spec, resolve_uris
from training.spec.schedule.instants import settle_as_of
from training.store import Store

NUM_TABLES = 200
NUM_AT_ONCE = 20
MANY = int(os.environ.get("GENERATED_TABLES", "10000"))
SEED = int(os.environ.get("GENERATED_SEED", "0"))
CHECKED_OF, NIGHT_OF = 20, 200
PARSER = parser(["init"])
"""Made once: it takes a tenth of the time of an `init`."""
CODE = re.compile(r"\[([a-z_]+\.[a-z_0-9]+)\]")
STAGES = {
    "ingest": (),
    "validate": ("snapshot",),
    "prepare": ("snapshot",),
    "train": ("dataset",),
    "evaluate": ("model", "dataset"),
    "promote": ("model", "evaluation", "dataset", "snapshot"),
}
MADE = {"ingest": "snapshot", "prepare": "dataset", "train": "model", "evaluate": "evaluation"}


@dataclass(kw_only=True)
class Written:
    """What `init` made of a table, and printed."""

    table: GeneratedTable
    yaml: Path
    suites: Path
    printed: str

    @property
    def night(self) -> str:
        return str(re.findall(r"--as-of (\S+)", self.printed)[0])

    @property
    def uris(self) -> dict[str, str]:
        return {re.findall(r"export (\w+)=", self.printed)[0]: self.table.path.parent.as_uri()}

    def unannounced(self, errors: str) -> str:
        """Return what of an error no line of `init` names with the same code."""
        codes = set(CODE.findall(errors))
        return "" if codes and codes <= set(CODE.findall(self.printed)) else f"{self.table.words}: {errors}"


def init(arguments: Sequence[str]) -> int:
    options = PARSER.parse_args(["init", *arguments])
    return exit_code_of(lambda: int(options.do(options)))


def written(seed: int, folder: Path, capsys: pytest.CaptureFixture[str]) -> Written | None:
    """Return what `init` made of the table of a seed; None where it refused the table with a code."""
    table = generated(seed, folder / "data")
    options = ["--time", "ordered_at", "--label", "outcome", "--to", str(folder / "to")]
    ended = init([str(table.path), *options])
    found = capsys.readouterr()
    (code,) = [""] if ended == ExitCode.DONE else CODE.findall(found.err)[:1] or [f"none, exit code {ended}"]
    assert "file:/" not in found.err, "a file is named as on the command line"
    assert code in table.codes, f"seed {seed} ends with {code!r}: {table.words}: {found.err}"
    if code:
        return None
    (yaml,) = (folder / "to" / "dags" / "pipelines").glob("*.yaml")
    return Written(table=table, yaml=yaml, suites=folder / "to" / "expectations", printed=found.out)


def check(seed: int, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if (made := written(seed, folder, capsys)) is None:
        return
    for name, uri in made.uris.items():
        monkeypatch.setenv(name, uri)
    monkeypatch.setenv("NIGHTSHIFT_EXPECTATIONS", str(made.suites))
    ended = command("check")(["--data", "--as-of", made.night, str(made.yaml)])
    said = capsys.readouterr()
    errors = "\n".join([line for line in said.out.splitlines() if "FAIL" in line] + said.err.splitlines())
    assert ended == ExitCode.DONE or not made.unannounced(errors), f"seed {seed}: {made.unannounced(errors)}"


def night(seed: int, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the stages of a first night in this process, without a tracking server and a registry."""
    if (made := written(seed, folder, capsys)) is None:
        return
    without_services(monkeypatch, folder, LATENCY)
    monkeypatch.setattr("training.stages.promote.mirror", lambda ledger, _store, model, **_options: ledger.standing(model))
    monkeypatch.setattr("training.stages.promote.registration_now", lambda _store, _model, _origin, hint: hint)
    monkeypatch.setenv("NIGHTSHIFT_EXPECTATIONS", str(made.suites))
    spec = resolve_uris(parse_spec(made.yaml.read_bytes()), made.uris)
    as_of = settle_as_of(spec, parameter=made.night, logical_date=None, run_after=datetime.now(UTC))
    store, results = Store(str(folder / "store")), dict[str, str]()
    parameters: dict[str, dict[str, Any]] = {
        "ingest": {"listing": listing_for(spec, as_of)},
        "train": {"world_size": 1},
        "promote": {"triggered_by": "ann"},
    }
    for number, (name, inputs) in enumerate(STAGES.items()):
        given = {key: results[key] for key in inputs}
        more = parameters.get(name, {})
        ended, work_folder = run_stage(store, spec, name, given, more, work_id=f"{number:064}", run_id="r", as_of=as_of)
        result = work_folder.result()
        if result is None:
            error = work_folder.error("a1") or {}
            errors = f"{name}: [{error.get('code')}] {error}"
            assert not made.unannounced(errors), f"seed {seed}, {ended}: {made.unannounced(errors)}"
            return
        results[MADE.get(name, name)] = result.artifact_uri


@pytest.mark.parametrize("first", range(0, NUM_TABLES, NUM_AT_ONCE))
def test_sound_tables_are_accepted_and_others_refused_with_a_code(first: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(first, first + NUM_AT_ONCE):
        written(seed, tmp_path / str(seed), capsys)


@pytest.mark.parametrize("seed", [1, 4])
def test_what_was_accepted_passes_the_check_of_its_data(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(seed, tmp_path, capsys, monkeypatch)


@pytest.mark.parametrize("seed", [1, 4])
def test_what_was_accepted_passes_a_night(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    night(seed, tmp_path, capsys, monkeypatch)


@pytest.mark.long
def test_many_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failures: list[str] = []
    for seed in range(SEED, SEED + MANY):
        folder = tmp_path / str(seed)
        try:
            with pytest.MonkeyPatch.context() as patch:
                written(seed, folder / "init", capsys)
                if seed % CHECKED_OF == 0:
                    check(seed, folder / "check", capsys, patch)
                if seed % NIGHT_OF == 0:
                    night(seed, folder / "night", capsys, patch)
        except Exception as err:  # each is noted, and the next table is made
            failures.append(f"{seed}: {type(err).__name__}: {err}")
            if name := os.environ.get("GENERATED_FAILURES"):
                with Path(name).open("a", encoding="utf-8") as file:
                    file.write(f"{failures[-1]!r}\n")
        shutil.rmtree(folder)
    assert not failures, "\n".join(failures)
