"""The places of data that commands note in `$NIGHTSHIFT_HOME/sources.json`, for all later runs; and where alerts go, beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from devstack.alerts_file import FILE as ALERTS_FILE
from devstack.alerts_file import SIGNING_KEY, noted_alerts, webhooks_of
from devstack.environment import PLACEHOLDER, SHOP, environment, shop_root, write_private
from devstack.locking import locked
from nightshift.airflow_ext.schedule_hold import is_in_use
from nightshift.pipeline_files import texts_of
from nightshift.settings import Settings
from nightshift.source_uris import FILE as SOURCES_FILE
from nightshift.source_uris import noted_places, places_in
from training.errors import NightshiftError
from training.installation import is_place_name
from training.spec import PipelineSpec
from training.spec.uris import names_of_places


def note_places(settings: Settings, say: Callable[[str], None]) -> None:
    """Note where this command's environment says that data is, and where alerts go; a variable that is set to nothing is forgotten.

    Raises:
        NightshiftError: `services.busy`, another command runs nights of a pipeline whose place would change; nothing is noted then.
    """
    with _sources_locked(settings) as path:
        before = noted_places(settings.home)
        forgotten = {name for name, value in os.environ.items() if is_place_name(name) and not value.strip()}
        kept = {name: value for name, value in before.items() if name not in forgotten}
        wanted = {SHOP: shop_root(settings).as_uri(), **kept, **places_in(os.environ)}
        changed = {name: value for name, value in sorted(before.items()) if value != wanted.get(name)}
        _require_unused(settings, changed)
        if wanted != before:
            write_private(path, json.dumps(wanted, indent=1, sort_keys=True))
        _note_alerts(settings)
    for name, value in changed.items():
        say(f"{name} is now {wanted.get(name, 'not set')} (before: {value}), from the next run on")


def _note_alerts(settings: Settings) -> None:
    before = noted_alerts(settings.home)
    names = {*webhooks_of(settings, os.environ), SIGNING_KEY, *before}  # Of `before` too: this command may have other pipelines.
    wanted = {name: value for name in sorted(names) if (value := os.environ.get(name, before.get(name, "")).strip())}
    if wanted != before:
        write_private(settings.home / ALERTS_FILE, json.dumps(wanted, indent=1, sort_keys=True))


def require_noted_places(settings: Settings, spec: PipelineSpec) -> None:
    """Return if the next run of a pipeline reads the places that this command's environment names. Call it with the DAG switched on.

    Raises:
        NightshiftError: `services.busy`, another command has noted another place in the meantime.
    """
    with _sources_locked(settings):
        noted = {SHOP: shop_root(settings).as_uri(), **noted_places(settings.home)}
    for name, value in places_in(environment(settings)).items():
        if noted.get(name) != value and name in names_of_places(spec):
            message = f"another command has set {name} to {noted.get(name)!r} a moment ago; this one has {value!r}"
            raise NightshiftError("services.busy", message, hint="repeat the command once the other one has ended")


@contextmanager
def _sources_locked(settings: Settings) -> Iterator[Path]:
    path = settings.home / SOURCES_FILE
    with locked(path.with_suffix(".lock")):
        yield path


def _require_unused(settings: Settings, changed: Iterable[str]) -> None:
    """Return if no command that lives runs nights with these places: a backfill's nights all read the same ones."""
    for name in changed:
        for pipeline, text in texts_of(settings.pipelines_path).items():
            if name in PLACEHOLDER.findall(text) and is_in_use(settings.home, pipeline):
                message = f"{name} cannot change: another command runs nights of {pipeline}, which read it"
                hint = f"wait until that command has ended, or unset {name} in this shell to use the same place"
                raise NightshiftError("services.busy", message, hint=hint)
