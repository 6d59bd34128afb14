"""docs/dependencies.md has each requirement, and the places that it names are there."""

import re

from training.runtime.provenance import CHECKOUT

PAGE = (CHECKOUT / "docs" / "dependencies.md").read_text(encoding="utf-8")
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")][2:]


def test_every_requirement_has_a_row_that_says_what_it_does() -> None:
    lines = (CHECKOUT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    required = {re.split(r"[\[=]", line)[0] for line in lines if line and not line.startswith("#")}
    assert {name for row in ROWS for name in row[0].split(", ")} == required
    assert all(len(row) == 4 and all(row) for row in ROWS)


def test_the_places_of_a_requirement_are_there() -> None:
    places = {place for row in ROWS for place in re.findall(r"`([\w./-]+[/.][\w./-]*)`", row[2])}
    assert len(places) > len(ROWS)
    assert {place for place in places if not (CHECKOUT / place).exists()} == set()
