"""What a trigger may say, and what is refused before anything starts."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.errors import SpecError
from training.spec import PipelineSpec, RunParameters, apply_overrides, params_schema


def refused(spec: PipelineSpec, conf: dict[str, Any]) -> list[str]:
    with pytest.raises(SpecError) as caught:
        apply_overrides(spec, conf)
    return [problem.render("") for problem in caught.value.problems]


def test_empty_conf_changes_nothing(ranking: PipelineSpec) -> None:
    assert apply_overrides(ranking, {}) == (ranking, RunParameters(as_of=None, force=False))


def test_overrides_are_in_the_spec_and_parameters_beside_it(ranking: PipelineSpec) -> None:
    conf = {"as_of": "2026-01-31", "force": True, "train": {"epochs": 5, "learning_rate": 1, "seed": None}}
    spec, parameters = apply_overrides(ranking, conf)
    assert parameters == RunParameters(as_of="2026-01-31", force=True)
    assert (spec.train.epochs, spec.train.learning_rate, spec.train.seed) == (5, 1.0, 17)
    assert spec.model_copy(update={"train": ranking.train}) == ranking


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"forse": True}, ": forse: [conf.unknown_key] unknown key 'forse' (did you mean force?)"),
        *(
            ({key: "x"}, f": {key}: [conf.unknown_key] unknown key '{key}' (a trigger takes as_of, force, train; all else is the YAML's)")
            for key in ("image", "cmds", "namespace", "volumes", "env_vars", "pod_template_file", "data")
        ),
        ({"train": {"epoch": 1}}, ": train.epoch: [conf.unknown_key] unknown key 'epoch' (did you mean epochs?)"),
        (
            {"train": {"placement": {"nodes": 9}}},
            ": train.placement: [conf.unknown_key] unknown key 'placement' "
            "(a trigger takes epochs, batch_size, learning_rate, weight_decay, seed, early_stopping; all else is the YAML's)",
        ),
        ({"force": "yes"}, ": force: [field.type] expected true or false, got 'yes' "),
        ({"as_of": 20260131}, ": as_of: [field.type] expected text, got 20260131 (quote it)"),
        ({"as_of": "yesterday"}, ": as_of: [as_of.invalid] 'yesterday' is not a time "),
        ({"as_of": "{{ var.value.x }}"}, ": as_of: [as_of.invalid] '{{ var.value.x }}' is not a time "),
        ({"train": []}, ": train: [field.type] expected a mapping, got a list"),
        ({"train": {"epochs": 0}}, ": train.epochs: [field.range] must be at least 1, got 0"),
        ({"train": {"epochs": 2.5}}, ": train.epochs: [field.range] must be a whole number, got 2.5"),
        ({"train": {"epochs": True}}, ": train.epochs: [field.type] expected a whole number, got true"),
        ({"train": {"learning_rate": "0.1"}}, ": train.learning_rate: [field.type] expected a number, got '0.1' "),
        ({"train": {"learning_rate": math.nan}}, ": train.learning_rate: [field.range] must be finite, got nan"),
        ({"train": {"learning_rate": math.inf}}, ": train.learning_rate: [field.range] must be finite, got inf"),
        ({"train": {"batch_size": 97}}, ": train.batch_size: [batch.indivisible] batch_size (97) must be divisible by "),
        (
            {"as_of": "x" * 300_000},
            ": [conf.too_large] has 300013 bytes, at most 262144 are read (a trigger carries parameters, never data)",
        ),
        ({"as_of": "\ud800"}, ": [spec.encoding] is no JSON: "),
        ({"force": {1, 2}}, ": [spec.encoding] is no JSON: "),
    ],
)
def test_conf_is_refused_in_these_words(ranking: PipelineSpec, conf: dict[str, Any], message: str) -> None:
    (shown,) = refused(ranking, conf)
    assert shown == message or (message.endswith(" ") and shown.startswith(message))


def test_deep_conf_is_refused_without_recursion(ranking: PipelineSpec) -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert refused(ranking, {"train": deep}) == [": [spec.too_deep] is nested more than 20 deep"]
    while isinstance(deep, list):  # taken apart by hand: the collector would go as deep
        deep = deep.pop()


def test_a_hundred_thousand_keys_are_refused(ranking: PipelineSpec) -> None:
    assert [line[:18] for line in refused(ranking, {str(i): 1 for i in range(100_000)})] == [": [conf.too_large]"]


def test_all_problems_of_a_conf_are_told_at_once(ranking: PipelineSpec) -> None:
    codes = [line.split("[")[1].split("]")[0] for line in refused(ranking, {"as_of": "never", "train": {"epochs": -1, "batch_size": 3}})]
    assert sorted(codes) == ["as_of.invalid", "field.range"]
    codes = [line.split("[")[1].split("]")[0] for line in refused(ranking, {"x": 1, "force": 1})]
    assert codes == ["field.type", "conf.unknown_key"]


def test_key_without_effect_on_the_family_is_refused(flights: PipelineSpec) -> None:
    assert refused(flights, {"train": {"batch_size": 10}}) == [
        ": train.batch_size: [field.conflict] batch_size has no effect on boosted_trees (leave it out)"
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["epochs", "seed", "x"]), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["as_of", "force", "train", "image"]), JSON, max_size=4))
@settings(max_examples=150, deadline=None)
def test_any_conf_is_taken_or_refused_in_words(ranking: PipelineSpec, conf: dict[str, Any]) -> None:
    try:
        spec, _ = apply_overrides(ranking, conf)
    except SpecError:
        return
    assert spec.data == ranking.data


def test_form_has_the_specs_values_as_defaults_and_accepts_them(ranking: PipelineSpec) -> None:
    schema = params_schema(ranking)
    assert schema["train"]["default"] == {
        "epochs": 3,
        "batch_size": 4096,
        "learning_rate": 0.02,
        "weight_decay": 0.5,
        "seed": 17,
        "early_stopping": None,
    }
    assert schema["train"]["properties"]["epochs"] == {
        "title": "Epochs",
        "type": "integer",
        "minimum": 1,
        "maximum": 100_000,
        "default": 3,
        "description": "Passes over the training rows; boosting rounds for trees.",
    }
    assert schema["train"]["properties"]["learning_rate"]["exclusiveMinimum"] == 0
    assert schema["train"]["properties"]["early_stopping"]["type"] == ["null", "integer"]
    conf = {name: part["default"] for name, part in schema.items()}
    assert apply_overrides(ranking, conf) == (ranking, RunParameters())


def test_form_leaves_out_what_has_no_effect_on_the_family(flights: PipelineSpec) -> None:
    schema = params_schema(flights)
    assert list(schema["train"]["properties"]) == ["epochs", "learning_rate", "seed", "early_stopping"]
    assert apply_overrides(flights, {name: part["default"] for name, part in schema.items()})[0] == flights
