"""Where the data of pipelines is: the `*_URI` variables that a YAML may name, which reach the next run without a restart of the services.

Commands of the laptop installation note those of their shell in a file of its folder, and start the services without them. Under compose
or Kubernetes there is no file: the operator lists their names in `NIGHTSHIFT_PLACES`. Whatever else is in the environment is not for YAML
files to name. What holds no place for data (a webhook, an address with a password) is never noted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nightshift.json_files import read_object
from nightshift.settings import NAMED_PLACES, Settings
from training.errors import NightshiftError, shown, spec_error
from training.installation import is_place_name
from training.spec import PipelineSpec, resolve_uris
from training.spec.uris import is_place, webhook_variable

FILE: Final = "sources.json"
REMEDY: Final = "delete it, set the variables, and make start"


def places_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name a place for data."""
    return {name: value.strip() for name, value in environ.items() if is_place_name(name) and is_place(value.strip())}


def noted_places(home: Path) -> dict[str, str]:
    """Return what the installation's commands have noted, empty without a file.

    Raises:
        NightshiftError: `sources.damaged`.
    """
    path = home / FILE
    values = read_object(path, code="sources.damaged", hint=REMEDY) or {}
    for name, value in values.items():
        if not is_place_name(name):
            # What a stage would get by such a name: PATH, an AIRFLOW_ setting.
            message = f"{path} is damaged: {shown(name)} is not the name of a place for data (capitals, ending in _URI)"
            raise NightshiftError("sources.damaged", message, hint=REMEDY)
        if not isinstance(value, str) or not is_place(value):
            raise NightshiftError("sources.damaged", f"{path} is damaged: the value of {name} is not a place for data", hint=REMEDY)
    return values


def places_of(settings: Settings, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the installation's places, those noted and those that the operator names. A variable that is set counts before what is noted.

    Raises:
        NightshiftError: `sources.damaged`.
    """
    noted = noted_places(settings.home)
    found = {name: environ.get(name, "").strip() or noted.get(name, "") for name in {*noted, *settings.places}}
    return {name: value for name, value in sorted(found.items()) if value}


def resolved(spec: PipelineSpec, settings: Settings, environ: Mapping[str, str] = os.environ) -> PipelineSpec:
    """Return a spec with its sources and its webhook filled in, as the installation has them.

    Raises:
        SpecError: `uri.unset`; `uri.forbidden`, a value is of the wrong kind, or the webhook's variable is a place.
        NightshiftError: `sources.damaged`.
    """
    places, webhook = places_of(settings, environ), webhook_variable(spec.alerts.webhook)
    if webhook in places:
        message, hint = (
            f"{webhook} is a place of data, not the address of a webhook",
            f"name another variable, or take it out of {NAMED_PLACES.name}",
        )
        raise spec_error(spec.name, "uri.forbidden", message, hint=hint, field="alerts.webhook")
    return resolve_uris(spec, places, environ)
