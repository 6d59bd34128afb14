"""The environment of the pages' templates: there is one, it escapes values and refuses unknown names."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from training.pages.templates import FOLDER, template_environment
from training.runtime.provenance import CHECKOUT


@pytest.mark.parametrize("trim", [True, False])
def test_value_with_markup_is_escaped(trim: bool) -> None:
    template = template_environment(trim=trim).from_string("<p>{{ text }}</p>")

    assert template.render(text="<b>&") == "<p>&lt;b&gt;&amp;</p>"


@pytest.mark.parametrize("trim", [True, False])
def test_name_that_a_template_is_not_given_is_an_error(trim: bool) -> None:
    with pytest.raises(jinja2.UndefinedError, match="missing"):
        template_environment(trim=trim).from_string("{{ missing }}").render()


def test_no_other_module_makes_an_environment() -> None:
    makers = [path for path in Path(CHECKOUT / "training").rglob("*.py") if "FileSystemLoader" in path.read_text(encoding="utf-8")]

    assert makers == [FOLDER / "templates.py"]
