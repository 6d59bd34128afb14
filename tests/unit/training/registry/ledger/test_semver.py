"""What a new version means for those who use it. (Eight callers at once: see the races.)"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from training.database import connect
from training.database.schema import ModelVersionRow
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.semver import Recipe, semantic_version

FIRST = Recipe(
    input_schema={"carrier": "string", "distance": "int"},
    output_schema={"label": "late", "rule": None, "task": "binary"},
    recipe_digest="r1",
    framework="boosted_trees, xgboost 3.2.0",
    snapshot_digest="s1",
    code_version="c1",
)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"snapshot_digest": "s2"}, "1.0.1"),
        ({"snapshot_digest": "s2", "framework": "boosted_trees, xgboost 3.2.1"}, "1.0.1"),
        ({"recipe_digest": "r2"}, "1.1.0"),
        ({"input_schema": {"carrier": "string"}}, "2.0.0"),
        ({"input_schema": {"carrier": "string", "distance": "float"}}, "2.0.0"),
        ({"output_schema": {"label": "very_late", "rule": None, "task": "binary"}, "recipe_digest": "r2"}, "2.0.0"),
        # The order of columns is nobody's promise.
        ({"input_schema": {"distance": "int", "carrier": "string"}}, "1.0.1"),
    ],
)
def test_a_version_says_what_changed_since_the_one_before(empty_database: str, change: dict[str, Any], expected: str) -> None:
    assert semantic_version("m", "w1", FIRST, empty_database) == "1.0.0"
    assert semantic_version("m", "w2", replace(FIRST, **change), empty_database) == expected


def test_parts_count_up_and_lower_ones_start_again(empty_database: str) -> None:
    changes = [{}, {}, {"recipe_digest": "r2"}, {}, {"output_schema": {"label": "x"}}, {}, {"recipe_digest": "r3"}]
    recipe, versions = FIRST, []
    for number, change in enumerate(changes):
        recipe = replace(recipe, **change)
        versions.append(semantic_version("m", f"w{number}", recipe, empty_database))
    assert versions == ["1.0.0", "1.0.1", "1.1.0", "1.1.1", "2.0.0", "2.0.1", "2.1.0"]


def test_the_same_weights_keep_their_version(empty_database: str) -> None:
    assert semantic_version("m", "w1", FIRST, empty_database) == "1.0.0"
    assert semantic_version("m", "w2", replace(FIRST, recipe_digest="r2"), empty_database) == "1.1.0"
    assert semantic_version("m", "w1", replace(FIRST, recipe_digest="r3"), empty_database) == "1.0.0"


def test_models_count_for_themselves_and_a_count_is_no_decision(empty_database: str) -> None:
    assert semantic_version("m", "w1", FIRST, empty_database) == "1.0.0"
    assert semantic_version("n", "w1", FIRST, empty_database) == "1.0.0"
    ledger = Ledger(empty_database)
    assert ledger.models() == []
    assert ledger.standing("m").revision == 0


def test_a_rule_with_a_pair_in_it_is_the_rule_that_comes_back_from_the_database(empty_database: str) -> None:
    recipe = replace(FIRST, output_schema={"label": "late", "limits": (15, 60)})
    semantic_version("m", "w1", recipe, empty_database)
    assert semantic_version("m", "w2", recipe, empty_database) == "1.0.1"


def test_what_a_version_was_made_of_is_kept_and_the_database_refuses_a_second_one_of_its_name(empty_database: str) -> None:
    semantic_version("m", "w1", FIRST, empty_database)
    with Session(connect(empty_database)) as session:
        row = session.scalars(select(ModelVersionRow)).one()
        assert (row.framework, row.snapshot_digest, row.code_version) == (FIRST.framework, "s1", "c1")
        values = {column.name: getattr(row, column.name) for column in ModelVersionRow.__table__.columns if column.name != "id"}
    with pytest.raises(IntegrityError), Session(connect(empty_database)) as session, session.begin():
        session.add(ModelVersionRow(**{**values, "weights_digest": "w2"}))
