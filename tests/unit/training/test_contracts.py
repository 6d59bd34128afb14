"""Requests, results, work ids."""

import dataclasses
import json
import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.contracts import (
    MAX_RESULT_BYTES,
    ContractError,
    RunIdentity,
    StageRequest,
    StageResult,
    canonical_json,
    instant_of,
    instant_text,
    json_number,
    require_result,
    work_id,
)

RUN = RunIdentity(dag_id="p", run_id="manual__1", task_id="train", try_number=2)
RESULT = StageResult(
    pipeline="p",
    stage="train",
    work_id="f" * 64,
    artifact_uri="file:///s/manifests/sha256/aa/aa.json",
    digest="a" * 64,
    run=RUN,
    attempt_id="1",
    attempts=1,
    committed_at="2026-01-01T00:00:00+00:00",
    scalars={"auc": 0.5},
    timings={"total": 1.0},
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3),
    max_leaves=8,
)


def print_of(**changes: object) -> str:
    values = {"spec_part": {"a": 1}, "code_version": "c", "inputs": {"x": "y"}, "nonce": ""} | changes
    return work_id("train", **values)  # type: ignore[arg-type]


@given(JSON)
def test_canonical_json_survives_a_round_trip_and_ignores_key_order(value: object) -> None:
    text = canonical_json(value)
    assert canonical_json(json.loads(text)) == text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, b"x"])
def test_what_is_not_json_is_refused(value: object) -> None:
    with pytest.raises(ContractError, match="canonical JSON"):
        canonical_json({"x": value})


def test_equal_work_has_an_equal_work_id() -> None:
    assert work_id("train", spec_part={"a": 1, "b": 2}, code_version="c", inputs={}) == work_id(
        "train", spec_part={"b": 2, "a": 1}, code_version="c", inputs={}
    )


@pytest.mark.parametrize("change", [{"spec_part": {"a": 2}}, {"code_version": "d"}, {"inputs": {"x": "z"}}, {"nonce": "run"}])
def test_anything_the_work_depends_on_changes_the_work_id(change: dict[str, object]) -> None:
    assert print_of() != print_of(**change)


def test_request_survives_a_round_trip() -> None:
    request = StageRequest(
        pipeline="p",
        stage="train",
        work_id="f" * 64,
        attempt_id="1",
        store_uri="file:///s",
        spec_uri="file:///s/objects/sha256/ab/ab",
        as_of=datetime(2026, 1, 1, tzinfo=UTC),
        inputs={"dataset": "u"},
        run=RUN,
        parameters={"champion": None},
    )
    assert StageRequest.from_json(request.to_json()) == request


def test_result_survives_xcom() -> None:
    assert require_result(RESULT.to_xcom(), stage="train") == RESULT


def test_reused_result_names_its_maker() -> None:
    again = require_result(RESULT.as_reused().to_xcom(), stage="train")
    assert again.reused_from == RUN


@pytest.mark.parametrize("value", [None, {}, "", [], "file:///uri"])
def test_missing_result_is_an_error_that_names_the_stage(value: object) -> None:
    with pytest.raises(ContractError, match="stage 'prepare' left no result"):
        require_result(value, stage="prepare")


def test_result_of_another_stage_is_refused() -> None:
    with pytest.raises(ContractError, match="expected the result of stage 'prepare', got that of 'train'"):
        require_result(RESULT.to_xcom(), stage="prepare")


def test_newer_format_is_refused_in_words() -> None:
    with pytest.raises(ContractError, match="format 2, this version reads up to 1"):
        require_result(RESULT.to_xcom() | {"format_version": 2}, stage="train")
    with pytest.raises(ContractError, match="format 9"):
        StageResult.from_json(json.dumps(RESULT.to_xcom() | {"format_version": 9}).encode())


def test_large_result_is_refused() -> None:
    large = dataclasses.replace(RESULT, scalars={"text": "x" * MAX_RESULT_BYTES})
    with pytest.raises(ContractError, match="XCom carries digests and URIs"):
        large.to_xcom()


def test_non_finite_scalar_becomes_a_word_and_not_invalid_json() -> None:
    assert dataclasses.replace(RESULT, scalars={"auc": float("nan")}).to_xcom()["scalars"]["auc"] == "nan"


@pytest.mark.parametrize(
    ("value", "written"),
    [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"), (0.5, 0.5), (3, 3), (None, None), ("auc", "auc"), (True, True)],
)
def test_number_that_is_not_finite_is_a_word_in_json_and_anything_else_unchanged(value: object, written: object) -> None:
    assert json_number(value) == written


@given(st.datetimes(timezones=st.timezones()))
def test_an_instant_is_read_back_from_its_text(instant: datetime) -> None:
    found = instant_of(instant_text(instant))
    assert (found.replace(tzinfo=None), found.utcoffset()) == (instant.replace(tzinfo=None), instant.utcoffset())


@pytest.mark.parametrize(
    ("text", "said"), [("2026-02-01T02:00:00", "has no offset"), ("2026-02-01", "has no offset"), ("today", "no date-time")]
)
def test_text_without_an_offset_or_a_time_is_no_instant(text: str, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        instant_of(text)
