"""`nightshift show` and `rollback` without a server, and `python -m training.registry check`: what a person reads and is asked."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pytest

from nightshift.client.show_command import history_lines
from nightshift.console import run
from nightshift.queries.models import summary_of
from tests.unit.training.registry import scenes
from tests.unit.training.registry.scenes import rows, seats
from training.engine.tracking.mlflow_delivery import QUICK
from training.errors import ExitCode, UnavailableError
from training.registry.__main__ import main as check
from training.registry.ledger.ledger import Entry, Ledger
from training.registry.ledger.reasons import Reason
from training.registry.ledger.version_weights import MLflowRegistration
from training.registry.mlflow import mirror as mirror_module
from training.registry.mlflow import repair
from training.registry.mlflow.mirror import mirror
from training.store import Store

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """The installation's ledger."""
    monkeypatch.setenv("NIGHTSHIFT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path}/ledger.db")
    return Ledger()


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Models that MLflow would have been told of."""
    followed: list[str] = []
    monkeypatch.setattr(repair, "check_answers", lambda: None)
    monkeypatch.setattr(mirror_module, "mirror", lambda ledger, store, model: followed.append(model))
    return followed


def decide_on(ledger: Ledger, number: int, outcome: str = "accepted", **facts: Any) -> Entry:
    """Record a decision of a pipeline, as every one is."""
    return scenes.decide_on(ledger, number, outcome, **{**facts, "evidence": {"pipeline": "p", **facts.get("evidence", {})}})


def answering(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """Sit at the terminal, and type `answer`."""
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)


def test_without_decisions_all_that_is_shown_is_that(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show"]) == 0
    assert capsys.readouterr().out == "nothing was decided yet\n"
    assert run(["show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {}


def test_showing_needs_no_mlflow(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/ledger.db"
    decide_on(Ledger(database), 1)
    code = "import sys; sys.modules['mlflow'] = None; from nightshift.console import run; sys.exit(run(['show', 'm']))"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}",
        "NIGHTSHIFT_DATABASE": database,
        "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
    }
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "champion: version 1 (1.1.0)" in done.stdout


def test_each_model_has_its_champion_its_canary_and_who_waits(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    decide_on(ledger, 1, model="a")
    decide_on(ledger, 2, model="a", canary=True)
    decide_on(ledger, 3, "needs_approval", model="a")
    decide_on(ledger, 4, "rejected", model="b")
    assert run(["show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    since = ledger.standing("a").champion
    assert since is not None
    assert lines[0] == "a"
    assert lines[1] == f"  champion: version 1 (1.1.0), as of 2013-01-02T00:00:00+00:00, weights w1, since {since.since}"
    assert lines[2].startswith("  canary:   version 2 (1.2.0)")
    assert lines[3] == "  waits for an approval: version 1.3.0"
    assert lines[4:] == ["b", "  champion: none", "  canary:   none"]


def test_a_history_says_when_which_version_what_moved_who_and_why(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    first = decide_on(ledger, 1)
    decide_on(ledger, 2, "needs_approval")
    assert run(["show", "m"]) == 0
    lines = capsys.readouterr().out.splitlines()[-5:]
    assert lines == [
        "  decided (UTC)     version    outcome         what moved  by",
        f"  {first.decided_at:%Y-%m-%d %H:%M}  1 (1.1.0)  accepted        promoted    night/1",
        "    pass improvement: better by 0.01",
        f"  {first.decided_at:%Y-%m-%d %H:%M}  2 (1.2.0)  needs_approval  recorded    night/2",
        "    FAIL fairness: gap 0.2 is above 0.1",
    ]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_long_words_are_wrapped_to_the_terminal_and_none_is_lost(ledger: Ledger, width: int) -> None:
    words = " ".join(f"word{number}" for number in range(200))
    kept = replace(decide_on(ledger, 1), reasons=[Reason(gate="slices", passed=False, words=words)], decided_by="x" * 100)
    lines = history_lines([summary_of(kept)], width)
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines[2:]).split()) == f"FAIL slices: {words}"


@pytest.mark.parametrize(("severity", "word"), [("warn", "warn"), ("approve", "ask"), ("fail", "FAIL")])
def test_gate_that_is_not_passed_is_shown_with_what_its_severity_does(ledger: Ledger, severity: str, word: str) -> None:
    kept = replace(decide_on(ledger, 1), reasons=[Reason(gate="g", passed=False, words="w", severity=severity)])
    assert history_lines([summary_of(kept)])[2:] == [f"    {word} g: w"]


def test_output_that_goes_elsewhere_keeps_a_reason_on_one_line_and_no_control_characters(ledger: Ledger) -> None:
    words = "first\nsecond \x1b[31mred " + "long " * 100
    kept = replace(decide_on(ledger, 1), reasons=[Reason(gate="g", passed=True, words=words)])
    (line,) = history_lines([summary_of(kept)])[2:]
    assert line.startswith("    pass g: first second \\u001b[31mred long")
    assert "\x1b" not in line


def test_json_has_all_evidence_uncut(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    decide_on(ledger, 1, evidence={"metrics": {"auc": 0.75}, "note": "n" * 5000})
    assert run(["show", "m", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["m"]
    assert found["standing"]["champion"]["version"] == "1"
    (decision,) = found["decisions"]
    assert decision["evidence"]["note"] == "n" * 5000
    assert (decision["outcome"], decision["revision"], decision["evidence"]["metrics"]) == ("accepted", 1, {"auc": 0.75})


@pytest.mark.parametrize("arguments", [["show", "nosuch"], ["show", "nosuch", "--json"], ["check", "nosuch"]])
def test_an_unknown_model_is_refused_with_the_known_ones(ledger: Ledger, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    decide_on(ledger, 1)
    assert (check if arguments[0] == "check" else run)(arguments) == ExitCode.DENIED
    assert capsys.readouterr().err == "error: [model.unknown] nothing was decided about 'nosuch' (models: m)\n"


def test_a_database_that_does_not_answer_is_an_error_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path}")
    assert run(["show"]) == ExitCode.UNAVAILABLE
    assert capsys.readouterr().err.startswith("error: [database.unavailable]")


@pytest.mark.parametrize("answer", ["n\n", "\n", "", "maybe\n"])
def test_a_person_who_does_not_say_yes_changes_nothing(
    ledger: Ledger, untold: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str
) -> None:
    decide_on(ledger, 1)
    decide_on(ledger, 2)
    answering(monkeypatch, answer)
    assert run(["rollback", "m", "--reason", "late"]) == 0
    out = capsys.readouterr().out
    assert "m: champion version 2 (1.2.0)" in out
    assert "-> version 1 (1.1.0)" in out
    assert out.endswith("nothing was changed\n")
    assert (seats(ledger), untold) == (("2", None), [])


def test_a_person_who_says_yes_gets_the_version_that_was_named(
    ledger: Ledger, untold: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2, 3):
        decide_on(ledger, number)
    answering(monkeypatch, "yes\n")
    assert run(["rollback", "m", "--to", "1.1.0", "--reason", "late", "--by", "ada"]) == 0
    assert capsys.readouterr().out.endswith("m: champion is version 1\n")
    assert (seats(ledger), untold) == (("1", None), ["m"])
    kept = ledger.history("m")[-1]
    assert (kept.decided_by, kept.evidence["reason"]) == ("ada", "late")


def test_a_rollback_that_registers_a_lost_version_again_says_the_number_that_it_has_now(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decide_on(ledger, 1)
    decide_on(ledger, 2)
    again = MLflowRegistration(number="7", logged_model="m-7", artifact_digest="f" * 64)
    monkeypatch.setattr(repair, "check_answers", lambda: None)
    monkeypatch.setattr(mirror_module, "mirror", lambda ledger, _store, model: ledger.note_registration(model, "w1", again))
    assert run(["rollback", "m", "--reason", "late", "--yes"]) == 0
    assert capsys.readouterr().out == "m: champion is version 7\n"


def test_what_another_writer_moved_while_the_question_stood_is_not_rolled_back(
    ledger: Ledger, untold: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decide_on(ledger, 1)
    decide_on(ledger, 2)

    def slow_yes() -> str:
        decide_on(ledger, 3)
        return "y\n"

    answering(monkeypatch, "")
    monkeypatch.setattr(sys.stdin, "readline", slow_yes)
    assert run(["rollback", "m", "--reason", "late"]) == ExitCode.DENIED
    assert "promotion.conflict" in capsys.readouterr().err
    assert (seats(ledger), untold) == (("3", None), [])


def test_rollback_without_a_terminal_needs_yes(
    ledger: Ledger, untold: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decide_on(ledger, 1)
    decide_on(ledger, 2)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert run(["rollback", "m", "--reason", "late"]) == ExitCode.DENIED
    assert "add --yes" in capsys.readouterr().err
    assert run(["rollback", "m", "--reason", "late", "--yes", "--wait"]) == 0
    assert (seats(ledger), untold) == (("1", None), ["m"])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--to", "9"], "version.unknown"),
        (["--to", "1"], "rollback.same"),
        ([], "rollback.nothing"),
    ],
)
@pytest.mark.parametrize("is_asked", [True, False])
def test_a_rollback_that_cannot_be_is_refused_before_anybody_is_asked(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], code: str, is_asked: bool
) -> None:
    decide_on(ledger, 1)
    answering(monkeypatch, "y\n")
    assert run(["rollback", "m", "--reason", "late", *arguments, *([] if is_asked else ["--yes"])]) == ExitCode.DENIED
    captured = capsys.readouterr()
    assert f"error: [{code}]" in captured.err
    assert "Go on?" not in captured.out
    assert rows(ledger) == [("1", "accepted", "promoted")]


def test_rollback_without_mlflow_reports_that_it_is_recorded_and_how_to_continue(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decide_on(ledger, 1)
    decide_on(ledger, 2)

    def silent(*_: Any) -> None:
        raise UnavailableError("mlflow.unavailable", "no answer")

    monkeypatch.setattr(repair, "check_answers", lambda: None)
    monkeypatch.setattr(mirror_module, "mirror", silent)
    assert run(["rollback", "m", "--reason", "late", "--yes"]) == ExitCode.UNAVAILABLE
    assert "the rollback is recorded; to update MLflow: python -m training.registry check m --repair" in capsys.readouterr().err
    assert seats(ledger) == ("1", None)


def test_a_rollback_to_a_version_that_mlflow_cannot_serve_is_recorded_and_says_so(
    ledger: Ledger, registry: mlflow.MlflowClient, capsys: pytest.CaptureFixture[str]
) -> None:
    decide_on(ledger, 1, model="a_lost_one")
    decide_on(ledger, 2, model="a_lost_one")
    assert run(["rollback", "a_lost_one", "--reason", "late", "--yes"]) == ExitCode.DENIED
    captured = capsys.readouterr()
    words = "the rollback is recorded, but the champion of a_lost_one, version 1.1.0 (weights w1), is not in MLflow"
    assert captured.err.startswith(f"error: [registry.version_missing] {words}")
    assert captured.out == ""
    assert seats(ledger, "a_lost_one") == ("1", None)


@pytest.mark.slow
def test_a_check_lists_what_differs_and_its_repair_sets_it_right(
    ledger: Ledger, store: Store, registry: mlflow.MlflowClient, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    decide_on(ledger, 1, model=model)
    mirror(ledger, store, model)
    assert check(["check"]) == 0
    assert capsys.readouterr().out == "MLflow and the ledger agree\n"
    registry.set_registered_model_alias(model, "champion", "3")
    assert check(["check", model]) == 1
    line = f"{model}: alias champion is version 3 (weights w3), the ledger says version 1.1.0 (weights w1)"
    assert capsys.readouterr().out == f"{line}\n1 difference; --repair sets MLflow right\n"
    assert check(["check", "--repair"]) == 0
    assert "1 difference, set right" in capsys.readouterr().out
    assert check(["check"]) == 0


def test_a_version_that_mlflow_has_lost_keeps_no_other_model_from_being_repaired(
    ledger: Ledger, registry: mlflow.MlflowClient, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    decide_on(ledger, 1, model="a_lost_one")
    decide_on(ledger, 2, model=model)
    assert check(["check", "--repair"]) == 1
    captured = capsys.readouterr()
    assert "error: a_lost_one: alias champion is not there, the ledger says version 1.1.0 (weights w1)" in captured.err
    assert captured.out.endswith("set right but for 1\n")
    assert str(registry.get_registered_model(model).aliases["champion"]) == "2"


def test_help_names_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for main, words, usage in ((run, ["show"], "show MODEL"), (run, ["rollback"], "rollback MODEL"), (check, [], "check [MODEL]")):
        with pytest.raises(SystemExit, match="0"):
            main([*words, "--help"])
        out = capsys.readouterr().out
        assert all(word in out for word in (usage, "Exit codes", "74", "77"))


@pytest.mark.parametrize(("reason", "words"), [(" ", "is empty"), ("fine\x1b[31m", "U+001B at position 5")])
def test_a_rollback_without_words_that_people_can_read_is_refused(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], reason: str, words: str
) -> None:
    decide_on(ledger, 1)
    decide_on(ledger, 2)
    assert run(["rollback", "m", "--reason", reason, "--yes"]) == ExitCode.DENIED
    error = capsys.readouterr().err
    assert error.startswith("error: [rollback.reason]")
    assert words in error
    assert seats(ledger) == ("2", None)


def test_a_rollback_while_mlflow_is_away_is_recorded_and_says_so_within_seconds(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    patience: list[str | None] = []
    real = mlflow.MlflowClient.search_registered_models
    monkeypatch.setattr(
        mlflow.MlflowClient,
        "search_registered_models",
        lambda client, **options: patience.append(os.environ.get("MLFLOW_HTTP_REQUEST_MAX_RETRIES")) or real(client, **options),
    )
    decide_on(ledger, 1)
    decide_on(ledger, 2)
    assert run(["rollback", "m", "--reason", "late", "--yes"]) == ExitCode.UNAVAILABLE
    assert "the rollback is recorded; to update MLflow: python -m training.registry check m --repair" in capsys.readouterr().err
    assert check(["check"]) == ExitCode.UNAVAILABLE
    # Of its own it would try for four minutes.
    assert patience == [QUICK["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]] * 2
    assert seats(ledger) == ("1", None)
