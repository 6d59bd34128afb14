"""What a trigger may say, and what is refused before anything starts."""

import math
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.errors import SpecError
from training.spec import PipelineSpec, RunParameters, apply_overrides, params_schema, spec_part
from training.spec.descriptors.families import FAMILIES
from training.spec.scalar_types import parse_size
from training.spec.sections.train import Train
from training.spec.trigger_form import unknown_keys
from training.stage_table import STAGES


def refused(spec: PipelineSpec, conf: dict[str, Any]) -> list[str]:
    with pytest.raises(SpecError) as caught:
        apply_overrides(spec, conf)
    return [problem.render("") for problem in caught.value.problems]


def test_empty_conf_changes_nothing(ranking: PipelineSpec) -> None:
    assert apply_overrides(ranking, {}) == (ranking, RunParameters(as_of=None, force=False))


def test_overrides_are_in_the_spec_and_parameters_beside_it(ranking: PipelineSpec) -> None:
    conf = {"as_of": "2026-01-31", "force": True, "train": {"epochs": 5, "learning_rate": 1, "seed": None}}
    spec, parameters = apply_overrides(ranking, conf)
    assert parameters == RunParameters(as_of="2026-01-31", force=True, overrides={"train.epochs": 5, "train.learning_rate": 1.0})
    assert (spec.train.epochs, spec.train.learning_rate, spec.train.seed) == (5, 1.0, 17)
    assert spec.model_copy(update={"train": ranking.train}) == ranking


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"forse": True}, ": forse: [conf.unknown_key] unknown key 'forse' (did you mean force?)"),
        *(
            (
                {key: "x"},
                f": {key}: [conf.unknown_key] unknown key '{key}' "
                f"(a trigger takes as_of, force, promote, snapshot, registration, data, train, evaluate; all else is the YAML's)",
            )
            for key in ("image", "cmds", "namespace", "volumes", "env_vars", "pod_template_file", "prepare")
        ),
        ({"as_off": "2026-01-31"}, ": as_off: [conf.unknown_key] unknown key 'as_off' (did you mean as_of?)"),
        ({"train": {"settings": {"hiden": [8]}}}, ": train.settings.hiden: [conf.unknown_key] unknown key 'hiden' (did you mean hidden?)"),
        ({"train": {"settings": {"dropout": 1}}}, ": train.settings.dropout: [field.range] must be less than 1, got 1"),
        (
            {"evaluate": {"confidense": 0.9}},
            ": evaluate.confidense: [conf.unknown_key] unknown key 'confidense' (did you mean confidence?)",
        ),
        ({"evaluate": {"primary": "mrr"}}, ": evaluate.primary: [conf.unknown_key] unknown key 'primary' (a trigger takes "),
        ({"evaluate": {"checks": {"drft": 1}}}, ": evaluate.checks.drft: [conf.unknown_key] unknown key 'drft' (did you mean drift?)"),
        ({"evaluate": {"minimum": {"auc": 0.6}}}, ": evaluate.minimum.auc: [metric.unknown] the task ranking has no metric 'auc' "),
        ({"evaluate": {"confidence": 2}}, ": evaluate.confidence: [field.range] must be at most 0.9999, got 2.0"),
        ({"evaluate": {"minimum": {"mrr": True}}}, ": evaluate.minimum.mrr: [field.type] expected a number, got true"),
        (
            {"evaluate": {"improvement": {"absolute": 0.1, "relative": 0.1}}},
            ": evaluate.improvement: [field.conflict] improvement is absolute or relative, not both (keep one of the two)",
        ),
        ({"as_of": "2026-W05-1T00:00:00Z"}, ": as_of: [as_of.invalid] '2026-W05-1T00:00:00Z' is not a time in this form "),
        ({"as_of": "20260131T000000Z"}, ": as_of: [as_of.invalid] '20260131T000000Z' is not a time in this form "),
        ({"train": {"epoch": 1}}, ": train.epoch: [conf.unknown_key] unknown key 'epoch' (did you mean epochs?)"),
        ({"train": {"parallel": {"shards": 2}}}, ": train.parallel.shards: [conf.unknown_key] unknown key 'shards' (did you mean shard?)"),
        ({"train": {"momentum": 0.5}}, ": train.momentum: [field.conflict] momentum has no effect on adamw, "),
        ({"train": {"model": "rankr"}}, ": train.model: [model.unknown] there is no model 'rankr' "),
        (
            {"train": {"model": "acme.m:Model"}},
            ": train.model: [conf.unknown_key] names a class of your own: which code runs is the YAML's ",
        ),
        ({"train": {"refit": "validation"}}, ": train.refit: [conf.unknown_key] is the YAML's alone: Airflow knows the tasks "),
        ({"train": {"placement": {"pool": "gpu"}}}, ": train.placement.pool: [conf.unknown_key] is the YAML's alone: Airflow knows "),
        ({"data": {"source": {"uri": "x"}}}, ": data.source.uri: [conf.unknown_key] unknown key 'uri' (known: window)"),
        ({"data": {"source": {"window": "1"}}}, ": data.source.window: [duration.invalid] "),
        ({"train": {"placement": {"nodes": 0}}}, ": train.placement.nodes: [resources.nodes] must be at least 1, got 0"),
        (
            {"train": {"placement": {"memory": "much"}}},
            ": train.placement.memory: [resources.memory] expected an amount of memory, got 'much' ",
        ),
        ({"train": {"placement": {"cpus": "2"}}}, ": train.placement.cpus: [resources.cpus] expected a number, got '2' "),
        ({"train": {"placement": {"nodes": 3}}}, ": train.batch_size: [batch.indivisible] "),
        (
            {"train": {"placement": {"gpus": 2}}},
            ": train.placement.gpus: [field.conflict] the YAML has gpus 0: trainings with and without GPUs wait in different pools, "
            "and a trigger changes no pool (set train.placement.gpus in the YAML, or train.placement.pool, which is then that of all runs)",
        ),
        ({"force": "yes"}, ": force: [field.type] expected true or false, got 'yes' "),
        ({"promote": "no"}, ": promote: [field.type] expected true or false, got 'no' "),
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
        ({"as_of": "\ud800"}, ": [spec.encoding] is not JSON: "),
        ({"force": {1, 2}}, ": [spec.encoding] is not JSON: "),
    ],
)
def test_conf_is_refused_in_these_words(ranking: PipelineSpec, monkeypatch: pytest.MonkeyPatch, conf: dict[str, Any], message: str) -> None:
    monkeypatch.setenv("NIGHTSHIFT_MODEL_PACKAGES", "acme")
    (shown,) = refused(ranking, conf)
    assert shown == message or (message.endswith(" ") and shown.startswith(message))


def test_training_with_a_refit_does_not_begin_at_a_checkpoint(ranking: PipelineSpec) -> None:
    train = ranking.train.model_copy(update={"refit": "validation"})
    (shown,) = refused(ranking.model_copy(update={"train": train}), {"train": {"from_checkpoint": "0" * 64}})
    assert shown == (
        ": train.from_checkpoint: [field.conflict] the weights that are served are those of the refit, which begins at the start "
        "and not at the checkpoint (set train.refit: none in the YAML and trigger the run again, or leave from_checkpoint out)"
    )


@pytest.mark.parametrize(
    ("registration", "message"),
    [
        ({"formt": "onnx"}, ": registration.formt: [conf.unknown_key] unknown key 'formt' (did you mean format?)"),
        ({"artifact_uri": "s3://models/m.pt"}, ": registration.artifact_uri: [artifact.pickle] 's3://models/m.pt' is a pickle by its name"),
        ({"artifact_uri": "/models/m.onnx"}, ": registration.artifact_uri: [uri.forbidden] '/models/m.onnx' is not a place"),
        ({"sha256": "F" * 64}, ": registration.sha256: [digest.invalid] expected a SHA-256"),
        ({"metrics": {"auc": math.inf}}, ": registration.metrics.auc: [field.range] must be finite, got inf"),
        ({"metrics": {"auc": "0.9"}}, ": registration.metrics.auc: [field.type] expected a number"),
        ({"version": "1\n2"}, ": registration.version: ["),
    ],
)
def test_a_model_from_outside_is_refused_in_these_words(ranking: PipelineSpec, registration: dict[str, Any], message: str) -> None:
    (shown,) = refused(ranking, {"registration": {"artifact_uri": "s3://models/m.onnx", "format": "onnx", **registration}})
    assert shown.startswith(message)


def test_a_model_from_outside_has_no_settings_of_a_training_but_those_of_the_spec(ranking: PipelineSpec) -> None:
    registration = {"artifact_uri": "s3://models/m.onnx", "format": "onnx"}
    # As Airflow's form sends it.
    _, parameters = apply_overrides(ranking, {"registration": registration, "train": {"epochs": ranking.train.epochs}})
    assert parameters.registration is not None
    assert refused(ranking, {"registration": registration, "train": {"epochs": 99}}) == [
        ": train.epochs: [field.conflict] has no effect: the model comes from outside (leave it out)"
    ]


def test_deep_conf_is_refused_without_recursion(ranking: PipelineSpec) -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert refused(ranking, {"train": deep}) == [": [spec.too_deep] is nested more than 20 deep"]
    while isinstance(deep, list):  # taken apart by hand: the collector would go as deep
        deep = deep.pop()


def test_a_hundred_thousand_keys_are_refused(ranking: PipelineSpec) -> None:
    assert [line[:18] for line in refused(ranking, {str(i): 1 for i in range(100_000)})] == [": [conf.too_large]"]


def test_all_problems_of_a_conf_are_reported_at_once(ranking: PipelineSpec) -> None:
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
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["epochs", "seed", "settings", "minimum", "mrr", "checks", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["as_of", "force", "train", "evaluate", "image"]), JSON, max_size=4))
@settings(max_examples=150)
def test_any_conf_is_taken_or_refused_in_words(ranking: PipelineSpec, conf: dict[str, Any]) -> None:
    try:
        spec, _ = apply_overrides(ranking, conf)
    except SpecError:
        return
    assert spec.data == ranking.data


def test_form_has_the_specs_values_as_defaults_and_accepts_them(ranking: PipelineSpec) -> None:
    schema: Any = params_schema(ranking)
    train = schema["train"]["then"]["properties"]
    default = {"placement": ranking.train.placement.model_dump(mode="json", exclude={"pool"})}
    assert schema["train"]["default"] == {**ranking.train.model_dump(mode="json", include=set(train)), **default}
    assert schema["data"]["default"] == {"source": {"window": "30d"}}
    assert train["epochs"] == {
        "title": "Epochs",
        "type": "integer",
        "minimum": 1,
        "maximum": 100_000,
        "default": 3,
        "description": "Passes over the training rows; boosting rounds for trees.",
    }
    assert train["learning_rate"]["exclusiveMinimum"] == 0
    assert train["early_stopping"]["type"] == ["null", "integer"]
    conf = {name: part["default"] for name, part in schema.items()}
    assert apply_overrides(ranking, conf) == (ranking, RunParameters())


@pytest.mark.parametrize(("window", "is_refused"), [("9d", False), ("36h", False), (None, False), ("9x", True), ('"9d', True), (9, True)])
def test_form_refuses_a_window_that_is_no_duration_before_there_is_a_run(ranking: PipelineSpec, window: Any, *, is_refused: bool) -> None:
    schema = jsonschema.Draft202012Validator(params_schema(ranking)["data"])
    assert bool(list(schema.iter_errors({"source": {"window": window}}))) is is_refused


@pytest.mark.parametrize("family", [name for name, facts in FAMILIES.usable().items() if facts.is_trained and "binary" in facts.tasks])
def test_form_accepts_its_own_defaults_for_every_family(flights: PipelineSpec, family: str) -> None:
    facts = FAMILIES.get(family)
    assert facts is not None
    needed = {"estimator": "sklearn.tree.DecisionTreeClassifier"} if family == "sklearn" else {}
    settings = facts.settings(**needed).model_dump(mode="json")
    spec = flights.model_copy(update={"train": Train.model_validate({"model": family, "epochs": 5, "settings": settings})})
    schema = params_schema(spec)
    for part in schema.values():
        jsonschema.validate(part["default"], part)
    assert apply_overrides(spec, {name: part["default"] for name, part in schema.items()})[0] == spec


def test_resources_given_replace_the_specs_one_by_one(ranking: PipelineSpec) -> None:
    given = {"nodes": 2, "memory": "2GiB", "cpus": None, "spot": True}
    spec, parameters = apply_overrides(ranking, {"train": {"placement": given}})
    wanted = {"nodes": 2, "memory": parse_size("2GiB"), "spot": True}
    assert spec.train.placement == ranking.train.placement.model_copy(update=wanted)
    assert set(parameters.overrides) == {"train.placement.nodes", "train.placement.memory", "train.placement.spot"}
    # The number of processes is part of the training's work id, their memory is not.
    assert spec_part(spec, "train") == spec_part(ranking, "train")
    assert spec.train.placement.world_size == 2 * ranking.train.placement.world_size
    with_gpus = ranking.model_copy(
        update={"train": ranking.train.model_copy(update={"placement": ranking.train.placement.model_copy(update={"pool": "all"})})}
    )
    assert apply_overrides(with_gpus, {"train": {"placement": {"gpus": 2}}})[0].train.placement.gpus == 2


def test_form_leaves_out_what_has_no_effect_on_the_family(flights: PipelineSpec) -> None:
    schema: Any = params_schema(flights)
    facts = FAMILIES.get(flights.train.model)
    assert facts is not None
    assert set(schema["train"]["then"]["properties"]) == Train.model_fields.keys() - set(facts.ignored_keys) - {"refit"}
    assert apply_overrides(flights, {name: part["default"] for name, part in schema.items()})[0] == flights


def test_settings_and_thresholds_given_replace_the_specs_one_by_one(ranking: PipelineSpec) -> None:
    conf = {
        "train": {"settings": {"hidden": [8]}},
        "evaluate": {"minimum": {"mrr": 0.5}, "improvement": {"absolute": 0.01}, "confidence": 0.9, "checks": {"drift": 1}},
    }
    spec, parameters = apply_overrides(ranking, conf)
    assert spec.train.settings == {**ranking.train.settings, "hidden": [8]}
    assert spec.evaluate.minimum == {**ranking.evaluate.minimum, "mrr": 0.5}
    assert (spec.evaluate.improvement.absolute, spec.evaluate.improvement.relative) == (0.01, None)
    assert (spec.evaluate.confidence, spec.evaluate.checks.drift, spec.evaluate.checks.leakage) == (0.9, 1.0, 0.98)
    assert parameters.overrides == {
        "train.settings.hidden": [8],
        "evaluate.minimum.mrr": 0.5,
        "evaluate.improvement.absolute": 0.01,
        "evaluate.improvement.relative": None,
        "evaluate.confidence": 0.9,
        "evaluate.checks.drift": 1.0,
    }


@pytest.mark.parametrize(
    ("conf", "stages"),
    [
        ({"train": {"settings": {"hidden": [8]}}}, {"train"}),
        ({"train": {"optimizer": "sgd", "momentum": 0.5, "schedule": "linear", "warmup_steps": 5}}, {"train"}),
        ({"train": {"parallel": {"shard": 2}}}, {"train"}),
        ({"data": {"source": {"window": "31d"}}}, {"ingest", "validate", "prepare"}),
        ({"evaluate": {"minimum": {"ndcg@10": 0.2}}}, {"evaluate", "promote"}),
        ({"evaluate": {"confidence": 0.9}}, {"evaluate", "promote"}),
        ({"evaluate": {"confidence": None, "slice_drop": None, "checks": {"drift": None}, "minimum": {"mrr": None}}}, set()),
        ({"evaluate": {"confidence": 0.95, "minimum": {"ndcg@10": 0.3}}}, set()),
    ],
)
def test_overrides_are_new_work_for_the_stages_that_they_concern(ranking: PipelineSpec, conf: dict[str, Any], stages: set[str]) -> None:
    spec, parameters = apply_overrides(ranking, conf)
    assert {stage for stage in STAGES if spec_part(spec, stage) != spec_part(ranking, stage)} == stages
    assert bool(parameters.overrides) == bool(stages)


def test_keys_that_leave_the_weights_as_they_are_are_no_new_work(ranking: PipelineSpec) -> None:
    conf = {"train": {"checkpoint": {"keep": 5}, "replica_check_steps": 10, "straggler_ratio": 2}}
    spec, parameters = apply_overrides(ranking, conf)
    assert set(parameters.overrides) == {"train.checkpoint.keep", "train.replica_check_steps", "train.straggler_ratio"}
    assert spec.train.checkpoint.every == ranking.train.checkpoint.every
    assert all(spec_part(spec, stage) == spec_part(ranking, stage) for stage in STAGES)


def test_another_family_begins_with_its_own_settings_without_the_keys_that_it_has_no_use_for(ranking: PipelineSpec) -> None:
    conf: Any = {"train": {"model": "boosted_trees", "settings": {"max_depth": 3}}}
    spec, parameters = apply_overrides(ranking, conf)
    facts = FAMILIES.get("boosted_trees")
    assert facts is not None
    assert spec.train.settings.items() >= {"max_depth": 3}.items()
    assert spec.train.settings.keys() == facts.settings.model_fields.keys()
    assert (spec.train.batch_size, spec.train.learning_rate) == (None, ranking.train.learning_rate)
    assert parameters.overrides["train.model"] == "boosted_trees"
    assert refused(ranking, {"train": {"model": "boosted_trees", "batch_size": 10}}) == [
        ": train.batch_size: [field.conflict] batch_size has no effect on boosted_trees (leave it out)"
    ]
    # The form checks the settings of the YAML's family only.
    jsonschema.validate(conf["train"], params_schema(ranking)["train"])
    assert not list(unknown_keys(params_schema(ranking), conf))


def test_null_in_the_settings_of_an_own_model_is_a_value(flights: PipelineSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_MODEL_PACKAGES", "acme")
    own = flights.model_copy(update={"train": flights.train.model_copy(update={"model": "acme.m:Model", "settings": {"depth": 3}})})
    spec, parameters = apply_overrides(own, {"train": {"settings": {"depth": None}}})
    assert spec.train.settings == {"depth": None}
    assert parameters.overrides == {"train.settings.depth": None}


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("2026-01-31", True),
        ("2026-01-31T02:00:00+00:00", True),
        ("2026-01-31 02:00Z", True),
        ("2026-01-31T02:00:00.123456-0500", True),
        ("yesterday", False),
        ("2026-01-31T02:00:00", False),
        ("2026-13-01", False),
        ("2026-01-31T25:00:00Z", False),
        ("x2026-01-31", False),
        ("", False),
    ],
)
def test_pattern_of_the_form_takes_what_a_run_takes(ranking: PipelineSpec, text: str, fits: bool) -> None:
    """JavaScript's regular expressions read the pattern as Python's do: no lookbehind, no \\A, no possessive quantifier."""
    schema = params_schema(ranking)["as_of"]
    assert jsonschema.Draft202012Validator(schema).is_valid(text) is fits
    if fits:
        assert apply_overrides(ranking, {"as_of": text})[1].as_of == text
    else:
        assert "as_of.invalid" in refused(ranking, {"as_of": text})[0]
