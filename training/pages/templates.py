"""The templates of pages: values are escaped, and a name that a template is not given is an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

FOLDER: Final = Path(__file__).resolve().parent


def rendered(template: str, values: Mapping[str, object], **filters: Callable[..., object]) -> bytes:
    """Return the page of a template of this folder, UTF-8; the same bytes for the same values.

    Raises:
        jinja2.UndefinedError: the template has a name that is not among the values.
    """
    environment = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(filters)
    return environment.get_template(template).render(values).encode()
