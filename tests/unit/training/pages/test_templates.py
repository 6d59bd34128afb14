"""The pages' templates: one environment renders them, which escapes values and refuses unknown names."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from training.pages import templates
from training.runtime.provenance import CHECKOUT


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(templates, "FOLDER", tmp_path)
    return tmp_path


def test_value_with_markup_is_escaped(folder: Path) -> None:
    (folder / "page.html").write_text("<p>{{ text | twice }}</p>")

    assert templates.rendered("page.html", {"text": "<b>&"}, twice=lambda text: text * 2) == b"<p>&lt;b&gt;&amp;&lt;b&gt;&amp;</p>"


def test_name_that_a_template_is_not_given_is_an_error(folder: Path) -> None:
    (folder / "page.html").write_text("{{ missing }}")

    with pytest.raises(jinja2.UndefinedError, match="missing"):
        templates.rendered("page.html", {})


def test_no_other_module_makes_an_environment() -> None:
    makers = [path for path in Path(CHECKOUT / "training").rglob("*.py") if "FileSystemLoader" in path.read_text(encoding="utf-8")]

    assert makers == [templates.FOLDER / "templates.py"]
