"""Where alerts go: variables that commands note in `$NIGHTSHIFT_HOME/alerts.json`, for services that another shell starts.

The address of a webhook is often a secret, so it is in no file with places of data, which YAML files name and messages show.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nightshift.json_files import read_object
from nightshift.pipeline_files import texts_of
from nightshift.settings import Settings
from nightshift.source_uris import places_in
from training.errors import NightshiftError, shown
from training.installation import PLACEHOLDER_RULE, is_place_name

FILE: Final = "alerts.json"
SIGNING_KEY: Final = "NIGHTSHIFT_WEBHOOK_SECRET"
_WEBHOOK: Final = re.compile(rf"""webhook["']?\s*:\s*["']?\$\{{({PLACEHOLDER_RULE})\}}""", re.ASCII)


def webhooks_of(settings: Settings, environ: Mapping[str, str]) -> set[str]:
    """Return the variables that pipelines name as webhooks, and that are no place of data."""
    named = {name for text in texts_of(settings.pipelines_path).values() for name in _WEBHOOK.findall(text) if is_place_name(name)}
    return named - places_in(environ).keys()


def noted_alerts(home: Path) -> dict[str, str]:
    """Return the addresses of webhooks and the key of their signature that commands have noted, empty without a file.

    Raises:
        NightshiftError: `alerts.damaged`.
    """
    path, hint = home / FILE, "delete it, set the variables, and make start"
    values = read_object(path, code="alerts.damaged", hint=hint) or {}
    for name, value in values.items():
        # Without the value, which is a secret.
        if not isinstance(value, str) or not (name == SIGNING_KEY or is_place_name(name)):
            raise NightshiftError("alerts.damaged", f"{path} is damaged: {shown(name)} is not a webhook's variable with a text", hint=hint)
    return values
