"""`data.split`: keys that its kind lacks, or does not read, and columns that cannot divide rows."""

from collections.abc import Callable

import pytest

from training.errors import Problem
from training.spec import PipelineSpec
from training.spec.covered_keys import spec_part

Refuse = Callable[..., tuple[Problem, ...]]
Accept = Callable[..., PipelineSpec]

F, R = "flight_delay", "search_ranking"
SHARES = "validation: 0.1, test: 0.2"
VALUES = "values: {train: [EWR], validation: [JFK], test: [LGA]}"
WRONG = [
    ("by: random, validation: 7d, test: 0.1", "validation", "field.conflict", "has a share of the rows, got the duration 7d"),
    ("by: random, test: 0.1", "validation", "field.missing", "the key validation is missing: a split by random needs it"),
    ("by: random, validation: 0.5, test: 0.5", "", "split.shares", "leave no rows to train on"),
    (f"by: random, {SHARES}, gap: 1d", "gap", "field.conflict", "a split by random has no gap"),
    (f"by: random, {SHARES}, column: origin", "column", "field.conflict", "a split by random has no column"),
    ("by: time, validation: 7d, test: 0.1", "test", "field.conflict", "got the share 0.1"),
    ("by: time, validation: 7d, test: 7d, seed: 3", "seed", "field.conflict", "a split by time has no seed"),
    ("by: time, validation: 7d, test: 1.5", "test", "duration.invalid", "a duration or a share between 0 and 1, got 1.5"),
    (f"by: group, {SHARES}", "column", "field.missing", "a split by group needs it, or data.group"),
    (f"by: group, {SHARES}, column: orign", "column", "column.unknown", "orign is not a column of table flights"),
    (f"by: group, {SHARES}, column: dep_delay", "column", "column.type", "is of type double"),
    (f"by: column, column: origin, {SHARES}", "validation", "field.conflict", "a split by column has no validation"),
    ("by: column", "column", "field.missing", "its values name the splits"),
    ("by: column, column: month", "values", "field.missing", "month is of type"),
    ("by: column, column: month, values: {train: [1], validation: ['2'], test: [3]}", "values.validation[0]", "column.type", "'2'"),
    ("by: column, column: origin, values: {train: [a], test: [b]}", "values", "field.missing", "the key validation is missing"),
    (
        "by: column, column: origin, values: {train: [a], validation: [b], test: [a]}",
        "values.test[0]",
        "field.conflict",
        "'a' is a value of train too",
    ),
    ("by: column, column: dep_delay, values: {train: [1], validation: [2], test: [3]}", "column", "column.type", "name splits"),
    ("by: column, column: scheduled_departure", "column", "column.type", "name splits"),
]


def split(text: str) -> tuple[str, str]:
    return ("by: time, validation: 7d, test: 7d", text)


@pytest.mark.parametrize(("text", "key", "code", "message"), WRONG)
def test_key_that_the_kind_lacks_or_does_not_read_is_refused(refuse: Refuse, text: str, key: str, code: str, message: str) -> None:
    problems = refuse(F, split(text), ("dep_delay: {type: int64", "dep_delay: {type: double"))
    found = {(problem.field, problem.code): problem.message for problem in problems}
    assert message in found[f"data.split.{key}".rstrip("."), code]


def test_gaps_that_leave_nothing_to_train_on_are_refused(refuse: Refuse) -> None:
    (problem,) = refuse(F, split("by: time, validation: 7d, test: 7d, gap: 900d"))
    assert problem.code == "split.window"
    assert "with a gap of 900d before each" in problem.message


def test_a_stratified_split_does_not_divide_groups(refuse: Refuse) -> None:
    problems = refuse(R, ("by: time, validation: 1d, test: 2d", f"by: stratified, {SHARES}"))
    assert [(problem.field, problem.code) for problem in problems if problem.field == "data.split.by"] == [
        ("data.split.by", "field.conflict")
    ]


@pytest.mark.parametrize(
    "text",
    [f"by: random, {SHARES}", f"by: group, {SHARES}, column: origin", f"by: stratified, {SHARES}", f"by: column, column: origin, {VALUES}"],
)
def test_every_kind_is_accepted_and_is_part_of_what_prepare_depends_on(accept: Accept, text: str) -> None:
    spec = accept(F, split(text))
    assert spec_part(spec, "prepare") != spec_part(accept(F), "prepare")
