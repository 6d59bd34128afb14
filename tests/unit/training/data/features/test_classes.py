"""Classes with names: numbered by the training rows, and scores of models that know other classes brought into their order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.scratch_frames import frame_of
from training.data.dataset.scratch_arrays import ScratchArrays
from training.data.features.classes import Classes, align_scores, check_class_numbers, number_classes
from training.errors import DataError

LABELS = ["UA", "AA", "UA", "B6", "AA", "UA", "DL", "AA", "WN", "EV"]
ROWS = {"train": np.arange(6), "validation": np.arange(6, 8), "test": np.arange(8, 10)}


def numbered(labels: list[str], positive: str | None = None) -> tuple[list[float], Classes]:
    frame = frame_of({"label": pa.chunked_array([labels[:3], labels[3:]])})
    numbers, classes = number_classes(frame, ROWS, ScratchArrays(Path("none")), column="carrier", positive=positive)
    assert numbers.dtype == np.float64
    return numbers.tolist(), classes


def test_names_of_the_training_rows_come_first_and_later_ones_after_them() -> None:
    numbers, classes = numbered(LABELS)
    assert classes.names == ("AA", "B6", "UA", "DL", "EV", "WN")
    assert numbers == [2, 0, 2, 1, 0, 2, 3, 0, 5, 4]
    assert classes.unseen == {"validation": ("DL",), "test": ("EV", "WN")}
    assert classes.learned == ("AA", "B6", "UA", "DL")
    assert Classes.of(classes.meta()) == classes
    assert Classes.of({"rows": {}}) is None


@pytest.mark.parametrize(("positive", "names"), [("yes", ("no", "yes")), ("no", ("yes", "no"))])
def test_positive_class_of_a_binary_label_is_number_one(positive: str, names: tuple[str, str]) -> None:
    numbers, classes = numbered(["yes", "no"] * 5, positive)
    assert (classes.names, classes.unseen, classes.learned) == (names, {}, names)
    assert numbers == [float(name == positive) for name in ["yes", "no"] * 5]


@pytest.mark.parametrize(
    ("labels", "positive", "message"),
    [
        (["yes", "no"] * 4 + ["maybe", "no"], "yes", "has 3 classes, a binary label has two: 'maybe', 'no', 'yes'"),
        (["yes", "no"] * 5, "Yes", "no row has the positive class 'Yes'; found: 'no', 'yes'"),
        ([str(number) for number in range(10)], None, "has more than 9 different values"),
    ],
)
def test_labels_that_are_not_the_tasks_classes_are_refused(
    monkeypatch: pytest.MonkeyPatch, labels: list[str], positive: str | None, message: str
) -> None:
    monkeypatch.setattr("training.data.features.classes.MAX_CLASSES", 9)
    with pytest.raises(DataError, match=message) as caught:
        numbered(labels, positive)
    assert caught.value.code == "label.classes"


def test_scores_of_a_model_with_other_classes_are_brought_into_the_datasets_order() -> None:
    classes = Classes(names=("AA", "DL", "UA"), unseen={})
    scores = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
    assert align_scores(scores, ("AA", "B6", "UA"), classes).tolist() == [[0.5, 0.0, 0.2, 0.3], [0.1, 0.0, 0.7, 0.2]]
    assert align_scores(scores, ("AA", "DL", "UA"), classes).tolist() == scores.tolist()


def test_scores_of_a_model_with_the_other_positive_class_are_turned_around() -> None:
    classes = Classes(names=("no", "yes"), unseen={})
    scores = np.array([0.25, 0.75])
    assert align_scores(scores, ("yes", "no"), classes).tolist() == [0.75, 0.25]
    assert align_scores(scores, ("no", "yes"), classes).tolist() == [0.25, 0.75]


def test_scores_of_a_binary_model_without_names_stay_as_they_are() -> None:
    scores = np.array([0.25, 0.75])
    assert align_scores(scores, (), Classes(names=("no", "yes"), unseen={})) is scores
    assert align_scores(scores, ("no", "yes"), None) is scores


@pytest.mark.parametrize(("known", "names"), [((), ("large", "medium", "small")), (("large", "medium", "small"), None)])
def test_classes_with_numbers_are_never_compared_with_classes_with_names(known: tuple[str, ...], names: tuple[str, ...] | None) -> None:
    classes = None if names is None else Classes(names=names, unseen={})
    with pytest.raises(DataError, match=r"trained on classes with .* the dataset has") as caught:
        align_scores(np.array([[0.9, 0.1, 0.0]]), known, classes)
    assert caught.value.code == "label.classes"


@pytest.mark.parametrize("value", [-1.0, 1.5, 1000.0, 3e9, float("nan")])
def test_number_that_is_no_class_is_refused(value: float) -> None:
    check_class_numbers(np.array([0, 1, 999], dtype=np.float32))
    with pytest.raises(DataError, match="are not a class") as caught:
        check_class_numbers(np.array([0, 1, value]))
    assert caught.value.code == "label.not_a_class"
    assert f"{value:.12g}" in caught.value.message


@pytest.mark.parametrize("value", [-1.0, 0.5, 2.0, float("nan")])
def test_number_that_is_no_class_of_two_is_refused(value: float) -> None:
    check_class_numbers(np.array([0, 1], dtype=np.float32), is_binary=True)
    with pytest.raises(DataError, match=rf"1 of 3 labels are not a class, the first is {value:g}") as caught:
        check_class_numbers(np.array([0, 1, value]), is_binary=True)
    assert caught.value.code == "label.not_a_class"
    assert caught.value.hint is not None
    assert "classes are 0 and 1" in caught.value.hint
