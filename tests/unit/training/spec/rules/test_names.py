"""Names that a YAML cannot use: ids of helper DAGs, columns that differ only by case, characters that forge lines."""

from collections.abc import Callable

import pytest

from training.errors import Problem, SpecError
from training.spec import PipelineSpec, parse_spec
from training.spec.rules.names import HELPER_SUFFIXES, SHARED_DAGS

Refuse = Callable[..., tuple[Problem, ...]]

R, F = "search_ranking", "flight_delay"
REMOVE = "remove the character"
RATING = 'rating: {type: float, source_name: "Price in €"}'


@pytest.mark.parametrize("name", [*SHARED_DAGS, *(f"search_ranking{suffix}" for suffix in HELPER_SUFFIXES), "a.tune.canary"])
def test_pipeline_cannot_be_called_like_a_helper_dag(refuse: Refuse, name: str) -> None:
    (problem,) = refuse(R, ("name: search_ranking", f"name: {name}"))
    assert (problem.code, problem.field, problem.line) == ("name.reserved", "name", 3)
    assert name in problem.message


@pytest.mark.parametrize("name", ["rollback2", "canary", "search.canary2", "tune"])
def test_pipeline_may_have_any_other_name(accept: Callable[..., PipelineSpec], name: str) -> None:
    assert accept(R, ("name: search_ranking", f"name: {name}")).name == name


def line_of(text: bytes, word: str) -> int:
    return next(number for number, line in enumerate(text.decode().splitlines(), 1) if word in line)


@pytest.mark.parametrize(
    ("pipeline", "old", "new", "names", "first"),
    [
        (R, "rating: {type: float}", "Price: {type: float}", "Price and price, a column of clicks,", "price: {type: float}"),
        (F, "aircraft_age: {type", "Route: {type", "route and Route, a column of prepare.derive,", "Route:"),
        (F, "dewp: {type: double", "Temp: {type: double", "Temp and temp, a column of weather,", "temp: {type"),
        (F, "landed_at:\n", "Carrier:\n", "Carrier and carrier, a column of flights,", "carrier: {type"),
        (F, "as: built_year", "as: Arr_Time", "Arr_Time and arr_time, a column of flights,", "arr_time: {type"),
    ],
    ids=["source", "prepare.derive", "feature table", "derived of source", "joined name"],
)  # fmt: skip
def test_columns_that_differ_only_by_case_are_refused_with_both_lines(
    changed: Callable[..., bytes], pipeline: str, old: str, new: str, names: str, first: str
) -> None:
    text = changed(pipeline, (old, new))
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    (problem,) = [found for found in caught.value.problems if found.code == "column.clash"]
    assert problem.message == f"{names} differ only by case; SQL treats them as one column (see line {line_of(text, first)})"
    assert problem.line == line_of(text, "route:" if "Route" in new else new.strip())


@pytest.mark.parametrize("character", ["\n", "\r", "\t", "\u2028", "\u2029", "\u202e", "\u2066", "\u2069"], ids=ascii)
@pytest.mark.parametrize(
    ("old", "field"),
    [("owner: search-relevance", "owner"), ("tags: [ranking", "tags[0]"), ("approval: automatic", "promote.approvers[0]")],
    ids=["owner", "tags", "approvers"],
)
def test_one_line_texts_refuse_characters_that_forge_lines_or_hide_text(refuse: Refuse, old: str, field: str, character: str) -> None:
    # `ascii` writes the escape that YAML reads too.
    text = f'"ann{ascii(character)[1:-1]}bob"'
    key, _, _ = old.partition(":")
    new = {"owner": f"owner: {text}", "tags": f"tags: [{text}", "approval": f"approval: required, approvers: [{text}]"}[key]
    (problem,) = refuse(R, (old, new))
    assert (problem.code, problem.field, problem.hint) == ("field.characters", field, REMOVE)
    assert f"U+{ord(character):04X} at position 4" in problem.message


def test_description_may_have_lines_and_no_direction_overrides(
    accept: Callable[..., PipelineSpec], refuse: Refuse, changed: Callable[..., bytes]
) -> None:
    old = next(line for line in changed(R).decode().splitlines() if line.startswith("description:"))
    assert accept(R, (old, "description: |\n  One line.\n  Another,\twith a tab.")).description.count("\n") == 2
    (problem,) = refuse(R, (old, 'description: "abc\\u202edef"'))
    assert (problem.code, problem.field) == ("field.characters", "description")


def test_text_of_other_scripts_is_accepted(accept: Callable[..., PipelineSpec]) -> None:
    assert accept(R, ("owner: search-relevance", "owner: מנוע חיפוש, 検索, Zürich")).owner == "מנוע חיפוש, 検索, Zürich"


@pytest.mark.parametrize(
    ("pipeline", "changes", "field", "message"),
    [
        (
            R,
            [("price: {type: float}", 'price: {type: float, source_name: "Price in €"}'), ("rating: {type: float}", RATING)],
            "data.source.columns.rating.source_name",
            "price and rating are both the column 'Price in €' of the file",
        ),
        (
            R,
            [("rating: {type: float}", "rating: {type: float, source_name: price}")],
            "data.source.columns.rating.source_name",
            "price and rating are both the column 'price' of the file",
        ),
        (
            F,
            [("dewp: {type: double", "dewp: {type: double, source_name: temp")],
            "data.features[0].columns.dewp.source_name",
            "temp and dewp are both the column 'temp' of the file",
        ),
        (
            F,
            [("carrier: {type: string}", 'carrier: {type: string, source_name: "rownames"}')],
            "data.source.ignore",
            "rownames is declared and ignored",
        ),
        (
            F,
            [("carrier: {type: string}", "carrier: {type: string, source_name: 5}")],
            "data.source.columns.carrier.source_name",
            "expected text, got 5",
        ),
        (
            F,
            [("carrier: {type: string}", 'carrier: {type: string, source_name: "a\\tb"}')],
            "data.source.columns.carrier.source_name",
            "has the character U+0009 at position 2; line breaks, control characters and direction overrides are refused",
        ),
    ],
    ids=["same name", "name of a key", "feature table", "ignored", "number", "control character"],
)
def test_source_name_is_a_column_of_the_file_that_no_other_column_has(
    refuse: Refuse, pipeline: str, changes: list[tuple[str, str]], field: str, message: str
) -> None:
    (problem,) = refuse(pipeline, *changes)
    assert (problem.field, problem.message.split(" (see line")[0]) == (field, message)
    assert problem.line is not None


def test_names_in_the_file_may_be_empty_or_differ_only_by_case(accept: Callable[..., PipelineSpec]) -> None:
    changes = [
        ("price: {type: float}", 'price: {type: float, source_name: ""}'),
        ("rating: {type: float}", "rating: {type: float, source_name: PRICE}"),
    ]
    columns = accept(R, *changes).data.source.columns
    assert [columns[name].name_at_source(name) for name in ("price", "rating", "clicked")] == ["", "PRICE", "clicked"]
