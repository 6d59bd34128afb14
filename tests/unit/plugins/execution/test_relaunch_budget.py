"""The rule of relaunches: one for all backends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nightshift.execution.attempt_end import Action, AttemptEnd, StageEndedError
from nightshift.execution.relaunch_budget import Relaunches, next_relaunch
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, load_spec

LOST = AttemptEnd(action=Action.RELAUNCH, reason="killed by SIGKILL", code="process.killed")
OUT_OF_MEMORY = AttemptEnd(action=Action.RELAUNCH_ONCE, reason="out of memory", code="pod.oom", report_uri="file:///report")


@pytest.fixture(scope="module")
def ranking() -> PipelineSpec:
    return load_spec(CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml")


def with_budget(spec: PipelineSpec, infrastructure: int) -> PipelineSpec:
    return spec.model_copy(update={"retries": spec.retries.model_copy(update={"infrastructure": infrastructure})})


def test_a_lost_attempt_is_relaunched_as_often_as_the_budget_allows_with_growing_pauses(ranking: PipelineSpec) -> None:
    spec, done, pauses, words = with_budget(ranking, 12), Relaunches(), [], []
    for _ in range(12):
        relaunch = next_relaunch(LOST, done, spec, "train")
        done = done.with_one(relaunch)
        pauses.append(relaunch.pause_seconds)
        words.append(relaunch.words)
    assert pauses == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10]
    assert (words[0], words[-1]) == ("relaunch 1 of 12: killed by SIGKILL", "relaunch 12 of 12: killed by SIGKILL")
    with pytest.raises(StageEndedError) as caught:
        next_relaunch(LOST, done, spec, "train")
    assert caught.value.end == replace(
        LOST, action=Action.FAIL, reason="killed by SIGKILL; relaunched 12 times already (retries.infrastructure)"
    )


def test_out_of_memory_is_relaunched_once_even_when_the_budget_is_0(ranking: PipelineSpec) -> None:
    relaunch = next_relaunch(OUT_OF_MEMORY, Relaunches(), with_budget(ranking, 0), "train")
    assert (relaunch.cause, relaunch.pause_seconds) == ("memory", 0.0)
    assert Relaunches().with_one(relaunch) == Relaunches(memory=1)


def test_out_of_memory_takes_nothing_of_the_infrastructure_budget(ranking: PipelineSpec) -> None:
    spec, done = with_budget(ranking, 1), Relaunches(memory=1)
    relaunch = next_relaunch(LOST, done, spec, "train")
    assert done.with_one(relaunch) == Relaunches(infrastructure=1, memory=1)


@pytest.mark.parametrize(
    ("stage", "advice"),
    [
        ("train", r"\(batch_size 4096, 2 processes, placement.memory none: use a smaller batch or more memory\)"),
        ("ingest", r"\(use a shorter data.source.window, or a machine with more memory\)"),
    ],
)
def test_second_out_of_memory_fails_with_the_sizes_of_the_stage(ranking: PipelineSpec, stage: str, advice: str) -> None:
    with pytest.raises(StageEndedError, match=f"out of memory; twice, so it is not retried {advice}") as caught:
        next_relaunch(OUT_OF_MEMORY, Relaunches(memory=1), ranking, stage)
    assert (caught.value.end.action, caught.value.end.report_uri) == (Action.FAIL, "file:///report")


@pytest.mark.parametrize("action", [Action.FAIL, Action.RETRY, Action.GIVE_UP])
def test_an_end_that_is_not_a_relaunch_ends_the_work_as_it_is(ranking: PipelineSpec, action: Action) -> None:
    end = replace(LOST, action=action)
    with pytest.raises(StageEndedError) as caught:
        next_relaunch(end, Relaunches(), ranking, "train")
    assert caught.value.end is end


def test_work_that_another_task_holds_is_a_relaunch_for_a_backend_that_cannot_wait(ranking: PipelineSpec) -> None:
    relaunch = next_relaunch(replace(LOST, action=Action.WAIT), Relaunches(), ranking, "train")
    assert relaunch.cause == "infrastructure"
