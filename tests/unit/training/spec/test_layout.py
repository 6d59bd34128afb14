"""How so many processes share one model, and which layouts a spec may ask for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from training.errors import Problem
from training.spec import PipelineSpec
from training.spec.layout import Layout, fitted
from training.spec.rules.training import smaller_sizes

Refuse = Callable[..., tuple[Problem, ...]]
Accept = Callable[..., PipelineSpec]
PLACEMENT = "placement: {nodes: 1, processes_per_node: 2}"


@pytest.mark.parametrize(
    ("shard", "world_size", "expected"),
    [
        (4, 8, Layout(data=2, shard=4)),
        (4, 6, Layout(data=3, shard=2)),
        (4, 1, Layout()),
        (2, 3, Layout(data=3)),
        (1, 5, Layout(data=5)),
    ],
)
def test_processes_that_are_left_divide_the_model_as_far_as_they_can(shard: int, world_size: int, expected: Layout) -> None:
    assert fitted(shard=shard, world_size=world_size) == expected
    assert expected.world_size == world_size


@pytest.mark.parametrize(
    ("parallel", "field", "message"),
    [
        ("{shard: 4}", "train.parallel.shard", "nodes * processes_per_node (1 * 2 = 2) must be divisible by shard (4)"),
        ("{data: 2, shard: 2}", "train.parallel.data", "data * shard (2 * 2 = 4) must be nodes * processes_per_node (1 * 2 = 2)"),
        ("{tensor: 4}", "train.parallel.tensor", "nodes * processes_per_node (1 * 2 = 2) must be divisible by tensor (4)"),
        (
            "{shard: 2, tensor: 2}",
            "train.parallel.shard",
            "nodes * processes_per_node (1 * 2 = 2) must be divisible by shard * tensor (2 * 2 = 4)",
        ),
        (
            "{data: 2, tensor: 2}",
            "train.parallel.data",
            "data * shard * tensor (2 * 1 * 2 = 4) must be nodes * processes_per_node (1 * 2 = 2)",
        ),
        (
            "{pipeline: 4}\n  micro_batch_size: 512",
            "train.parallel.pipeline",
            "nodes * processes_per_node (1 * 2 = 2) must be divisible by pipeline (4)",
        ),
        ("{data: 1}", "train.parallel.data", "data * shard (1 * 1 = 1) must be nodes * processes_per_node (1 * 2 = 2)"),
    ],
)
def test_layout_of_another_number_of_processes_is_refused(refuse: Refuse, parallel: str, field: str, message: str) -> None:
    (problem,) = refuse("search_ranking", (PLACEMENT, f"{PLACEMENT}\n  parallel: {parallel}"))
    assert (problem.field, problem.code, problem.message) == (field, "parallel.processes", message)


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        ("{shard: 2}", Layout(shard=2)),
        ("{data: 2}", Layout(data=2)),
        ("{data: 1, shard: 2}", Layout(shard=2)),
        ("{tensor: 2}", Layout(tensor=2)),
    ],
)
def test_layout_follows_from_the_processes(accept: Accept, parallel: str, expected: Layout) -> None:
    train = accept("search_ranking", (PLACEMENT, f"{PLACEMENT}\n  parallel: {parallel}")).train
    assert train.layout_for(train.placement.world_size) == expected


MICRO = "micro_batch_size: 512\n  "


def test_pipeline_of_all_processes_is_a_layout(accept: Accept) -> None:
    train = accept("search_ranking", (PLACEMENT, f"{PLACEMENT}\n  {MICRO}parallel: {{pipeline: 2}}")).train
    assert train.layout_for(2) == Layout(pipeline=2)
    assert train.layout_for(1) == Layout(), "an elastic training goes on without a pipeline"


@pytest.mark.parametrize(
    ("keys", "field", "code", "message"),
    [
        ("parallel: {schedule: gpipe}", "train.parallel.schedule", "field.conflict", "schedule gpipe has no effect: there is one stage"),
        (
            "parallel: {pipeline: 2}",
            "train.micro_batch_size",
            "field.missing",
            "the key micro_batch_size is missing: the stages of a pipeline (2) compute different micro-batches at a time",
        ),
        (
            "micro_batch_size: 4096\n  parallel: {pipeline: 2}",
            "train.micro_batch_size",
            "parallel.micro_batches",
            "a share of the batch has 1 micro-batches (4096 rows of 4096), fewer than pipeline (2)",
        ),
        (
            MICRO + "gradient_compression: fp16\n  parallel: {pipeline: 2}",
            "train.gradient_compression",
            "field.conflict",
            "gradient_compression fp16 is for processes that have the whole model; parallel.pipeline divides it",
        ),
    ],
)
def test_pipeline_that_would_not_work_is_refused(refuse: Refuse, keys: str, field: str, code: str, message: str) -> None:
    (problem,) = refuse("search_ranking", (PLACEMENT, f"{PLACEMENT}\n  {keys}"))
    assert (problem.field, problem.code, problem.message) == (field, code, message)


def test_class_without_a_batch_size_has_the_micro_batches_of_the_default_one(
    accept: Accept, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_MODEL_PACKAGES", "acme")
    keys = f"{PLACEMENT}\n  parallel: {{pipeline: 2}}\n  micro_batch_size"
    own = [("model: ranker", "model: acme.net:Net"), ("  batch_size: 4096\n", "")]
    accept("search_ranking", *own, (PLACEMENT, f"{keys}: 512"))
    (problem,) = refuse("search_ranking", *own, (PLACEMENT, f"{keys}: 1024"))
    assert (problem.field, problem.code) == ("train.micro_batch_size", "parallel.micro_batches")
    assert problem.message == "a share of the batch has 1 micro-batches (1024 rows of 1024), fewer than pipeline (2)"


@pytest.mark.parametrize("key", ["shard", "tensor"])
def test_pipeline_with_layers_that_are_divided_is_refused(refuse: Refuse, key: str) -> None:
    four = "placement: {nodes: 1, processes_per_node: 4}"
    (problem,) = refuse("search_ranking", (PLACEMENT, f"{four}\n  {MICRO}parallel: {{pipeline: 2, {key}: 2}}"))
    assert (problem.field, problem.code) == (f"train.parallel.{key}", "field.conflict")
    assert problem.message == f"pipeline (2) cannot be used with {key} (2): a stage's layers are whole in its process"


def test_processes_that_compute_the_same_rows_get_one_share_of_the_batch(accept: Accept, refuse: Refuse) -> None:
    four = "placement: {nodes: 1, processes_per_node: 4}"
    accept("search_ranking", (PLACEMENT, f"{four}\n  parallel: {{tensor: 2}}"), ("batch_size: 4096", "batch_size: 4098"))
    (problem,) = refuse("search_ranking", (PLACEMENT, f"{four}\n  parallel: {{tensor: 2}}"), ("batch_size: 4096", "batch_size: 4097"))
    assert problem.message == "batch_size (4097) must be divisible by nodes * processes_per_node / tensor (1 * 4 / 2 = 2)"


def elastic(nodes: int, min_nodes: int, parallel: str = "", *, per_node: int = 1) -> str:
    return f"placement: {{nodes: {nodes}, min_nodes: {min_nodes}, processes_per_node: {per_node}}}\n  {parallel}"


@pytest.mark.parametrize(
    ("placement", "sizes"),
    [
        (elastic(4, 1), [2, 1]),
        (elastic(4, 2, "parallel: {shard: 2}"), [2]),
        (elastic(4, 1, "parallel: {shard: 2}"), [2]),
        (elastic(4, 1, "parallel: {shard: 2}", per_node=2), [2, 1]),
        (elastic(8, 1, "parallel: {tensor: 2}"), [4, 2]),
        (elastic(4, 1, "parallel: {tensor: 2}", per_node=2), [2, 1]),
        (elastic(4, 1, "micro_batch_size: 512\n  parallel: {pipeline: 2}"), [2]),
        (elastic(4, 1, "parallel: auto"), [2, 1]),
    ],
)
def test_elastic_training_continues_with_whole_replicas_and_equal_shares(accept: Accept, placement: str, sizes: list[int]) -> None:
    assert smaller_sizes(accept("search_ranking", (PLACEMENT, placement)).train) == sizes


@pytest.mark.parametrize(
    ("placement", "message", "hint"),
    [
        (
            elastic(2, 2),
            "min_nodes (2) must be below nodes (2)",
            "leave it out for a fixed size",
        ),
        (
            elastic(2, 1, "parallel: {shard: 2}"),
            "no number of nodes from 1 to 1 has processes for whole replicas of the model",
            "nodes * processes_per_node of some smaller size must be divisible by shard (2); or remove min_nodes",
        ),
        (
            elastic(4, 3, "parallel: {shard: 2, tensor: 2}"),
            "no number of nodes from 3 to 3 has processes for whole replicas of the model",
            "nodes * processes_per_node of some smaller size must be divisible by shard * tensor (2 * 2 = 4); or remove min_nodes",
        ),
        (
            elastic(4, 3),
            "no number of nodes from 3 to 3 divides batch_size (4096) evenly",
            "batch_size must be divisible by nodes * processes_per_node of some smaller size",
        ),
        (
            elastic(8, 6, "parallel: {tensor: 2}"),
            "no number of nodes from 6 to 7 divides batch_size (4096) evenly",
            "batch_size must be divisible by nodes * processes_per_node / tensor (2) of some smaller size",
        ),
    ],
)
def test_elastic_training_that_could_not_continue_is_refused(refuse: Refuse, placement: str, message: str, hint: str) -> None:
    (problem,) = refuse("search_ranking", (PLACEMENT, placement))
    assert (problem.field, problem.code) == ("train.placement.min_nodes", "resources.elastic")
    assert (problem.message, problem.hint) == (message, hint)


def test_family_that_trains_in_one_process_refuses_a_layout(refuse: Refuse) -> None:
    (problem,) = refuse("flight_delay", ("train:\n", "train:\n  parallel: {shard: 1}\n"))
    assert (problem.field, problem.code) == ("train.parallel", "field.conflict")


def test_processes_that_compute_one_layer_or_one_pipeline_get_the_same_rows() -> None:
    layout = Layout(data=2, shard=1, tensor=2, pipeline=2)
    assert [layout.data_rank(rank) for rank in range(layout.world_size)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert layout.num_data_ranks == 2


@pytest.mark.parametrize(
    ("world_size", "expected"),
    [
        (16, Layout(data=2, shard=2, tensor=2, pipeline=2)),
        (8, Layout(shard=2, tensor=2, pipeline=2)),
        (6, Layout(data=3, tensor=2)),
        (3, Layout(data=3)),
    ],
)
def test_layers_stay_divided_as_long_as_the_number_of_processes_allows(world_size: int, expected: Layout) -> None:
    assert fitted(shard=2, tensor=2, pipeline=2, world_size=world_size) == expected
