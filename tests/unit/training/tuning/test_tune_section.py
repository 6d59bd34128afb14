"""The section `tune` as people write it, and what is told of what is wrong in it."""

from __future__ import annotations

import pytest

from training.contracts import canonical_json
from training.errors import SpecError
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, apply_overrides, freeze, params_schema, parse_spec, spec_part

TEXT = (CHECKOUT / "dags/pipelines/search_ranking.yaml").read_text(encoding="utf-8")
R128 = """
  space:
    learning_rate: {float: [1e-5, 1e-2], log: true}
    batch_size: {choices: [32, 64, 128, 256]}
    warmup_steps: {int: [100, 2000]}
"""


def spec_with(tune: str, *, pipeline: str = TEXT) -> PipelineSpec:
    return parse_spec(f"{pipeline}\ntune:\n{tune}".encode())


def problems(tune: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        spec_with(tune)
    return [f"{problem.field}: [{problem.code}] {problem.message} ({problem.hint})" for problem in caught.value.problems]


def of(space: str, *, more: str = "") -> list[str]:
    return problems(f"  trials: 3\n{more}  space:\n    {space}\n")


def test_learning_rate_batch_size_and_warm_up_are_searched_as_people_write_it() -> None:
    spec = spec_with(f"  trials: 20\n  within: 90m\n{R128}")
    assert spec.tune is not None
    assert spec.tune.space["learning_rate"].bounds == (1e-5, 1e-2)
    assert spec.tune.space["batch_size"].choices == (32, 64, 128, 256)
    assert spec.tune.space["warmup_steps"].bounds == (100, 2000)
    assert (spec.tune.sampler, spec.tune.pruner, spec.tune.objective) == ("tpe", "hyperband", "validation_loss")
    assert PipelineSpec.thaw(freeze(spec)).tune == spec.tune


def test_the_stages_of_a_pipeline_have_tune_only_where_its_spec_has_it() -> None:
    assert parse_spec(TEXT.encode()).stages == ("ingest", "validate", "prepare", "train", "evaluate", "promote")
    assert spec_with(f"  trials: 1\n{R128}").stages == ("ingest", "validate", "prepare", "tune", "train", "evaluate", "promote")


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        ("learning_rate: {float: [1e-2, 1e-5]}", "[tune.space] low (0.01) is above high (1e-05) (write [low, high])"),
        ("learning_rate: {float: [0, 1], log: true}", "[tune.space] low must be above zero where log is true, got 0.0 ()"),
        ("epochs: {choices: []}", "tune.space.epochs: [tune.space] the list of choices is empty (give at least one value)"),
        ("learning_rte: {float: [0.1, 1]}", "did you mean learning_rate?"),
        ("settings.hiden: {int: [1, 2]}", "did you mean settings.hidden?"),
        ("settings.dropout: {float: [0, 1]}", "[tune.value] 1.0 is not a value of train.settings.dropout: must be less than 1"),
        (
            "settings.loss: {choices: [listwise, wise]}",
            "tune.space.settings.loss: [tune.value] 'wise' is not a value of train.settings.loss",
        ),
        ("epochs: {int: [0, 3]}", "tune.space.epochs: [tune.value] 0 is not a value of train.epochs: must be at least 1, got 0"),
        ("epochs: {float: [1.5, 3]}", "tune.space.epochs: [tune.value] 1.5 is not a value of train.epochs"),
        ("batch_size: {choices: [32, 33]}", "33 is not a value of train.batch_size: batch_size (33) must be divisible by"),
        ("batch_size: {int: [32, 64]}", "values between 32 and 64 cannot be shared by 2 processes (set step to 2, or give choices)"),
        ("seed: {int: [0, 9]}", "'seed' is not a setting of ranker that can be searched"),
        ("model: {choices: [ranker]}", "'model' is not a setting of ranker that can be searched"),
        ("epochs: {int: [1, 3], when: {batch_siz: 32}}", "tune.space.epochs.when.batch_siz: [tune.unknown_param]"),
    ],
)
def test_a_space_that_no_training_would_take_is_refused(space: str, expected: str) -> None:
    (problem,) = of(space)
    assert expected in problem


def test_no_trials_at_all_are_refused() -> None:
    assert problems(f"  trials: 0\n{R128}") == ["tune.trials: [field.range] must be at least 1, got 0 ()"]


def test_conditions_name_values_that_there_are_and_go_in_no_circle() -> None:
    never = of("epochs: {int: [1, 3], when: {batch_size: 48}}\n    batch_size: {choices: [32, 64]}")
    assert never == ["tune.space.epochs.when.batch_size: [tune.condition] batch_size is never 48 (name one of its values)"]
    circle = of("epochs: {int: [1, 3], when: {batch_size: 32}}\n    batch_size: {choices: [32, 64], when: {epochs: 2}}")
    assert circle == [
        "tune.space.batch_size.when: [tune.condition] conditions go in a circle among batch_size, epochs (take one of them out)"
    ]


def test_a_grid_needs_values() -> None:
    assert of("learning_rate: {float: [0.1, 1]}", more="  sampler: grid\n") == [
        "tune.space.learning_rate: [tune.grid] a grid needs learning_rate's values (give choices or a step, or another sampler)"
    ]
    many = of("learning_rate: {float: [0.1, 1], step: 1e-8}", more="  sampler: grid\n")
    assert "tune.space: [tune.grid] the grid has" in many[0]


def test_an_objective_is_a_metric_of_the_task() -> None:
    assert "the task ranking has no metric 'auc'" in of("epochs: {int: [1, 3]}", more="  objective: auc\n")[0]
    assert spec_with("  trials: 1\n  objective: ndcg@5\n  space: {epochs: {int: [1, 3]}}\n").tune is not None


def test_a_budget_of_gpus_that_one_trial_exceeds_is_refused() -> None:
    text = TEXT.replace("processes_per_node: 2}", "processes_per_node: 2, gpus: 2}")
    with pytest.raises(SpecError, match="one trial has 2 GPUs"):
        spec_with("  trials: 1\n  gpus: 1\n  space: {epochs: {int: [1, 3]}}\n", pipeline=text)


def test_settings_that_a_family_does_not_have_are_refused() -> None:
    text = (CHECKOUT / "dags/pipelines/flight_delay.yaml").read_text(encoding="utf-8")
    with pytest.raises(SpecError, match="batch_size has no effect on boosted_trees"):
        spec_with("  trials: 1\n  space: {batch_size: {choices: [32]}}\n", pipeline=text)


@pytest.mark.parametrize(
    ("old", "new", "stages"),
    [
        ("trials: 4", "trials: 5", {"tune"}),
        ("patience: 3", "patience: 4", {"tune"}),
        ("parallel: 2", "parallel: 3", set()),
        ("gpus: 8", "gpus: 9", set()),
        ("seed: 1", "seed: 2", {"trial", "tune"}),
        ("[1e-5, 1e-2]", "[1e-5, 1e-1]", {"trial", "tune"}),
        ("pruner: median", "pruner: none", {"trial", "tune"}),
    ],
)
def test_a_change_of_the_study_is_new_work_for_what_depends_on_it(old: str, new: str, stages: set[str]) -> None:
    tune = f"  trials: 4\n  patience: 3\n  parallel: 2\n  gpus: 8\n  seed: 1\n  pruner: median\n{R128}"
    before, after = spec_with(tune), spec_with(tune.replace(old, new))
    changed = {
        stage for stage in ("trial", *before.stages) if canonical_json(spec_part(before, stage)) != canonical_json(spec_part(after, stage))
    }
    assert changed == stages


@pytest.mark.parametrize(
    ("objective", "key", "stages"),
    [
        ("ndcg@5", "gain: exponential", {"trial", "tune"}),
        ("clicks", "metrics: {clicks: shop_models.metrics:other}", {"trial", "tune"}),
        ("validation_loss", "gain: exponential", set()),
    ],
)
def test_how_the_objective_is_measured_is_part_of_the_study(
    monkeypatch: pytest.MonkeyPatch, objective: str, key: str, stages: set[str]
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_MODEL_PACKAGES", "shop_models")
    tune = f"  trials: 4\n  objective: {objective}\n{R128}"
    own = "evaluate:\n  metrics: {clicks: shop_models.metrics:clicks}" if objective == "clicks" else "evaluate:"
    before = spec_with(tune, pipeline=TEXT.replace("evaluate:", own))
    after = spec_with(tune, pipeline=TEXT.replace("evaluate:", f"evaluate:\n  {key}"))
    assert {stage for stage in ("trial", "tune", "train") if spec_part(before, stage) != spec_part(after, stage)} == stages


def test_a_trigger_searches_a_space_and_an_objective_of_its_own() -> None:
    spec = spec_with(f"  trials: 4\n{R128}")
    changed, _ = apply_overrides(spec, {"tune": {"trials": 2, "objective": "mrr", "space": {"epochs": {"int": [1, 3]}}}})
    assert changed.tune is not None
    assert (changed.tune.trials, changed.tune.objective, list(changed.tune.space)) == (2, "mrr", ["epochs"])
    assert params_schema(spec)["tune"]["default"] == {}
    assert "tune" not in params_schema(parse_spec(TEXT.encode()))


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"tune": {"trails": 2}}, "tune.trails: [conf.unknown_key] unknown key 'trails' (did you mean trials?)"),
        ({"tune": {"trials": 0}}, "tune.trials: [field.range] must be at least 1, got 0"),
        ({"tune": {"space": {"learning_rte": {"float": [0.1, 1.0]}}}}, "did you mean learning_rate?"),
    ],
)
def test_a_triggers_study_is_checked_as_the_files(conf: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        apply_overrides(spec_with(f"  trials: 4\n{R128}"), conf)
    assert said in caught.value.message


def test_a_pipeline_without_a_study_takes_none_from_a_trigger() -> None:
    with pytest.raises(SpecError, match="the pipeline has no study to change"):
        apply_overrides(parse_spec(TEXT.encode()), {"tune": {"trials": 2}})
