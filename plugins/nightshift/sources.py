"""Where the data of pipelines is: `*_URI` variables, which reach the next run without a restart of the services.

Commands of the laptop installation note those of their shell in a file of its folder, and start the services without them. A
process looks into its own environment first, then into the file: under compose or Kubernetes there is no file, and in a shell an
exported variable counts. What holds no place for data (a webhook, an address with a password) is never noted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nightshift.json_files import read_object
from training.errors import NightshiftError, shown
from training.spec.uris import PLACEHOLDER_RULE, is_place

FILE: Final = "sources.json"
REMEDY: Final = "delete it, set the variables, and make start"
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
    values = read_object(path, code="sources.damaged", hint=REMEDY) or {}
    for name, value in values.items():
        if not is_source_name(name):
            # What a stage would get by such a name: PATH, an AIRFLOW_ setting.
            message = f"{path} is damaged: {shown(name)} is not the name of a place for data (capitals, ending in _URI)"
            raise NightshiftError("sources.damaged", message, hint=REMEDY)
        if not isinstance(value, str):
            raise NightshiftError("sources.damaged", f"{path} is damaged: {name} is not a place for data: {shown(value)}", hint=REMEDY)
    # Earlier versions noted each variable whose name ends so, as BASE_URI=/: such a value names no data, and no pipeline can use it.
    return {name: value for name, value in values.items() if is_place(value)}


def with_noted_places(home: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment, completed by the places noted: a variable that is set counts, an empty one does not."""
    return {**noted_places(home), **{name: value for name, value in environ.items() if value.strip() or not is_source_name(name)}}
