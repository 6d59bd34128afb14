from __future__ import annotations

import pytest

from training.errors import SpecError
from training.runtime.available_memory import memory_limit_bytes
from training.runtime.stage_memory import ENGINE_SHARE, LEAST_ENGINE_BYTES, STAGE_MEMORY, engine_memory_bytes, stage_memory_bytes

GIB = 2**30


def test_a_stage_plans_with_half_of_the_memory_unless_it_is_told_otherwise() -> None:
    assert stage_memory_bytes({}) == memory_limit_bytes() // 2
    assert stage_memory_bytes({STAGE_MEMORY.name: "3GiB"}) == 3 * GIB


def test_queries_get_their_share_of_the_stage_but_enough_to_sort() -> None:
    assert engine_memory_bytes({STAGE_MEMORY.name: "1GiB"}) == int(ENGINE_SHARE * GIB)
    assert engine_memory_bytes({STAGE_MEMORY.name: "16MiB"}) == LEAST_ENGINE_BYTES


def test_a_value_that_is_not_a_size_is_refused_by_name() -> None:
    with pytest.raises(SpecError) as refused:
        stage_memory_bytes({STAGE_MEMORY.name: "much"})
    problem = refused.value.problems[0]
    assert (problem.code, problem.field) == ("resources.memory", "NIGHTSHIFT_STAGE_MEMORY")
