"""From a YAML file to a `PipelineSpec`, or to everything that is wrong with it at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path as LocalPath
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from training.contracts import JsonObject
from training.errors import Problem, SpecError, spec_error
from training.spec.descriptors.families import FAMILIES
from training.spec.descriptors.gates import GATES
from training.spec.descriptors.sources import SOURCES
from training.spec.pipeline_spec import PipelineSpec
from training.spec.reader.problems import in_order, problem_at, problems_of
from training.spec.reader.yaml import Document, Path, read_document
from training.spec.rules.all_rules import broken_rules
from training.spec.rules.rule_problems import Violation
from training.spec.rules.unused_keys import unused_keys
from training.spec.scalar_types import Section, in_yaml
from training.spec.sections.data import Data
from training.spec.sections.evaluation import Evaluate
from training.spec.sections.train import Train

SECTIONS: Mapping[str, tuple[str, TypeAdapter[Any]]] = {
    field.alias or name: (name, TypeAdapter(field.rebuild_annotation())) for name, field in PipelineSpec.model_fields.items()
}
"""Key of the YAML to (attribute, what its value must be)."""


class CheckedSpec(NamedTuple):
    """A valid spec and what is worth a warning in it."""

    spec: PipelineSpec
    warnings: tuple[Problem, ...]
    """Keys without effect, in the order of their lines."""


def load_spec(path: str | os.PathLike[str]) -> PipelineSpec:
    """Read a pipeline's YAML. The file is named after the pipeline, so that no two files are one pipeline.

    Raises:
        SpecError: every problem of the file, in the order of its lines.
    """
    return check_file(path).spec


def check_file(path: str | os.PathLike[str]) -> CheckedSpec:
    """Read a pipeline's YAML as `load_spec` does; return its warnings too.

    Raises:
        SpecError: every problem of the file, in the order of its lines.
    """
    file, source = LocalPath(path), os.fspath(path)
    try:
        text = file.read_bytes()
    except OSError as err:
        message = f"cannot be read: {err.strerror}"
        raise spec_error(source, "spec.unreadable", message, hint="check the path and its permissions") from err
    return _checked(read_document(text, source), source, named=file.stem)


def parse_spec(text: bytes, source: str = "spec") -> PipelineSpec:
    """Read a pipeline's YAML from memory.

    Args:
        text: UTF-8.
        source: what to call it in errors.

    Raises:
        SpecError: every problem of the text, in the order of its lines.
    """
    return _checked(read_document(text, source), source).spec


def check_values(values: JsonObject, source: str) -> PipelineSpec:
    """Return the spec of plain values, checked as a file is.

    Raises:
        SpecError: every problem; without lines.
    """
    return _checked(Document(value=dict(values)), source).spec


def _checked(document: Document, source: str, *, named: str | None = None) -> CheckedSpec:
    problems = list(document.problems)
    spec: PipelineSpec | None = None
    try:
        spec = PipelineSpec.model_validate(document.value)
        sections = {key: getattr(spec, name) for key, (name, _) in SECTIONS.items()}
    except ValidationError as err:
        problems += problems_of(err, PipelineSpec, document)
        sections = _sound_sections(document, err)
    problems += [_placed(document, violation) for violation in broken_rules(sections) if not document.is_hole(violation.path)]
    problems += _settings_problems(document, sections)
    name = sections.get("name")
    if named is not None and name is not None and name != named:
        message = f"the pipeline is named {in_yaml(name)} and its file {in_yaml(named)}"
        problems.append(problem_at(document, ("name",), "name.file", message, hint="name the file after the pipeline"))
    if problems or spec is None:
        raise SpecError(source, in_order(problems))
    return CheckedSpec(spec, tuple(in_order(_placed(document, violation) for violation in unused_keys(sections))))


def _placed(document: Document, violation: Violation) -> Problem:
    mark = None if violation.beside is None else document.mark(violation.beside)
    message = violation.message if mark is None else f"{violation.message} (see line {mark.line})"
    return problem_at(document, violation.path, violation.code, message, hint=violation.hint)


def _sound_sections(document: Document, error: ValidationError) -> dict[str, object]:
    """Return the sections in which nothing is wrong."""
    broken = {details["loc"][0] for details in error.errors(include_url=False, include_context=False)}
    broken |= {path[0] for path in document.holes}
    sections: dict[str, object] = {}
    for key, (name, adapter) in SECTIONS.items():
        if key in broken:
            continue
        if key in document.value:
            sections[key] = adapter.validate_python(document.value[key])
        else:
            sections[key] = PipelineSpec.model_fields[name].get_default(call_default_factory=True)
    return sections


def _settings_problems(document: Document, sections: Mapping[str, object]) -> list[Problem]:
    """Return what is wrong with the settings of the family, of the sources' kinds and of gates."""
    checked: list[tuple[Path, type[Section], Mapping[str, object]]] = []
    train, data = sections.get("train"), sections.get("data")
    if isinstance(train, Train) and (family := FAMILIES.get(train.model)) is not None:
        checked.append((("train", "settings"), family.settings, train.settings))
    for path, table in data.tables() if isinstance(data, Data) else []:
        if (kind := SOURCES.get(table.kind)) is not None:
            checked.append(((*path, "settings"), kind.settings, table.settings))
    evaluate = sections.get("evaluate")
    for name, values in evaluate.gates.items() if isinstance(evaluate, Evaluate) else ():
        if (gate := GATES.get(name)) is not None and gate.settings is not None:
            checked.append((("evaluate", "gates", name), gate.settings, values))
    problems = []
    for path, model, settings in checked:
        try:
            model.model_validate(settings)
        except ValidationError as err:
            problems += problems_of(err, model, document, prefix=path)
    return problems
