"""Rules find their sections by the names of their parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from training.spec.descriptors.families import FAMILIES
from training.spec.reader.loader import SECTIONS
from training.spec.rules.all_rules import RULES
from training.spec.rules.rule_problems import Rule, Violation, violations
from training.spec.rules.unused_keys import EFFECTS

OF_FAMILIES = [rule for family in FAMILIES.usable().values() for rule in family.rules]


@pytest.mark.parametrize("rule", dict.fromkeys([*RULES, *EFFECTS, *OF_FAMILIES]), ids=lambda rule: rule.__name__)
def test_each_parameter_of_a_rule_is_a_section(rule: Rule) -> None:
    assert inspect.signature(rule).parameters.keys() <= SECTIONS.keys()


def test_a_rule_that_looks_at_a_broken_section_is_left_out_and_the_others_speak() -> None:
    def of_one(data: str) -> Iterator[Violation]:
        yield Violation(("data",), "one", data)

    def of_two(train: str, data: str) -> Iterator[Violation]:
        yield Violation(("train",), "two", train + data)

    assert [violation.message for violation in violations((of_two, of_one), {"data": "d"})] == ["d"]
    assert [violation.message for violation in violations((of_two, of_one), {"data": "d", "train": "t", "name": "n"})] == ["td", "d"]
