"""The section `timeout`: its limits are those of the documentation, and each is what the stages' process reads."""

import re
from collections.abc import Callable
from typing import get_args

import yaml  # type: ignore[import-untyped]

from training.errors import Problem
from training.process.liveness import Kind
from training.runtime.provenance import CHECKOUT
from training.runtime.runner import _limits
from training.spec import PipelineSpec
from training.spec.sections.timeout import Timeout


def test_defaults_are_those_of_the_documentation() -> None:
    text = (CHECKOUT / "docs/timeouts.md").read_text(encoding="utf-8")
    found = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert found is not None
    documented = yaml.safe_load(found[1])["timeout"]
    assert Timeout.model_validate(documented) == Timeout()
    assert set(documented) == set(Timeout.model_fields)


def test_every_kind_of_phase_but_waiting_for_other_ranks_has_its_limit(accept: Callable[..., PipelineSpec]) -> None:
    assert set(_limits(Timeout())) == set(get_args(Kind)) - {"peers"}
    spec = accept("search_ranking", ("timezone: UTC", "timezone: UTC\ntimeout: {step: 90s, part: 2h}"))
    limits = _limits(spec.timeout)
    assert (limits["step"], limits["part"], limits["validation"]) == (90.0, 7200.0, 600.0)


def test_unknown_phase_and_a_limit_of_nothing_are_refused_with_their_lines(refuse: Callable[..., tuple[Problem, ...]]) -> None:
    problems = refuse("search_ranking", ("timezone: UTC", "timezone: UTC\ntimeout: {steps: 1h, part: 0s}"))
    assert {problem.field for problem in problems} == {"timeout.steps", "timeout.part"}
    assert all(problem.line for problem in problems)
    assert any("step" in problem.hint for problem in problems if problem.field == "timeout.steps")
