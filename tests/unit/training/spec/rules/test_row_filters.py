"""Rules of `data.source.where` and `data.source.sample`, and that a work id covers them."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.errors import SpecError
from training.runtime.provenance import CHECKOUT
from training.sources.table_contract import RowSample, contracts_of
from training.spec import PipelineSpec, load_spec, spec_part

PIPELINES = CHECKOUT / "dags" / "pipelines"


def loaded(tmp_path: Path, name: str, source_lines: str) -> PipelineSpec:
    text = (PIPELINES / f"{name}.yaml").read_text(encoding="utf-8")
    changed = text.replace("  source:\n", f"  source:\n{source_lines}", 1)
    assert changed != text or not source_lines
    path = tmp_path / f"{name}.yaml"
    path.write_text(changed, encoding="utf-8")
    return load_spec(path)


def problems(tmp_path: Path, name: str, source_lines: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        loaded(tmp_path, name, source_lines)
    return [f"{problem.field}: [{problem.code}] {problem.message}" for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("name", "lines", "problem"),
    [
        (
            "flight_delay",
            '    where: {sql: "carier = 1"}\n',
            "data.source.where.sql: [column.unknown] the SQL of where mentions 'carier', which is not a column of flights",
        ),
        (
            "flight_delay",
            '    where: {sql: "1 = 1"}\n',
            "data.source.where.sql: [where.constant] the SQL of where mentions no column, so it selects every row or none",
        ),
        (
            "flight_delay",
            '    where: {sql: "month > 1; DROP TABLE x"}\n',
            "data.source.where.sql: [sql.forbidden] the SQL of where has a ';'",
        ),
        ("flight_delay", "    sample: {share: 1}\n", "data.source.sample.share: [field.range] must be less than 1, got 1"),
        ("flight_delay", "    sample: {share: 0}\n", "data.source.sample.share: [field.range] must be greater than 0, got 0"),
        ("flight_delay", "    sample: 0.5\n", "data.source.sample: [field.type] expected a mapping, got 0.5"),
    ],
)
def test_a_wrong_filter_is_refused_at_its_key(tmp_path: Path, name: str, lines: str, problem: str) -> None:
    assert problems(tmp_path, name, lines) == [problem]


def test_rows_may_not_be_selected_by_a_late_column_without_a_reason(tmp_path: Path) -> None:
    late = '    where: {sql: "clicked >= 0"}\n'
    assert problems(tmp_path, "search_ranking", late) == [
        "data.source.where.sql: [leakage.rows] rows are selected by clicked, known only after the decision: clicked is the label"
    ]
    reason = '    where: {sql: "clicked >= 0", because: "rows without a label were never shown"}\n'
    assert contracts_of(loaded(tmp_path, "search_ranking", reason))[0].where == "clicked >= 0"


def test_rows_of_one_group_are_sampled_together(tmp_path: Path) -> None:
    ranked = contracts_of(loaded(tmp_path, "search_ranking", "    sample: {share: 0.1, seed: 7}\n"))[0]
    assert ranked.sample == RowSample(share=0.1, seed=7, by=("search_id",))
    assert not ranked.is_kept_as_is
    flights = loaded(tmp_path, "flight_delay", "    sample: {share: 0.1}\n")
    assert contracts_of(flights)[0].sample == RowSample(share=0.1, seed=0, by=tuple(flights.data.source.key))


def test_filters_are_part_of_what_rows_depend_on_and_reasons_are_not(tmp_path: Path) -> None:
    plain, first, second, sampled = (
        {stage: spec_part(loaded(tmp_path, "search_ranking", lines), stage) for stage in ("ingest", "validate", "prepare")}
        for lines in (
            "",
            '    where: {sql: "position < 5"}\n',
            '    where: {sql: "position < 5", because: "so"}\n',
            "    sample: {share: 0.1}\n",
        )
    )
    assert first == second
    for stage, part in plain.items():
        assert (part["data"]["source"]["where"], part["data"]["source"]["sample"]) == (None, None)
        assert first[stage]["data"]["source"]["where"] == "position < 5"
        assert sampled[stage]["data"]["source"]["sample"] == {"share": 0.1, "seed": 0}
