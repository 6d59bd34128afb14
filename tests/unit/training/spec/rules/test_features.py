"""Rules of `prepare.features` that need another section."""

from __future__ import annotations

from collections.abc import Callable

from training.errors import Problem

ENCODED = ("distance: {transform: number}", "distance: {transform: target_encode}")


def test_mean_of_a_label_of_several_classes_is_refused(refuse: Callable[..., tuple[Problem, ...]]) -> None:
    problems = refuse("flight_delay", ENCODED, ("task: binary", "task: multiclass"))
    (problem,) = [problem for problem in problems if problem.field.startswith("prepare")]
    assert (problem.field, problem.code) == ("prepare.features.distance.transform", "field.conflict")
    assert "the task multiclass has none" in problem.message
