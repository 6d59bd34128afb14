"""Which nodes a relaunch leaves out, and when it must not."""

from __future__ import annotations

from typing import Any

from nightshift.execution.kubernetes.slow_nodes import MAX_NODES, NOTHING, Avoidance, avoidance
from nightshift.execution.kubernetes.status import LaunchStatus
from training.store.launches import LaunchRecord

EVICTED = LaunchStatus(phase="ended", code="pod.preempted")
UNPLACED = LaunchStatus(phase="ended", code="gang.unplaced")


def launch(nodes: tuple[str, ...] = (), tries: int = 0) -> LaunchRecord:
    return LaunchRecord(
        attempt_id="1",
        request_uri="u",
        name="n",
        nodes=4,
        spot=False,
        cause="first",
        owner="o",
        try_number=1,
        generation="0",
        avoided_nodes=nodes,
        avoidance_tries=tries,
    )


def found(last: LaunchRecord | None, *named: str, ended: LaunchStatus = EVICTED, **changes: Any) -> Avoidance:
    return avoidance(last, ended, named, **{"cause": "infrastructure", "may_shrink": True, "relaunches_left": 5, **changes})


def test_nothing_is_left_out_where_nobody_was_named() -> None:
    assert found(launch()) == found(None, "b") == found(launch(), "") == NOTHING


def test_nodes_add_up_over_launches_without_repetition_and_up_to_a_limit() -> None:
    assert found(launch(("a", "b"), 1), "b", "c") == Avoidance(nodes=("a", "b", "c"), tries=1)
    many = found(launch(tuple(f"n{number}" for number in range(MAX_NODES))), "b").nodes
    assert (len(many), many[-1]) == (MAX_NODES, "b")


def test_node_is_excluded_in_two_launches_that_find_no_place_and_then_taken_again() -> None:
    assert found(launch(("b",), 1), ended=UNPLACED) == Avoidance(nodes=("b",), tries=2)
    assert found(launch(("b",), 2), ended=UNPLACED) == NOTHING
    assert found(launch(("b",), 2), ended=EVICTED) == Avoidance(nodes=("b",), tries=1), "it had found its place"


def test_preferring_others_goes_on_where_no_place_is_found_for_another_reason() -> None:
    assert found(launch(("b",), 0), ended=UNPLACED, may_shrink=False) == Avoidance(nodes=("b",), tries=0)


def test_others_are_only_preferred_where_no_smaller_size_or_no_relaunch_is_left() -> None:
    assert found(launch(), "b", may_shrink=False) == Avoidance(nodes=("b",), tries=0)
    assert [found(launch(), "b", relaunches_left=left).tries for left in (0, 1, 2)] == [0, 0, 1]
    assert [found(launch(("b",), 1), ended=UNPLACED, relaunches_left=left).tries for left in (0, 1)] == [0, 2]


def test_cleared_task_may_use_all_nodes_again() -> None:
    assert found(launch(("b",), 1), "c", cause="again") == NOTHING
