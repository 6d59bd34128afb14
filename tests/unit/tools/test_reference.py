"""The generated reference: complete, and its examples are accepted by the models that it describes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, TypeAdapter

from nightshift.console import COMMANDS
from nightshift.execution.kubernetes.config import Cluster
from tools.reference import commands, environment, errors, spec
from tools.reference.__main__ import FOLDER, main
from training.retention.settings import Retention
from training.spec.descriptors.families import FAMILIES
from training.spec.pipeline_spec import PipelineSpec
from training.spec.reader.yaml import read_document
from training.spec.scalar_types import Section

ROOT = Path(__file__).resolve().parents[3]
SECTIONS = [section for _path, section in spec.sections(PipelineSpec)]
OF_A_CLUSTER = [section for _path, section in spec.sections(Cluster)]
PLACES = [
    *spec.sections(PipelineSpec),
    *(("train.settings", facts.settings) for facts in FAMILIES.usable().values()),
    ("", Retention),
    *spec.sections(Cluster),
]
KEYS = [key for _, section in PLACES for key in spec.keys_of(section)]
SHOWN = [(path, key) for path, section in PLACES for key in spec.keys_of(section) if not list(spec._sections_in(key.field.annotation))]
DOCUMENTS = spec._documents(ROOT, (*spec.PIPELINES, spec.PLACEMENT))


def test_check_fails_on_a_page_that_is_not_current_and_leaves_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.reference.__main__.FOLDER", tmp_path)
    monkeypatch.setattr("tools.reference.__main__.PAGES", {"a.md": lambda _root: "new"})
    (tmp_path / "a.md").write_text("old")

    assert main(["--check"]) == 1
    assert (tmp_path / "a.md").read_text() == "old"
    assert (main([]), main(["--check"])) == (0, 0)
    assert (tmp_path / "a.md").read_text() == "new"


def test_every_key_of_placement_has_a_row_with_its_meaning_and_a_link_that_leads_to_its_section() -> None:
    text = (FOLDER / "placement.md").read_text(encoding="utf-8")
    anchors = {spec.anchor(line.removeprefix("## ")) for line in text.splitlines() if line.startswith("## ")}
    rows = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}

    assert {key.name for section in OF_A_CLUSTER for key in spec.keys_of(section)} == rows
    assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= anchors


def test_every_section_of_the_schema_has_a_heading_that_its_key_links_to() -> None:
    text = (FOLDER / "spec.md").read_text(encoding="utf-8")
    anchors = {spec.anchor(line.removeprefix("## ")) for line in text.splitlines() if line.startswith("## ")}

    assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= anchors
    assert {section.__name__ for section in SECTIONS} >= set(PipelineSpec.model_json_schema()["$defs"])


@pytest.mark.parametrize(("path", "key"), SHOWN, ids=[f"{path}.{key.name}" for path, key in SHOWN])
def test_example_of_a_key_is_accepted_by_its_model(path: str, key: spec.Key) -> None:
    shown = spec.example_of(key, path, [] if key.section is Retention else DOCUMENTS)
    document = read_document(f"{shown}\n".encode(), "example")

    assert not document.problems
    TypeAdapter(key.field.rebuild_annotation()).validate_python(document.value[key.name])


def test_key_without_words_is_refused() -> None:
    class Bare(Section):
        """A section with a key that nothing describes."""

        size: int = 1

    with pytest.raises(ValueError, match=r"Bare\.size has no meaning"):
        spec._row(spec.keys_of(Bare)[0], "", [])


def test_unit_and_example_of_a_key_are_the_last_sentences_of_its_docstring() -> None:
    class Described(Section):
        """A section with a key in all its parts."""

        size: Annotated[int, Field(ge=1)] | None = None
        """Of a batch, on
        each device. Unit: rows. Example: `512`."""

    (row,) = [spec._row(key, "", []) for key in spec.keys_of(Described)]
    assert row == ("`size`", "integer, >= 1", "*none*", "rows", "Of a batch, on each device.", "`size: 512`")


def test_number_without_a_unit_is_refused() -> None:
    class Bare(Section):
        """A section with a number that no unit describes."""

        size: int = 1
        """Of a batch."""

    with pytest.raises(ValueError, match=r"Bare\.size is a number: add its unit to the docstring"):
        spec._row(spec.keys_of(Bare)[0], "", [])


def test_variables_of_libraries_have_the_files_that_use_them() -> None:
    page = environment.page(ROOT)
    rows = {name: line for line in page.splitlines() if line.startswith("| `") for name in [line.split("`")[1]]}
    assert "`training/stages/evaluate.py`" in rows["MLFLOW_TRACKING_URI"]
    assert "`training/store/open_bucket.py`" in rows["AWS_ENDPOINT_URL"]
    assert all(line.rstrip(" |").rpartition("|")[2].strip() for line in rows.values())


def test_code_with_class_hint_and_message_is_collected_from_every_form_of_raise(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "a.py").write_text(
        "def f(x):\n"
        "    hint = f'raise {x}'\n"
        "    raise DataError('rows.few', 'too few', hint=hint)\n"
        "def g(x):\n"
        "    hint = 'of another function'\n"
        "    yield Violation(('data',), 'rows.many' if x else 'rows.none', 'message', 'lower it')\n"
        "def h(x):\n"
        "    return problem(429, 'rows.busy', 'message', hint='wait')\n"
        "TABLE = {'rows.listed': 1, 'other.word': 2, 'rows.json': 3}\n",
        encoding="utf-8",
    )

    found = errors.collect(tmp_path)

    assert {name: (sorted(entry.classes), sorted(entry.hints)) for name, entry in found.items()} == {
        "rows.busy": (["answer of the REST API"], ["wait"]),
        "rows.few": (["DataError"], ["raise …"]),
        "rows.listed": ([], []),
        "rows.many": (["SpecError"], ["lower it"]),
        "rows.none": (["SpecError"], ["lower it"]),
    }


def test_code_that_looks_like_a_file_or_is_one_word_is_collected_where_an_error_has_it(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "a.py").write_text(
        "raise DataError('format.csv', 'ragged', hint='quote it')\n"
        "raise DataError('cardinality', 'too many', hint='use hash')\n"
        "raise KeyError('absent')\n"
        "open('rows.csv')\n",
        encoding="utf-8",
    )

    found = errors.collect(tmp_path)

    assert {name: sorted(entry.hints) for name, entry in found.items()} == {"cardinality": ["use hash"], "format.csv": ["quote it"]}


def test_code_without_a_hint_and_a_remedy_is_refused(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "a.py").write_text("raise DataError('rows.few', 'too few')\n", encoding="utf-8")

    with pytest.raises(ValueError, match=r"add a remedy to tools/reference/remedies\.py: rows\.few"):
        errors.page(tmp_path)


def test_every_target_of_make_help_is_among_the_commands() -> None:
    text = (FOLDER / "commands.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert [name for name, _text in commands.TARGET.findall(makefile) if f"`make {name}`" not in text] == []
    headings = set(re.findall(r"^## nightshift (?:runs )?([a-z]+)", text, re.MULTILINE))
    assert sorted(COMMANDS.keys() - headings) == []
    assert "usage: nightshift" in text
