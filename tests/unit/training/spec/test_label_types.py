"""Which labels a task can be learned from, and which class of a text is the positive one."""

from collections.abc import Callable

import pytest

from training.errors import Problem
from training.spec import PipelineSpec

Refuse = Callable[..., tuple[Problem, ...]]
Accept = Callable[..., PipelineSpec]

F = "flight_delay"
TEXT = ("air_time: {type: int64, known: after}", "air_time: {type: string, known: after}")
LABEL = 'label: {column: arr_delay, rule: "> 15", known_at: landed_at}'
MULTICLASS = ("task: binary\n  primary: auc\n  minimum: {auc: 0.55}", "task: multiclass\n  primary: log_loss")


def label(more: str) -> tuple[str, str]:
    return LABEL, f"label: {{column: air_time{more}, known_at: landed_at}}"


def test_binary_label_of_type_string_needs_its_positive_class(refuse: Refuse, accept: Accept) -> None:
    (problem,) = refuse(F, TEXT, label(""))
    assert (problem.code, problem.field) == ("field.missing", "data.label.positive")
    assert 'positive: "yes"' in problem.hint
    assert accept(F, TEXT, label(', positive: "yes"')).data.label.positive == "yes"
    assert accept(F, TEXT, label(", positive: no")).data.label.positive == "no"


def test_several_classes_have_no_positive_one(refuse: Refuse, accept: Accept) -> None:
    assert accept(F, TEXT, label(""), MULTICLASS).data.label.positive is None
    (problem,) = refuse(F, TEXT, label(", positive: yes"), MULTICLASS)
    assert problem.message == "the task multiclass has no positive class"


def test_boolean_label_is_accepted_without_a_positive_class(refuse: Refuse, accept: Accept) -> None:
    boolean = (TEXT[0], TEXT[1].replace("string", "boolean"))
    accept(F, boolean, label(""))
    (problem,) = refuse(F, boolean, label(", positive: yes"))
    assert (problem.code, problem.field) == ("field.conflict", "data.label.positive")


@pytest.mark.parametrize("kind", ["date", "timestamp"])
def test_label_of_a_time_is_refused(refuse: Refuse, kind: str) -> None:
    (problem,) = refuse(F, (TEXT[0], TEXT[1].replace("string", kind)), label(""))
    assert (problem.code, problem.field) == ("column.type", "data.label.column")
