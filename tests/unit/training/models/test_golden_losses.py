"""The first 20 steps of each model family have the losses that are committed: nothing changed the mathematics of a training unseen.

Six digits are compared, at a relative tolerance of 1e-5: CPUs of other capability round differently, by 2e-7.
If torch or XGBoost has another version than the file names and a test fails, look at the difference: a change of rounding
is below 1e-3 in the first steps, a change of random numbers (initial weights, dropout, sampled rows) is not. Where the release
notes explain it, write the file again by `python -m tests.golden.training_losses` and say so in the commit. With the
same versions a difference is a change of this project's code: write the file again only if the change was meant.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden.training_losses import CASES, FILE, NUM_STEPS, losses_of, versions


@pytest.mark.parametrize("case", list(CASES))
def test_losses_of_the_first_twenty_steps_are_the_committed_ones(case: str, tmp_path: Path) -> None:
    golden = json.loads(FILE.read_text(encoding="utf-8"))
    expected = golden["losses"][case]
    found = losses_of(case, tmp_path)
    assert set(found) == set(expected)
    for name, values in expected.items():
        made_with = f"{case}, {name}: committed with {golden['versions']}, this is {versions()}; see the top of this file"
        assert found[name] == pytest.approx(values, rel=1e-5), made_with
    assert len(expected["steps" if "steps" in expected else "train"]) == NUM_STEPS


def test_every_case_is_committed_and_no_other() -> None:
    assert set(json.loads(FILE.read_text(encoding="utf-8"))["losses"]) == set(CASES)
