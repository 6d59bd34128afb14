"""Where the data of pipelines is: `*_URI` variables, which reach the next run without a restart of the services.

Commands of the laptop installation note those of their shell in a file of its folder, and start the services without them. A
process looks into its own environment first, then into the file: under compose or Kubernetes there is no file, and in a shell an
exported variable counts. What holds no place for data (a webhook, an address with a password) is never noted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from training.errors import NightshiftError
from training.spec.uris import PLACEHOLDER_RULE, is_place

FILE: Final = "sources.json"
OTHER_PREFIXES: Final = ("NIGHTSHIFT_", "AIRFLOW_", "MLFLOW_", "AWS_", "AZURE_", "GOOGLE_")
"""Names that end in _URI and are read by others: AWS_CONTAINER_CREDENTIALS_RELATIVE_URI looks like a path."""

_NAME = re.compile(PLACEHOLDER_RULE, re.ASCII)


def is_source_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and not name.startswith(OTHER_PREFIXES)


def places_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name a place for data."""
    return {name: value.strip() for name, value in environ.items() if is_source_name(name) and is_place(value.strip())}


def noted_places(home: Path) -> dict[str, str]:
    """Return what the installation's commands have noted, empty without a file.

    Raises:
        NightshiftError: `sources.damaged`.
    """
    path = home / FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        values = None
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise NightshiftError("sources.damaged", f"{path} is damaged", hint="delete it, set the variables, and make start")
    return values


def with_noted_places(home: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment, completed by the places noted: a variable that is set counts, an empty one does not."""
    return {**noted_places(home), **{name: value for name, value in environ.items() if value.strip() or not is_source_name(name)}}
