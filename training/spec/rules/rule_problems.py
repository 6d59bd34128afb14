"""What a rule finds: a problem whose place in the file is still to be looked up."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from training.spec.reader.yaml import Path


class Violation(NamedTuple):
    path: Path
    code: str
    message: str
    hint: str = ""
    beside: Path | None = None
    """Another place in the file that it is about: its line is named in the message."""


Rule = Callable[..., Iterator[Violation]]
"""A rule: its parameters have the names of the sections that it looks at, and it yields what is wrong with them."""


def violations(rules: Iterable[Rule], sections: Mapping[str, object]) -> list[Violation]:
    """Return what rules find; one that looks at a section that is not there is left out."""
    found: list[Violation] = []
    for rule in rules:
        names = _sections_of(rule)
        if sections.keys() >= names:
            found += rule(**{name: sections[name] for name in names})
    return found


@functools.cache
def _sections_of(rule: Rule) -> frozenset[str]:
    return frozenset(inspect.signature(rule).parameters)
