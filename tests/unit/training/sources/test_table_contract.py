"""What a YAML says of its tables is what is read."""

from __future__ import annotations

from datetime import timedelta

import pytest

from training.runtime.provenance import CHECKOUT
from training.sources.table_contract import RowSample, TableContract, contracts_of
from training.spec import PipelineSpec, parse_spec
from training.spec.sections.data import Column, JoinedColumn
from training.spec.sections.derived import SourceDerived

SOURCE = "  source:\n"
UNION = '    union:\n      - {table: us, kind: jsonl, uri: "${US_URI}/us", partition: "{date}"}\n'


def spec_with(lines: str = "", pipeline: str = "search_ranking") -> PipelineSpec:
    text = (CHECKOUT / "dags" / "pipelines" / f"{pipeline}.yaml").read_text(encoding="utf-8")
    return parse_spec(text.replace(SOURCE, SOURCE + lines, 1).encode())


def main_of(lines: str, pipeline: str = "search_ranking") -> TableContract:
    return contracts_of(spec_with(lines, pipeline))[0]


def test_main_table_has_what_data_source_says() -> None:
    main = main_of('    ignore: [junk]\n    derive: {dear: {type: boolean, sql: "price > 9"}}\n    where: {sql: "price > 1"}\n')
    assert (main.name, main.kind, main.uri, main.partition) == ("clicks", "parquet", "${SHOP_URI}/clicks", "dt={date}")
    assert (main.key, main.event_time, main.known_at, main.ignore) == (("search_id", "item_id"), "shown_at", None, ("junk",))
    assert main.columns["clicked"] == Column(type="int8", known="after")
    assert main.derived == {"dear": SourceDerived(type="boolean", sql="price > 9")}
    assert (main.where, main.sample, main.suite, main.partitioned, main.is_kept_as_is) == (
        "price > 1",
        None,
        "search_ranking/clicks",
        True,
        False,
    )


@pytest.mark.parametrize(
    ("pipeline", "by"), [("search_ranking", ("search_id",)), ("flight_delay", ("carrier", "flight", "origin", "scheduled_departure"))]
)
def test_sample_is_by_whole_groups_or_by_the_key(pipeline: str, by: tuple[str, ...]) -> None:
    assert main_of("    sample: {share: 0.25, seed: 7}\n", pipeline=pipeline).sample == RowSample(share=0.25, seed=7, by=by)


def test_tables_of_a_union_have_their_own_place_and_all_else_of_the_main_table() -> None:
    spec = spec_with(UNION)
    # No kind that is built in has settings.
    (table,) = spec.data.source.union
    source = spec.data.source.model_copy(update={"union": (table.model_copy(update={"settings": {"country": "us"}}),)})
    main = contracts_of(spec.model_copy(update={"data": spec.data.model_copy(update={"source": source})}))[0]
    (us,) = main.union
    assert (us.name, us.kind, us.uri, us.partition, us.settings) == ("us", "jsonl", "${US_URI}/us", "{date}", {"country": "us"})
    assert (us.columns, us.key, us.event_time) == (main.columns, main.key, main.event_time)
    assert [member.name for member in main.members] == ["clicks", "us"]


def test_feature_tables_have_what_data_features_says() -> None:
    _, weather, planes = contracts_of(spec_with(pipeline="flight_delay"))
    assert (weather.name, weather.key, weather.event_time) == ("weather", ("origin", "time_hour"), "time_hour")
    assert (weather.kind, weather.uri, weather.suite) == ("csv", "${FLIGHTS_URI}/weather.csv", "flight_delay/weather")
    assert (weather.available_after, weather.max_age) == (timedelta(hours=1), timedelta(hours=12))
    assert weather.columns["temp"] == JoinedColumn(type="double", nullable=True)
    assert weather.ignore == ("rownames", "year", "month", "day", "hour", "wind_dir")
    assert (planes.key, planes.event_time, planes.max_age) == (("tailnum",), None, None)
