"""A gate that a distribution outside of this repository adds: two files, and an entry point."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.training.code.named_work import run_process
from tests.unit.training.installed_distribution import installed
from tests.unit.training.registry.good_evaluation import ALL, GOOD, WITH_CANARY
from tests.unit.training.stages import evaluate_bench
from tests.unit.training.stages.evaluate_bench import EvaluateBench
from training.errors import DataError, SpecError
from training.evaluation.record import EvaluationRecord
from training.registry.gates.interface import Case, judge_of
from training.registry.gates.judging import Decision, decide
from training.registry.ledger.reasons import Reason
from training.spec.descriptors.families import own_packages
from training.spec.descriptors.gate_descriptor import GateDescriptor
from training.spec.descriptors.gates import GATES
from training.spec.reader.loader import check_file
from training.spec.registry import installed as installed_names
from training.spec.sections.evaluation import BUILT_IN_GATES, Evaluate

GATE = """
from training.spec.descriptors.gate_descriptor import GateDescriptor
from training.spec.scalar_types import Section


class SteadySettings(Section):
    max_share: float = 0.5


DESCRIPTOR = GateDescriptor(settings=SteadySettings, severity="warn")
"""
MODULE = """
def judge(case):
    overlap = case.record.checks.overlap if case.record.checks else None
    share = None if overlap is None else overlap.share
    yield case.at_most(share, case.settings.max_share, "share of known entities")
"""
FILES = {"acme_steady/gate.py": GATE, "acme_steady/module.py": MODULE}
BROKEN = {
    "acme_broken/gate.py": "import no_such_module\n",
    "acme_odd/gate.py": GATE,
    "acme_odd/module.py": "judge = 7\n",
    "acme_silent/gate.py": GATE,
    "acme_silent/module.py": MODULE.replace("yield case.at_most", "return []\n    yield case.at_most"),
    "acme_failing/gate.py": GATE,
    "acme_failing/module.py": MODULE.replace("case.record.checks.overlap", "case.record.no_such_key"),
    "acme_stranger/gate.py": GATE,
    "acme_stranger/module.py": "import dataclasses\n" + MODULE.replace("case.at_most(", "dataclasses.replace(case, gate='x').at_most("),
}
NAMES = ("steady", "broken", "odd", "silent", "failing", "stranger")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    points = {name: f"acme_{name}" for name in NAMES}
    caches: list[Any] = [installed_names]
    folder = tmp_path_factory.mktemp("site")
    with installed(folder, "acme", group="nightshift.gates", points=points, files=FILES | BROKEN, caches=caches):
        yield folder


def judged(gates: dict[str, Any], *, severity: dict[str, str] | None = None, **changes: Any) -> Decision:
    rules = Evaluate.model_validate({**ALL.model_dump(mode="json"), "gates": gates, "severity": severity or {}})
    return decide(EvaluationRecord.of({**GOOD, **changes}), rules, approval="automatic", promote=WITH_CANARY)


def checked(folder: Path, keys: str) -> tuple[Any, ...]:
    """Return the problems of a pipeline with more keys in its section `evaluate`."""
    text = (Path(__file__).parents[5] / "dags/pipelines/flight_delay.yaml").read_text()
    file = folder / "flight_delay.yaml"
    file.write_text(text.replace("  confidence: 0.95\n", f"  confidence: 0.95\n{keys}", 1))
    try:
        check_file(file)
    except SpecError as err:
        return err.problems
    return ()


@pytest.mark.usefixtures("site")
def test_a_gate_of_two_files_judges_by_its_settings_and_severity() -> None:
    assert len(FILES) == 2, "what docs/extending.md says that a gate takes"
    assert "steady" in GATES.names()
    assert "acme_steady" in own_packages()
    passed = judged({"steady": {}})
    assert (passed.outcome, passed.reasons[-1].gate) == ("accepted", "steady")
    assert passed.reasons[-1].words == "share of known entities 0.1, required <= 0.5"
    strict = {"steady": {"max_share": 0.05}}
    outcomes = {severity: judged(strict, severity={"steady": severity}).outcome for severity in ("warn", "approve", "fail")}
    assert outcomes == {"warn": "accepted", "approve": "needs_approval", "fail": "rejected"}
    assert judged(strict).summary.startswith("warning: share of known entities 0.1, required <= 0.05")
    assert [reason.gate for reason in judged({}).reasons].count("steady") == 0, "it judges where a spec names it"


@pytest.mark.usefixtures("site")
def test_what_an_installed_gate_needs_and_was_not_measured_rejects_at_every_severity() -> None:
    checks = {**GOOD["checks"], "overlap": None}
    found = judged({"steady": {}}, checks=checks, severity={"steady": "warn", "overlap": "warn"})
    assert found.outcome == "rejected"
    assert found.reasons[-1].gate == "steady"


@pytest.mark.usefixtures("site")
def test_a_configured_gate_that_gives_no_reason_rejects() -> None:
    found = judged({"silent": {}})
    assert found.outcome == "rejected"
    assert found.reasons[-1].words == "the gate silent is configured and gave no reason, which rejects"


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("name", ["failing", "stranger"])
def test_a_gate_that_fails_or_answers_for_another_decides_nothing(name: str) -> None:
    with pytest.raises(DataError, match=f"the gate {name} ") as caught:
        judged({name: {}})
    assert caught.value.code == "gate.failed"


def judge_oddly(field: str, value: Any, case: Case) -> Iterator[Reason]:
    """Yield a reason with a field of a wrong value, or end the process."""
    if field == "exit":
        raise SystemExit(value)
    wrong: dict[str, Any] = {field: value}
    yield replace(case.reason(passed=False, words="limit exceeded"), **wrong)


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("severity", "error"),
        ("severity", None),
        ("passed", "no"),
        ("passed", math.nan),
        ("passed", np.bool_(False)),
        ("words", None),
        ("numbers", None),
        ("numbers", {"share": math.nan}),
        ("exit", 0),
    ],
)
def test_a_gate_whose_reason_has_a_wrong_value_decides_nothing(field: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    judged({"steady": {}})
    monkeypatch.setattr("acme_steady.module.judge", functools.partial(judge_oddly, field, value))
    with pytest.raises(DataError, match="the gate steady ") as caught:
        judged({"steady": {}})
    assert caught.value.code == "gate.failed"


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(("name", "code"), [("broken", "gate.descriptor"), ("odd", "gate.module"), ("nowhere", "gate.unknown")])
def test_a_gate_that_is_broken_or_not_installed_is_an_error_with_its_code(name: str, code: str) -> None:
    with pytest.raises(SpecError, match=name) as caught:
        judged({name: {}})
    assert caught.value.code == code


@pytest.mark.usefixtures("site")
def test_check_accepts_a_gate_with_sound_settings_and_its_severity(tmp_path: Path) -> None:
    assert checked(tmp_path, "  gates: {steady: {max_share: 0.2}}\n  severity: {steady: approve}\n") == ()


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("keys", "field", "code"),
    [
        ("  gates: {steady: {max_shar: 0.2}}\n", "evaluate.gates.steady.max_shar", "spec.unknown_key"),
        ("  gates: {steady: {max_share: much}}\n", "evaluate.gates.steady.max_share", "field.type"),
        ("  gates: {stedy: {}}\n", "evaluate.gates.stedy", "gate.unknown"),
        ("  gates: {minimum: {}}\n", "evaluate.gates.minimum", "gate.unknown"),
        ("  severity: {steady: warn}\n", "evaluate.severity.steady", "gate.off"),
        ("  severity: {minimun: warn}\n", "evaluate.severity.minimun", "gate.unknown"),
        ("  severity: {finite: warn}\n", "evaluate.severity.finite", "gate.unknown"),
    ],
)
def test_check_reports_wrong_gates_with_field_code_and_line(tmp_path: Path, keys: str, field: str, code: str) -> None:
    (problem,) = checked(tmp_path, keys)
    assert (problem.field, problem.code) == (field, code)
    assert problem.line is not None
    assert problem.hint


@pytest.mark.usefixtures("site")
def test_check_of_a_gate_whose_descriptor_is_broken_reports_its_code(tmp_path: Path) -> None:
    (problem,) = checked(tmp_path, "  gates: {broken: {}}\n")
    assert problem.code == "gate.descriptor"
    assert "no_such_module" in problem.message


@pytest.mark.parametrize(("name", "gate"), BUILT_IN_GATES.items())
def test_each_gate_of_this_repository_has_an_implementation(name: str, gate: GateDescriptor) -> None:
    assert GATES.get(name) is gate
    assert callable(judge_of(name, gate))
    assert not gate.inherits or gate.inherits in BUILT_IN_GATES


@pytest.mark.slow
def test_an_evaluation_with_it_runs_in_a_process_that_covers_its_code(site: Path, tmp_path: Path) -> None:
    environment = {
        "PYTHONPATH": str(site),
        "NIGHTSHIFT_HOME": str(tmp_path),
        "NIGHTSHIFT_DATABASE": f"sqlite:///{tmp_path}/nightshift.db",
        "MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
    bench = EvaluateBench(tmp_path / "orders", "binary")
    trained = bench.train()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate_bench, "run", lambda work, uri, **_more: run_process(work, uri, environment, tmp_path))
        result, _ = bench.evaluate(trained, {"primary: auc}": "primary: auc, gates: {steady: {max_share: 0.01}}}"}, work="steady")
    page = bench.store.reports.get(result.reports["evaluation"])
    assert b"<strong>steady</strong>: share of known entities" in page
