"""`data.weight` and `train.class_weight`: columns and classes that cannot be weighed, and trainings that would not count them."""

from collections.abc import Callable

import pytest

from training.errors import Problem
from training.spec import PipelineSpec
from training.spec.covered_keys import spec_part

Refuse = Callable[..., tuple[Problem, ...]]
Accept = Callable[..., PipelineSpec]

F, R = "flight_delay", "search_ranking"
SPLIT = "  split: {by: time"
MODEL = "  model: boosted_trees"


def weight(text: str) -> tuple[str, str]:
    return (SPLIT, f"  weight: {text}\n{SPLIT}")


def class_weight(text: str) -> tuple[str, str]:
    return (MODEL, f"{MODEL}\n  class_weight: {text}")


@pytest.mark.parametrize(
    ("change", "field", "code", "words"),
    [
        (weight("distanc"), "data.weight", "column.unknown", "distanc is not a column of table flights"),
        (weight("origin"), "data.weight", "column.type", "is of type string"),
        (class_weight("even"), "train.class_weight", "field.choice", "balanced or a mapping"),
        (class_weight("{}"), "train.class_weight", "field.choice", "balanced or a mapping"),
        (class_weight("{'1': -1}"), "train.class_weight", "field.range", "from 0 to 1e+06, got -1"),
        (class_weight("{'1': .nan}"), "train.class_weight", "field.range", "from 0 to 1e+06"),
        (class_weight("{'0': 0, '1': 0}"), "train.class_weight", "field.range", "all weights are 0"),
        (class_weight("{late: 2}"), "train.class_weight.late", "class_weight.unknown", "late"),
        (class_weight("{'2': 2}"), "train.class_weight.2", "class_weight.unknown", "'0' and '1'"),
    ],
)
def test_weights_that_cannot_be_are_refused(refuse: Refuse, change: tuple[str, str], field: str, code: str, words: str) -> None:
    (problem,) = refuse(F, change)
    assert (problem.field, problem.code) == (field, code)
    assert words in f"{problem.message} {problem.hint}"


def test_family_that_counts_no_weights_refuses_them(refuse: Refuse) -> None:
    problems = refuse(R, ("  model: ranker", "  class_weight: balanced\n  model: ranker"))
    assert [(problem.field, problem.code) for problem in problems] == [("train.class_weight", "field.conflict")]


def test_weights_are_in_the_work_ids_of_what_they_change(accept: Accept) -> None:
    plain, weighed, balanced = accept(F), accept(F, weight("distance")), accept(F, class_weight("balanced"))
    assert spec_part(weighed, "prepare") != spec_part(plain, "prepare")
    assert spec_part(balanced, "train") != spec_part(plain, "train")
    assert spec_part(balanced, "prepare") == spec_part(plain, "prepare")
