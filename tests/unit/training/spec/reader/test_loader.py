"""What is wrong with a pipeline's YAML, in the exact words that its author reads."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.training.spec.problem_texts import CASES, EPOCHS, LR, NAMED, SCHEDULE, R
from tests.unit.training.spec.problem_texts_of_data import DATA_CASES
from training.contracts import ExitCode
from training.errors import Problem, SpecError
from training.spec import PipelineSpec, load_spec, parse_spec
from training.spec.descriptors.families import trained_families

Changed = Callable[..., bytes]
EVERY_CASE = [*CASES, *DATA_CASES]


@pytest.mark.parametrize(("pipeline", "old", "new", "expected"), EVERY_CASE, ids=[f"{case[0][0]}{i}" for i, case in enumerate(EVERY_CASE)])
def test_problem_is_shown_in_these_words_at_its_key(changed: Changed, pipeline: str, old: str, new: str, expected: str) -> None:
    text = changed(pipeline, (old, new))
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "p.yaml")
    (problem,) = caught.value.problems
    assert problem.render("p.yaml").split(": ", 1)[1] == expected
    assert problem.line is not None
    assert problem.column is not None
    at = text.decode().splitlines()[problem.line - 1][problem.column - 1 :]
    key = problem.field.rsplit(".", 1)[-1]
    parent = problem.field.rsplit(".", 2)[-2] if "." in problem.field else ""
    assert at.startswith(parent if problem.code == "field.missing" else key) or key.endswith("]")


def test_all_codes_of_the_table_are_many() -> None:
    assert len({case[3].split("[", 1)[1].split("]")[0].split("[")[-1] for case in EVERY_CASE}) >= 25


def test_all_problems_are_reported_at_once_in_the_order_of_the_lines(refuse: Callable[..., tuple[Problem, ...]]) -> None:
    problems = refuse(
        R,
        (NAMED, "name: A"),
        (SCHEDULE, "never"),
        ("window: 30d", "window: x"),
        (LR, "learning_rate: 0"),
        ("[category_id]", "[x]"),
        (EPOCHS, "epochs: 1\n  epochs: 2"),
    )
    found = [problem.code for problem in problems]
    assert found == ["name.invalid", "schedule.invalid", "duration.invalid", "spec.duplicate_key", "field.range"]
    lines = [problem.line for problem in problems]
    assert lines == sorted(lines)


def test_rules_over_sound_sections_speak_although_another_section_is_broken(refuse: Callable[..., tuple[Problem, ...]]) -> None:
    problems = refuse(R, ("approval: automatic", "approval: never"), ("test: 2d", "test: 40d"), ("batch_size: 4096", "batch_size: 97"))
    assert [problem.code for problem in problems] == ["split.window", "batch.indivisible", "field.choice"]


def test_value_refused_in_the_text_is_not_refused_again(refuse: Callable[..., tuple[Problem, ...]]) -> None:
    problems = refuse(R, ("seed: 17", "seed: *x"), ("price: {transform: log}", "price: &p {transform: log}"), (EPOCHS, "epochs: !!int 3"))
    assert [problem.code for problem in problems] == ["spec.alias", "spec.alias", "spec.tag"]


@pytest.mark.parametrize(("spelling", "value"), [("1e-3", 0.001), ("0.001", 0.001), (".001", 0.001), ("1", 1.0), ("010", 10.0)])
def test_numbers_have_the_same_value_however_they_are_spelled(accept: Callable[..., PipelineSpec], spelling: str, value: float) -> None:
    assert accept(R, (LR, f"learning_rate: {spelling}")).train.learning_rate == value


@pytest.mark.parametrize("word", ["no", "on", "12:30:00", "1_000", "0x", "2026-01-31"])
def test_words_stay_words_in_fields_of_text(accept: Callable[..., PipelineSpec], word: str) -> None:
    assert accept(R, ("owner: search-relevance", f"owner: {word}")).owner == word


@pytest.mark.parametrize("text", ["{{ var.value.x }}", "{% raw %}", "$(id)", "`id`", "${HOME}"])
def test_template_and_shell_words_stay_literal_text(accept: Callable[..., PipelineSpec], text: str) -> None:
    assert accept(R, ("owner: search-relevance", f"owner: '{text}'")).owner == text


def test_byte_order_mark_and_windows_line_ends_make_no_difference(changed: Changed, ranking: PipelineSpec) -> None:
    assert parse_spec(b"\xef\xbb\xbf" + changed(R).replace(b"\n", b"\r\n")) == ranking


def test_defaults_of_the_family_are_filled_in(flights: PipelineSpec) -> None:
    assert flights.train.settings == {
        "max_depth": 4,
        "min_child_weight": 5.0,
        "subsample": 0.8,
        "colsample": 0.8,
        "reg_lambda": 1.0,
        "reg_alpha": 0.0,
        "gamma": 0.0,
        "max_bin": 256,
        "objective": None,
        "quantile_alpha": None,
    }


def test_the_world_size_is_the_number_of_all_processes(ranking: PipelineSpec, flights: PipelineSpec) -> None:
    assert (ranking.train.placement.world_size, flights.train.placement.world_size) == (2, 1)


def test_class_of_an_allowed_package_is_accepted_and_its_settings_are_its_own(
    accept: Callable[..., PipelineSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_MODEL_PACKAGES", "acme, other")
    spec = accept(
        R,
        ("model: ranker", "model: acme.rank.deep:Model"),
        ("{embedding_dim: 16, hidden: [64, 32]}", "{depth: 3, layers: [[1, 2], a], on: null}"),
    )
    assert spec.train.settings == {"depth": 3, "layers": [[1, 2], "a"], "on": None}


@pytest.mark.parametrize("model", ["acme2.rank:Model", "acme", "acme.rank", "acme.rank:Model.build", "os:system"])
def test_class_of_any_other_package_is_refused(
    refuse: Callable[..., tuple[Problem, ...]], monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_MODEL_PACKAGES", "acme")
    (problem,) = refuse(R, ("model: ranker", f'model: "{model}"'))
    assert problem.code == "model.unknown"
    assert problem.hint == f"known: {', '.join(trained_families())}; or package.module:Class of acme"


def test_file_is_named_after_its_pipeline(tmp_path: Path, changed: Changed) -> None:
    path = tmp_path / "other.yaml"
    path.write_bytes(changed(R))
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert (
        caught.value.message
        == f"{path}:3:1: name: [name.file] the pipeline is named 'search_ranking' and its file 'other' (name the file after the pipeline)"
    )


def test_file_that_is_not_there_is_a_spec_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(tmp_path / "gone.yaml")
    assert (
        caught.value.message
        == f"{tmp_path / 'gone.yaml'}: [spec.unreadable] cannot be read: No such file or directory (check the path and its permissions)"
    )
    assert caught.value.exit_code is ExitCode.BAD_SPEC


def test_importing_and_loading_brings_nothing_heavy_in(pipelines: Path) -> None:
    heavy = ["pandas", "numpy", "torch", "airflow", "duckdb", "mlflow", "pyarrow", "sqlalchemy", "obstore"]
    code = (
        "import sys, training.spec as s; s.PipelineSpec.thaw(s.freeze(s.load_spec(sys.argv[1]))); "
        f"sys.exit(', '.join(m for m in {heavy} if m in sys.modules) or 0)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(pipelines / "flight_delay.yaml")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(pipelines.parents[1])},
        check=False,
    )
    assert (found.returncode, found.stderr.strip()) == (0, "")
