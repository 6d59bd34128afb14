"""`nightshift layout`: the plan in words and as JSON, the exit codes, and the choice of `parallel: auto` in a gang."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from training.engine.parallel.gang import Gang
from training.models import planned
from training.models.layout import main
from training.models.planned import chosen_layout, planned_features
from training.spec import load_spec, parse_spec
from training.spec.layout import Layout

PIPELINES = Path(__file__).resolve().parents[4] / "dags" / "pipelines"
RANKING = PIPELINES / "search_ranking.yaml"
SMALL = [f"--cardinality={name}=500" for name in ("user_id", "query_id", "item_id", "category_id", "position")]


def test_plan_names_layout_memory_and_assumptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(RANKING), "--devices", "2xcpu"]) == 0
    text = capsys.readouterr().out
    assert "layout    data 2 x shard 1" in text
    assert "memory per process" in text
    assert "1,000,001 ids each, as many as the transform category allows" in text
    assert "a group has 16 rows" in text


def test_numbers_of_ids_make_the_planned_model_smaller(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(RANKING), "--devices", "2xcpu", "--json", *SMALL]) == 0
    small = json.loads(capsys.readouterr().out)
    assert small["fits"]
    assert small["parameters"] < 100_000


def test_model_without_a_layout_that_fits_exits_as_a_wrong_spec(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(RANKING), "--devices", "1xcpu", "--memory", "64MiB", "--json"]) == 64
    found = json.loads(capsys.readouterr().out)
    assert not found["fits"]
    assert found["memory_bytes"]["parameters"] > found["usable_bytes"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["flight_delay.yaml", "--devices", "2xcpu"], "layout.family"),
        (["search_ranking.yaml", "--devices", "2xabacus"], "layout.devices"),
        (["search_ranking.yaml", "--devices", "2xcpu", "--memory", "1MiB"], "layout.devices"),
        (["search_ranking.yaml", "--devices", "2xcpu", "--cardinality", "price=3"], "layout.cardinality"),
        (["search_ranking.yaml", "--devices", "2xcpu", "--cardinality", "user_id"], "layout.cardinality"),
    ],
)
def test_wrong_argument_is_refused_with_its_code(capsys: pytest.CaptureFixture[str], arguments: list[str], code: str) -> None:
    assert main([str(PIPELINES / arguments[0]), *arguments[1:]]) == 64
    assert f"[{code}]" in capsys.readouterr().err


@pytest.mark.parametrize(("memory", "expected"), [(8 << 30, Layout(data=2)), (40 << 20, Layout(shard=2))])
def test_auto_divides_the_model_only_where_a_process_has_too_little_memory(
    monkeypatch: pytest.MonkeyPatch, memory: int, expected: Layout
) -> None:
    text = RANKING.read_text(encoding="utf-8")
    spec = parse_spec(text.replace("  precision: auto", "  parallel: auto\n  precision: fp32").encode())
    features, _ = planned_features(spec, {name: 30_000 for name in ("user_id", "query_id", "item_id", "category_id", "position")})
    monkeypatch.setattr(planned, "_memories", lambda gang, processes: [memory * 4, memory])
    # A gang of one answers as rank 0 of two: the text goes to nobody.
    gang = Gang(0, 2, torch.device("cpu"))
    monkeypatch.setattr(Gang, "text_from_first", lambda self, text: text)
    assert chosen_layout(spec, gang, features, rows_of_a_group=16) == expected


def test_layout_that_the_spec_names_is_not_planned() -> None:
    text = RANKING.read_text(encoding="utf-8")
    spec = parse_spec(text.replace("  precision: auto", "  parallel: {shard: 2}\n  precision: fp32").encode())
    assert chosen_layout(spec, Gang(0, 2, torch.device("cpu")), []) == Layout(shard=2)
    assert chosen_layout(load_spec(RANKING), Gang(0, 2, torch.device("cpu")), []) == Layout(data=2)
