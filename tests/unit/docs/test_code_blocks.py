"""Code blocks of the pages: Python runs, YAML has keys and values of a pipeline, make targets exist."""

from __future__ import annotations

import ast
import copy
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from training.errors import SpecError
from training.spec.reader.loader import parse_spec

ROOT = Path(__file__).resolve().parents[3]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))]
PIPELINES = ("search_ranking", "flight_delay")
NEEDS_A_REGISTRY = "load_verified("
OF_OTHER_SECTIONS = {"stage.unknown", "column.unknown", "field.conflict"}
"""Problems of a block's values with what else a shipped pipeline has; they are looked for once all keys and values are sound."""
NEW_FILE = re.compile(r"# [\w/]+\.py\n")
"""First line of a block that is a file of an addition: test_extending.py runs it."""
SIGNATURES = "class StageContext:"
"""First words of a block that lists a class's members without its imports."""

MANIFEST = "apiVersion:"
"""First word of a manifest of Kubernetes."""


class Yaml12(yaml.SafeLoader):
    """As pipelines are read: `on` is a text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as the base class has it
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


Yaml12.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|false)$"), list("tf"))


def read(text: str) -> Any:
    return yaml.load(text, Yaml12)  # noqa: S506 - derived from SafeLoader


def blocks(language: str) -> list[Any]:
    """Return (code of a fenced block) with page and number as its test id."""
    found = []
    for page in PAGES:
        fenced = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        found += [pytest.param(code, id=f"{page.name}-{number}") for number, code in enumerate(fenced, start=1)]
    return found


def imported_names(code: str) -> list[tuple[str, str]]:
    return [(node.module or "", name.name) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom) for name in node.names]


def merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `more`, mappings merged and the rest replaced."""
    result = copy.deepcopy(base)
    for key, value in more.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def problems_of(block: dict[str, Any], pipeline: str) -> list[str]:
    """Return the unknown keys and wrong values of a shipped pipeline that has a block's keys."""
    spec = read((ROOT / "dags" / "pipelines" / f"{pipeline}.yaml").read_text(encoding="utf-8"))
    try:
        parse_spec(yaml.safe_dump(merged(spec, block)).encode())
    except SpecError as err:
        return [str(problem) for problem in err.problems if problem.code not in OF_OTHER_SECTIONS]
    return []


def python_of_pages() -> list[Any]:
    """Return (the blocks of a page) with the page as test id: a block may use what those before it define."""
    found: dict[str, list[str]] = {}
    for block in blocks("python"):
        found.setdefault(str(block.id).rpartition("-")[0], []).append(block.values[0])
    return [pytest.param(codes, id=page) for page, codes in found.items()]


@pytest.mark.parametrize("codes", python_of_pages())
def test_python_of_a_page_runs_and_imports_what_exists(codes: list[str]) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for code in codes:
        if NEW_FILE.match(code):
            continue
        for module, name in imported_names(code):
            assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"
        if NEEDS_A_REGISTRY not in code and not code.startswith(SIGNATURES):
            exec(compile(code, "page", "exec"), names)  # noqa: S102 - a page's own code


@pytest.mark.parametrize("text", [block for block in blocks("yaml") if not block.values[0].startswith(MANIFEST)])
def test_yaml_of_a_page_has_keys_and_values_that_a_pipeline_may_have(text: str) -> None:
    block = read(text)
    if "name" in block:
        parse_spec(text.encode())
        return
    if "columns" in block:
        # A part of `data` whose columns are those of the example, not of a shipped pipeline.
        example = ROOT / "docs" / "examples" / "cancelled_orders" / "cancelled_orders.yaml"
        spec = read(example.read_text(encoding="utf-8"))["data"]
        assert block["columns"].items() <= spec["source"]["columns"].items()
        assert block["label"].items() <= spec["label"].items()
        return
    found = {pipeline: problems_of(block, pipeline) for pipeline in PIPELINES}
    assert not all(found.values()), found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_make_target_of_a_page_exists(page: Path) -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = set(re.findall(r"(?:`|^ {4}|\n)make ([a-z][a-z-]+)", page.read_text(encoding="utf-8")))
    assert named <= set(phony.split())
