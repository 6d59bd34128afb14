"""The record of an evaluation: what is written is read back, and a damaged file is refused with its place."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from tests.unit.training.registry.good_evaluation import BETTER, BLOCKS, GOOD, without
from training.contracts import canonical_json
from training.errors import DataError
from training.evaluation import record as evaluation_record
from training.evaluation.record import EvaluationRecord, Part


def test_a_file_is_read_and_written_back_byte_for_byte() -> None:
    data = canonical_json({**GOOD, "comparison": {**GOOD["comparison"], "low": "-inf", "probability": "nan"}})
    record = EvaluationRecord.read(data)
    assert record.comparison is not None
    assert record.comparison.low == -math.inf
    assert record.comparison.probability is not None
    assert math.isnan(record.comparison.probability)
    assert record.to_bytes() == data


def test_what_was_not_measured_is_absent_and_a_part_of_a_measurement_is_damaged() -> None:
    record = EvaluationRecord.of({"baselines": {}})
    assert (record.metrics, record.slices, record.fairness, record.checks) == ({}, (), {}, None)
    assert record.baselines is not None
    assert record.baselines.best_entry is None
    with pytest.raises(DataError, match=r"comparison\.low: Field required"):
        EvaluationRecord.of(without(("comparison", "low")))


def test_keys_that_this_version_does_not_know_are_ignored_at_every_level() -> None:
    more = {**GOOD, "tomorrow": 1, "checks": {**GOOD["checks"], "mood": "good", "drift": {"psi": 0.03, "kl": 0.1}}}
    assert EvaluationRecord.of(more) == EvaluationRecord.of(GOOD)


@pytest.mark.parametrize(
    ("changes", "place", "value"),
    [
        ({"metrics": {"auc": True}}, "metrics.auc", "True is not a number"),
        ({"metrics": {"auc": "0.5"}}, "metrics.auc", "'0.5' is neither a number nor one of nan, inf, -inf"),
        ({"metrics": {"auc": 10**400}}, "metrics.auc", "an integer beyond all floats"),
        ({"metrics": []}, "metrics", "valid dictionary"),
        ({"comparison": {**BETTER, "blocks": {**BLOCKS, "num_blocks": "14"}}}, "comparison.blocks.num_blocks", "valid integer"),
        (
            {"slices": [{**GOOD["slices"][0], "is_small": "no"}]},
            "slices.0.is_small",
            "valid boolean",
        ),
        ({"candidate": {"weights_digest": ["own"]}}, "candidate.weights_digest", "valid string"),
        ({"champion": {**GOOD["champion"], "as_of": 5}}, "champion.as_of", "5 is no date-time"),
        ({"format_version": "2"}, "format_version", "valid integer"),
        ({"format_version": 0}, "format_version", "greater than or equal to 1"),
    ],
)
def test_a_damaged_file_is_refused_with_code_file_place_and_value(changes: dict[str, Any], place: str, value: str) -> None:
    with pytest.raises(DataError) as caught:
        EvaluationRecord.of({**GOOD, **changes}, where="metrics.json of sha256:07ab")
    assert caught.value.code == "evaluation.damaged"
    assert "metrics.json of sha256:07ab is damaged" in caught.value.message
    assert f"{place}: " in caught.value.message
    assert value in caught.value.message
    assert "evaluate again" in caught.value.hint


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"text"', b"\xff", pytest.param(b"[" * 200_000, id="deep")])
def test_what_is_not_a_json_object_is_damaged(data: bytes) -> None:
    with pytest.raises(DataError, match=r"metrics\.json is damaged") as caught:
        EvaluationRecord.read(data)
    assert caught.value.code == "evaluation.damaged"


def test_many_problems_of_a_file_are_counted_and_the_first_ones_named() -> None:
    with pytest.raises(DataError, match=r"metrics\.m4: .*; and 3 more"):
        EvaluationRecord.of({"metrics": {f"m{number}": [] for number in range(8)}})


def test_a_newer_format_is_refused_in_words() -> None:
    with pytest.raises(DataError, match="has format 2, this version reads up to 1") as caught:
        EvaluationRecord.read(canonical_json({**GOOD, "format_version": 2}))
    assert (caught.value.code, caught.value.hint) == ("evaluation.newer", "upgrade Nightshift")


def test_no_field_of_the_record_is_untyped() -> None:
    """Neither Any nor a mapping of it."""
    tables = [kind for _, kind in inspect.getmembers(evaluation_record, inspect.isclass) if issubclass(kind, Part)]
    assert len(tables) > 15
    for table in tables:
        hints = {name: get_type_hints(table)[name] for name in table.model_fields}
        assert [name for name, hint in hints.items() if "Any" in str(hint)] == []


def test_reading_a_record_imports_no_library_of_the_work() -> None:
    code = "import sys, training.evaluation.record; print(*sorted({'numpy', 'pandas', 'torch', 'sqlalchemy', 'mlflow'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(evaluation_record.__file__).parents[2]
    )
    assert done.stdout.strip() == ""
