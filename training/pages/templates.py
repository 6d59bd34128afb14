"""The environment of all templates of pages: values are escaped, and a name that a template is not given is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

FOLDER: Final = Path(__file__).resolve().parent


def template_environment(*, trim: bool = True) -> Environment:
    """Return a new environment, to which a page adds its filters. `trim` removes the line of a block's tag."""
    return Environment(loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=trim, lstrip_blocks=trim)
