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


def test_join_of_64_bit_integers_with_floats_is_refused(refuse: Callable[..., tuple[Problem, ...]]) -> None:
    changes = (("on: {tailnum: tailnum}", "on: {distance: seats}"), ("seats: {type: int64}", "seats: {type: double}"))
    (problem,) = [problem for problem in refuse("flight_delay", *changes) if ".on." in problem.field]
    assert (problem.field, problem.code) == ("data.features[1].on.distance", "column.type")
    assert "distance is of type int64, planes.seats of type double" in problem.message
