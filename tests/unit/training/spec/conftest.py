"""The two shipped pipelines, and what becomes of them when a line is changed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from training.errors import Problem, SpecError
from training.spec import PipelineSpec, load_spec, parse_spec

PIPELINES = Path(__file__).resolve().parents[4] / "dags" / "pipelines"

Change = tuple[str, str]
Refuse = Callable[..., tuple[Problem, ...]]


@pytest.fixture
def pipelines() -> Path:
    return PIPELINES


@pytest.fixture(scope="session")
def ranking() -> PipelineSpec:
    return load_spec(PIPELINES / "search_ranking.yaml")


@pytest.fixture(scope="session")
def flights() -> PipelineSpec:
    return load_spec(PIPELINES / "flight_delay.yaml")


@pytest.fixture
def changed() -> Callable[..., bytes]:
    """Return `changed(pipeline, (old, new)...)`: a shipped YAML with the first `old` of each replaced."""

    def make(pipeline: str, *changes: Change) -> bytes:
        text = (PIPELINES / f"{pipeline}.yaml").read_text(encoding="utf-8")
        for old, new in changes:
            assert old in text, f"{pipeline}.yaml has no {old!r}"
            text = text.replace(old, new, 1)
        return text.encode()

    return make


@pytest.fixture
def refuse(changed: Callable[..., bytes]) -> Refuse:
    """Return `refuse(pipeline, (old, new)...)`: the problems of a shipped YAML so changed."""

    def problems(pipeline: str, *changes: Change) -> tuple[Problem, ...]:
        with pytest.raises(SpecError) as caught:
            parse_spec(changed(pipeline, *changes), "p.yaml")
        return caught.value.problems

    return problems


@pytest.fixture
def accept(changed: Callable[..., bytes]) -> Callable[..., PipelineSpec]:
    """Return `accept(pipeline, (old, new)...)`: the spec of a shipped YAML so changed."""
    return lambda pipeline, *changes: parse_spec(changed(pipeline, *changes), "p.yaml")
