"""What a YAML says of a window is what is computed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from training.data.join.plan import window_columns
from training.data.join.windows import WindowColumn
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, load_spec
from training.spec.sections.windows import Window

HOUR = timedelta(hours=1)
KINDS = {"kind": "rolling", "column": "distance", "function": "mean"}
REACHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # key: the YAML's, and what the window has of it
    "kind": ({"kind": "lag"}, {"kind": "lag"}),
    "table": ({"table": "weather"}, {"table": "weather", "by": {"origin": "origin"}, "available_after": HOUR}),
    "by": ({"by": ("origin", "dest")}, {"by": {"origin": "origin", "dest": "dest"}}),
    "column": ({"column": "air_time"}, {"column": "air_time"}),
    "function": ({"function": "max"}, {"function": "max"}),
    "time": ({"time": HOUR}, {"time": HOUR}),
    "tolerance": ({"tolerance": HOUR}, {"tolerance": HOUR}),
    "rows": ({"rows": 3}, {"rows": 3}),
    "where": ({"where": "distance > 3"}, {"where": "distance > 3"}),
    "available_after": ({"available_after": HOUR}, {"available_after": HOUR}),
    "known_at": ({"known_at": "scheduled_departure"}, {"known_at": ("scheduled_departure",)}),
}


def spec_with(**keys: Any) -> PipelineSpec:
    spec = load_spec(CHECKOUT / "dags" / "pipelines" / "flight_delay.yaml")
    windows = {"found": Window.model_construct(**{"by": (), **KINDS, **keys})}
    return spec.model_copy(update={"data": spec.data.model_copy(update={"windows": windows})})


def test_each_key_of_a_window_is_looked_at() -> None:
    assert REACHES.keys() == Window.model_fields.keys()


@pytest.mark.parametrize("key", REACHES)
def test_key_of_a_window_reaches_its_column(key: str) -> None:
    given, expected = REACHES[key]
    plain: dict[str, Any] = {"name": "found", "table": "flights", **KINDS}
    assert window_columns(spec_with()) == [WindowColumn(**plain)]
    assert window_columns(spec_with(**given)) == [WindowColumn(**{**plain, **expected})]


def test_the_later_of_two_delays_and_both_instants_count() -> None:
    (slow,) = window_columns(spec_with(table="weather", available_after=3 * HOUR))
    assert slow.available_after == 3 * HOUR
    (of_the_label,) = window_columns(spec_with(column="arr_delay", known_at="scheduled_departure"))
    assert of_the_label.known_at == ("scheduled_departure", "landed_at")
