"""The kill harness draws the same disturbances for a seed, holds every pair of role and action, and knows processes by their place."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.chaos.disturbances import (
    MOMENTS,
    MOMENTS_OF,
    STARTING,
    TRAINING,
    Action,
    ProcessRow,
    Role,
    disturbed_nights,
    roles_of,
)

COMPONENTS = {"scheduler": 10, "dag-processor": 11, "api-server": 12, "triggerer": 13, "mlflow": 14}
SUPERVISOR, COMMAND = 5, 4
STAGE_COMMAND = "python -m training.stages.train file:///store/stages/p/train/f/attempts/a/_REQUEST.json"
ROWS = [
    ProcessRow(SUPERVISOR, 1, "python -m devstack supervise"),
    *(ProcessRow(pid, SUPERVISOR, f"python -m {name}") for name, pid in COMPONENTS.items()),
    ProcessRow(20, 10, "airflow worker -- LocalExecutor: <idle>"),
    ProcessRow(21, 10, "airflow worker -- LocalExecutor: 01a2"),
    ProcessRow(22, 21, "airflow worker -- 01a2"),
    ProcessRow(15, 1, "python -m training.runtime.template 13"),
    ProcessRow(23, 15, f"python -m training.runtime.torchrun --nproc-per-node=2 -m {STAGE_COMMAND}"),
    *(ProcessRow(pid, 23, f"python -m training.runtime.torchrun --nproc-per-node=2 -m {STAGE_COMMAND}", is_rank=True) for pid in (24, 25)),
    ProcessRow(30, 13, "python -m airflow triggerer"),
    ProcessRow(31, 14, "python -m uvicorn"),
    ProcessRow(32, 11, "a parser of DAG files"),
]


def test_same_seed_draws_the_same_nights_and_another_seed_others() -> None:
    first, again, other = (list(islice(disturbed_nights(seed), 30)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("seed", range(5))
def test_thirty_nights_hold_every_pair_of_role_and_action(seed: int) -> None:
    drawn = [one for night in islice(disturbed_nights(seed), 30) for one in night]
    assert {(one.role, one.action) for one in drawn} == {(role, action) for role in Role for action in Action}


def test_disturbances_of_a_night_are_in_the_order_of_moments_at_which_their_roles_have_processes() -> None:
    for night in islice(disturbed_nights(3), 200):
        assert [MOMENTS.index(one.moment) for one in night] == sorted(MOMENTS.index(one.moment) for one in night)
        for one in night:
            assert one.moment in MOMENTS_OF.get(one.role, MOMENTS)
            assert (one.stop_seconds > 0) == (one.action is Action.STOP)
            assert (one.first_steps > 0) == (one.moment == TRAINING)


def test_services_are_disturbed_while_they_start_and_what_a_task_needs_is_not() -> None:
    starting = {one.role for night in islice(disturbed_nights(4), 500) for one in night if one.moment == STARTING}
    assert {Role.SUPERVISOR, Role.SCHEDULER, Role.API_SERVER, Role.COMMAND} <= starting
    assert not starting & {Role.WORKER, Role.TASK, Role.TEMPLATE, Role.STAGE, Role.LAUNCHER, Role.RANK}


def test_processes_of_an_installation_are_known_by_role() -> None:
    found = roles_of(ROWS, COMPONENTS, supervisor_pid=SUPERVISOR, command_pid=COMMAND)
    every = [row.pid for row in ROWS]
    assert found == {
        Role.COMMAND: [COMMAND],
        Role.SUPERVISOR: [SUPERVISOR],
        Role.SCHEDULER: [10],
        Role.DAG_PROCESSOR: [11],
        Role.API_SERVER: [12],
        Role.TRIGGERER: [13],
        Role.TRIGGERER_CHILD: [30],
        Role.MLFLOW: [14],
        Role.MLFLOW_CHILD: [31],
        Role.IDLE_WORKER: [20],
        Role.WORKER: [21],
        Role.TASK: [22],
        Role.TEMPLATE: [15],
        Role.LAUNCHER: [23],
        Role.RANK: [24, 25],
        Role.ALL: every,
        Role.ALL_AND_COMMAND: [*every, COMMAND],
    }


def test_stage_without_torchrun_is_a_stage() -> None:
    rows = [*ROWS[:10], ProcessRow(23, 15, STAGE_COMMAND)]
    found = roles_of(rows, COMPONENTS, supervisor_pid=SUPERVISOR, command_pid=COMMAND)
    assert found[Role.STAGE] == [23]
    assert Role.RANK not in found


def test_ended_process_has_no_role_even_if_the_state_file_names_it() -> None:
    found = roles_of([ROWS[0]], COMPONENTS, supervisor_pid=SUPERVISOR, command_pid=None)
    assert found == {Role.SUPERVISOR: [SUPERVISOR], Role.ALL: [SUPERVISOR]}
