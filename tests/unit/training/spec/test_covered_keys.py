"""Frozen specs, and which changes of a spec are new work for which stage."""

import json
from collections.abc import Callable
from typing import cast

import pytest

from training.contracts import canonical_json
from training.errors import SpecError
from training.spec import PipelineSpec, freeze, load_spec, resolve_uris, spec_part
from training.spec.sections.train import Train
from training.stage_table import STAGES

Accept = Callable[..., PipelineSpec]

R, F = "search_ranking", "flight_delay"

CHANGES: list[tuple[str, str, str, set[str]]] = [
    # pipeline, text, its replacement, stages whose work changes
    (R, "owner: search-relevance", "owner: other", set()),
    (R, '"0 2 * * *"', '"0 3 * * *"', set()),
    (R, "failures: 2", "failures: 3", set()),
    (R, "timezone: UTC", "timezone: UTC\ntimeout: {step: 1h, part: 2h}", set()),
    (R, 'deadline: "07:00"', 'deadline: "08:00"', set()),
    (R, "wait: 2h", "wait: 3h", set()),
    (R, "every: 10m", "every: 1m", set()),
    (R, "processes_per_node: 2", "processes_per_node: 1", set()),
    (R, "processes_per_node: 2", "processes_per_node: 2, memory: 8GiB, spot: true, priority: p", set()),
    # Threads can change the bits of the weights.
    (R, "processes_per_node: 2", "processes_per_node: 2, cpus: 4", {"train"}),
    (R, "learning_rate: 2e-2", "learning_rate: 0.02", set()),
    (R, "price: {type: float}", "price: {type: float, nullable: false, known: before}", set()),
    (R, "window: 30d", "window: 720h", set()),
    (F, "because: published", "because: they are published", set()),
    (R, "timezone: UTC", "timezone: Europe/Berlin", {"ingest", "validate", "prepare", "evaluate"}),
    (R, "window: 30d", "window: 31d", {"ingest", "validate", "prepare"}),
    (R, 'clicks"', 'clicks2"', {"ingest"}),
    (R, "suite: search_ranking/clicks", "suite: search_ranking/other", {"validate"}),
    (F, "suite: flight_delay/weather", "suite: flight_delay/other", {"validate"}),
    (R, "freshness: 36h", "freshness: 35h", {"validate"}),
    (R, "freshness: 36h", "freshness: 36h\n  memory: 2GiB", set()),
    (R, "freshness: 36h", "freshness: 36h\n  drift: {action: warn, against: [previous, champion], psi: 0.25, new_categories: 0.05}", set()),
    (R, "freshness: 36h", "freshness: 36h\n  drift: {columns: {price: {action: fail}}}", {"validate"}),
    (R, "freshness: 36h", "freshness: 36h\n  empty_days: [sat, sun]", {"validate"}),
    (F, "freshness: 36h", "freshness: 36h\n  unknown_labels: 0.2", {"validate"}),
    (F, "carrier: {type: string}", "carrier: {type: string, source_name: null}", set()),
    (F, "carrier: {type: string}", "carrier: {type: string, source_name: Carrier}", {"ingest"}),
    (F, "carrier: {type: string}", 'carrier: {type: string, missing: ["?"]}', {"ingest"}),
    (F, "hour: {type: int64, known: after}", "hour: {type: int64, known: after, generated: row_number}", {"ingest"}),
    (R, "shown_at: {type: timestamp}", "shown_at: {type: timestamp, zone: Europe/Berlin}", {"ingest"}),
    (F, "test: 7d}", "test: 7d, end: window}", set()),
    (F, "test: 7d}", "test: 7d, end: labels_complete}", {"ingest", "validate", "prepare"}),
    (F, "test: 7d}", "test: 7d, end: 3d}", {"ingest", "validate", "prepare"}),
    (R, "price: {transform: log}", "price: {transform: standard}", {"prepare"}),
    (F, '"year - built_year"', '"year - built_year + 1"', {"prepare"}),
    (R, "seed: 17", "seed: 18", {"train"}),
    (R, "seed: 17", "seed: 17\n  optimizer: adamw\n  schedule: cosine", set()),
    (R, "seed: 17", "seed: 17\n  optimizer: muon", {"train"}),
    (R, "seed: 17", "seed: 17\n  optimizer: sgd\n  momentum: 0.5", {"train"}),
    (R, "seed: 17", "seed: 17\n  schedule: linear", {"train"}),
    (R, "seed: 17", "seed: 17\n  gradient_compression: none", set()),
    (R, "seed: 17", "seed: 17\n  gradient_compression: fp16", {"train"}),
    (R, "seed: 17", "seed: 17\n  warmup_share: 0.1", {"train"}),
    (R, "seed: 17", "seed: 17\n  refit: none", set()),
    # The training stays the same, and is reused.
    (R, "seed: 17", "seed: 17\n  refit: validation", {"refit"}),
    (R, "hidden: [64, 32]", "hidden: [64, 33]", {"train"}),
    (R, "slice_support: 500", "slice_support: 501", {"evaluate", "promote"}),
    (R, "primary: ndcg@10", "primary: ndcg@5", {"evaluate", "promote"}),
    (R, "approval: automatic", "approval: required", {"promote"}),
    (R, "{model: search_ranking", "{model: other", {"evaluate", "promote"}),
]


def test_every_key_of_the_training_is_part_of_its_work_but_those_that_change_no_weight(accept: Accept) -> None:
    part = spec_part(accept(R), "train")["train"]
    left_out = {"placement", "checkpoint", "activation_checkpointing", "replica_check_steps", "straggler_ratio", "refit"}
    assert set(cast(dict[str, object], part)) == set(Train.model_fields) - left_out


def test_both_schedules_of_a_pipeline_of_stages_are_the_same_training(accept: Accept) -> None:
    """They give the same bits."""
    micro = "seed: 17\n  micro_batch_size: 512\n  parallel: "
    one, other, sharded = (
        spec_part(accept(R, ("seed: 17", micro + words)), "train")
        for words in ("{pipeline: 2, schedule: gpipe}", "{pipeline: 2}", "{shard: 2}")
    )
    assert one == other != sharded


@pytest.mark.parametrize(("pipeline", "old", "new", "stages"), CHANGES, ids=[case[2] for case in CHANGES])
def test_change_of_the_spec_is_new_work_for_these_stages(accept: Accept, pipeline: str, old: str, new: str, stages: set[str]) -> None:
    before, after = accept(pipeline), accept(pipeline, (old, new))
    assert {stage for stage in STAGES if canonical_json(spec_part(before, stage)) != canonical_json(spec_part(after, stage))} == stages


def test_cpus_that_give_the_same_threads_are_the_same_training(accept: Accept) -> None:
    two, also_two = (accept(R, ("processes_per_node: 2", f"processes_per_node: 2, cpus: {cpus}")) for cpus in (4, 5.5))
    assert spec_part(two, "train") == spec_part(also_two, "train")
    assert spec_part(two, "train")["threads"] == 2
    assert spec_part(accept(R), "train")["threads"] is None


def test_unknown_stage_is_refused(ranking: PipelineSpec) -> None:
    with pytest.raises(ValueError, match="there is no stage 'tuning'"):
        spec_part(ranking, "tuning")


@pytest.mark.parametrize("name", [R, F])
def test_frozen_spec_thaws_to_itself_through_the_store(pipelines: object, name: str) -> None:
    spec = resolve_uris(load_spec(f"{pipelines}/{name}.yaml"), {"SHOP_URI": "/shop", "FLIGHTS_URI": "s3://flights"})
    thawed = PipelineSpec.thaw(json.loads(canonical_json(freeze(spec))))
    assert thawed == spec
    assert all(spec_part(thawed, stage) == spec_part(spec, stage) for stage in STAGES)


def test_equal_meaning_is_equally_frozen(accept: Accept, ranking: PipelineSpec) -> None:
    other = accept(
        R,
        ("learning_rate: 2e-2", "learning_rate: .02"),
        ("36h", "1d12h"),
        ("every: 10m", "every: 600s"),
        ("tags: [ranking", 'tags: ["ranking"'),
    )
    assert canonical_json(freeze(other)) == canonical_json(freeze(ranking))


def test_newer_format_is_refused_in_words(ranking: PipelineSpec) -> None:
    with pytest.raises(SpecError) as caught:
        PipelineSpec.thaw({**freeze(ranking), "format_version": 2})
    assert caught.value.message == "frozen spec: [spec.format] frozen spec has format 2, this version reads up to 1 (upgrade Nightshift)"


def test_frozen_spec_that_lacks_a_part_is_refused(ranking: PipelineSpec) -> None:
    frozen = freeze(ranking)
    del frozen["train"]["model"]
    with pytest.raises(SpecError) as caught:
        PipelineSpec.thaw(frozen)
    assert (
        caught.value.message
        == "frozen spec: [spec.format] frozen spec does not hold what this version reads: train.model (start a new run)"
    )


def test_spec_cannot_be_changed(ranking: PipelineSpec) -> None:
    with pytest.raises(ValueError, match="frozen"):
        ranking.train.epochs = 1  # type: ignore[misc]


def test_page_of_a_canary_is_made_again_where_the_rules_of_its_decision_changed(accept: Accept) -> None:
    parts = [
        spec_part(
            accept(R, ("approval: automatic", f"approval: automatic, canary: {{for: 3d, support: 100, tolerance: {tolerance}}}")), "canary"
        )
        for tolerance in (0.0, 0.1)
    ]
    assert parts[0] != parts[1]
