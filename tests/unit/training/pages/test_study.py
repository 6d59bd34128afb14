"""A study's page: every trial, and pictures that a page can hold beside one another."""

from __future__ import annotations

import re
from dataclasses import replace

from training.pages.study import render_study
from training.spec.sections.tuning import Tune
from training.tuning.records import TrialRecord

TUNE = Tune.model_validate({"trials": 3, "space": {"learning_rate": {"float": [0.001, 0.1], "log": True}, "hidden": {"choices": [8, 16]}}})
TRIALS = [
    TrialRecord(
        slot=slot, state=state, value=value, settings={"learning_rate": 0.01, "hidden": 8}, epochs=2, steps=8, losses=((1, 2.0), (2, 1.0))
    )
    for slot, state, value in ((0, "complete", 0.5), (1, "complete", 0.3), (2, "pruned", None))
]


def rendered() -> str:
    return render_study(TUNE, TRIALS, TRIALS[1], {"learning_rate": 0.7, "hidden": 0.3}, pipeline="orders", as_of="2026-02-01").decode()


def test_each_picture_has_words_for_a_screen_reader() -> None:
    page = rendered()
    assert re.findall(r'aria-label="([^:"]+)', page) == [
        "Course of the study",
        "Lowest validation loss of each trial so far",
        "By learning_rate",
        "By hidden",
    ]


def test_a_choice_is_a_place_on_the_axis_and_a_name_is_text() -> None:
    space = {"learning_rate": {"float": [0.001, 0.1], "log": True}, "hidden": {"choices": ["<i>8", 16]}}
    trials = [
        replace(trial, settings={"learning_rate": 0.01, "hidden": hidden}) for trial, hidden in zip(TRIALS, ("<i>8", 16, 16), strict=True)
    ]
    tune = Tune.model_validate({"trials": 3, "space": space})
    page = render_study(tune, trials, trials[1], {}, pipeline="orders", as_of="2026-02-01").decode()
    chart = page[page.index('aria-label="By hidden') :].partition("</svg>")[0]
    assert re.findall(r"<text[^>]*>([^<]*)</text>", chart)[:2] == ["&lt;i&gt;8", "16"]
    assert len(re.findall("<circle ", chart)) == 2, "only complete trials have an objective"


def test_the_same_trials_give_the_same_bytes_and_the_best_one_is_named() -> None:
    assert rendered() == rendered()
    assert "trial 1 is the best of 3" in rendered()
