"""What follows an attempt that left no result."""

from dataclasses import replace
from typing import Any

import pytest

from nightshift.execution.attempt_end import MAX_TEXT_CHARS, TEMPLATE_LOST, Action, Ended, judge

GANG_LOST = "a process of the stage was lost (exit code 1, no error file)"


def ended(exit_code: int, *, oom_killed: bool = False) -> Ended:
    return Ended(exit_code=exit_code, seconds=1.0, oom_killed=oom_killed)


def error(exit_code: int, code: str = "some.code", **more: Any) -> dict[str, Any]:
    return {"exit_code": exit_code, "code": code, "message": "what went wrong", **more}


@pytest.mark.parametrize(
    ("exit_code", "action"),
    [
        (64, Action.FAIL),
        (65, Action.FAIL),
        (70, Action.FAIL),
        (71, Action.RELAUNCH_ONCE),
        (74, Action.RETRY),
        (75, Action.RELAUNCH),
        (76, Action.FAIL),
        (77, Action.FAIL),
        (1, Action.RETRY),
    ],
)
def test_the_error_file_decides(exit_code: int, action: Action) -> None:
    # torchrun ends with 1 whatever its workers ended with.
    for process_code in (exit_code, 1):
        end = judge(ended(process_code), error(exit_code))
        assert (end.action, end.reason, end.code) == (action, "[some.code] what went wrong", "some.code")


@pytest.mark.parametrize(
    ("exit_code", "oom_killed", "action", "reason"),
    [
        (64, False, Action.FAIL, "exit code 64"),
        (71, False, Action.RELAUNCH_ONCE, "exit code 71"),
        (74, False, Action.RETRY, "exit code 74"),
        (75, False, Action.RELAUNCH, "exit code 75"),
        (2, False, Action.RETRY, "exit code 2"),
        (1, False, Action.RELAUNCH, GANG_LOST),
        (0, False, Action.RELAUNCH, "ended with success and left no result"),
        (137, False, Action.RELAUNCH, "killed by SIGKILL"),
        (143, False, Action.RELAUNCH, "killed by SIGTERM"),
        (139, False, Action.RELAUNCH, "killed by SIGSEGV"),
        (137, True, Action.RELAUNCH_ONCE, "out of memory: killed by the kernel"),
        (1, True, Action.RELAUNCH_ONCE, "out of memory: killed by the kernel"),
        (143, True, Action.RELAUNCH, "killed by SIGTERM"),
        (75, True, Action.RELAUNCH, "exit code 75"),
    ],
)
def test_without_an_error_file_the_process_decides(exit_code: int, oom_killed: bool, action: Action, reason: str) -> None:
    end = judge(ended(exit_code, oom_killed=oom_killed), None)
    assert (end.action, end.reason) == (action, reason)


def test_kill_for_memory_counts_as_such_where_another_rank_reports_only_that_it_lost_the_killed_one() -> None:
    end = judge(ended(1, oom_killed=True), error(75, "peer.lost"))
    assert (end.action, end.code) == (Action.RELAUNCH_ONCE, "memory.killed")
    assert end.reason == "out of memory: killed by the kernel; [peer.lost] what went wrong"
    assert judge(ended(1), error(75, "peer.lost")).action is Action.RELAUNCH
    assert judge(ended(1, oom_killed=True), error(65)).action is Action.FAIL


def test_stage_that_ended_with_its_template_starts_again_unless_it_had_failed_or_memory_ran_out() -> None:
    lost = replace(ended(137), code=TEMPLATE_LOST)
    assert judge(lost, None).action is Action.AGAIN
    assert judge(lost, error(75, "peer.lost")).action is Action.AGAIN
    assert judge(lost, error(65)).action is Action.FAIL
    assert judge(replace(lost, oom_killed=True), None).action is Action.RELAUNCH_ONCE


def test_leases_have_ways_of_their_own() -> None:
    assert judge(ended(75), error(75, "lease.held")).action is Action.WAIT
    assert judge(ended(75), error(75, "lease.lost")).action is Action.GIVE_UP


def test_the_text_is_bounded_and_has_the_remedy() -> None:
    assert judge(ended(65), error(65, hint="put it back")).reason == "[some.code] what went wrong (put it back)"
    assert len(judge(ended(65), error(65) | {"message": "x" * 100_000}).reason) <= MAX_TEXT_CHARS + 2
