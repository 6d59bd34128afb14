"""Which kinds of sources there are: names and descriptors, as the spec's rules read them.

A row of `DESCRIPTORS` describes a kind of training/sources/kinds/. A distribution adds one by an entry point of the group
`nightshift.sources` whose value is a module with a `DESCRIPTOR` and a `SOURCE` (`training.sources.source.Source`). DAG files import that
module where a spec names its kind, so it imports its libraries in its functions.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import ValidationError

from training.errors import SpecError
from training.spec.installed import Installed, installed_descriptor, installed_packages
from training.spec.types import Section, Setting

logger = logging.getLogger(__name__)

ENTRY_POINTS: Final = "nightshift.sources"
"""Group of entry points; name: of the kind, value: its module."""


class NoSettings(Section):
    """The settings of a kind that has none."""


class Days(StrEnum):
    """Whether each part of a table is of one day, so that a day without a part is seen to be missing."""

    NEVER = "never"
    ALWAYS = "always"
    PARTITIONED = "partitioned"
    """Where the key `partition` names the folder of a day."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceDescriptor:
    """What spec, schedule and fingerprints have to know of a kind."""

    settings: type[Section] = NoSettings
    """Of the table's `settings`; the JSON schema names it by its class."""
    days: Days = Days.NEVER
    """Of the main table; feature tables have no days."""
    has_uri: bool = True
    """Whether the key `uri` is required; otherwise it is refused."""
    variables: tuple[str, ...] = ()
    """Environment variables that `list` and `read` take, as an account's: Airflow's tasks and the stage `ingest` get them."""


DESCRIPTORS: Final[Mapping[str, SourceDescriptor]] = {
    "csv": SourceDescriptor(days=Days.PARTITIONED),
    "jsonl": SourceDescriptor(days=Days.PARTITIONED),
    "parquet": SourceDescriptor(days=Days.PARTITIONED),
}
"""The kinds of training/sources/kinds/."""


def installed_sources() -> Installed:
    """Return the kinds that installed distributions add: their modules, by name."""
    return installed_packages(ENTRY_POINTS, tuple(DESCRIPTORS))


def known_sources() -> tuple[str, ...]:
    """Return the names that `kind` may have, sorted."""
    return tuple(sorted({*DESCRIPTORS, *installed_sources().packages}))


@functools.cache
def descriptor_of_source(kind: str) -> SourceDescriptor | None:
    """Return what a kind says of itself; None for one that is not installed.

    Raises:
        SpecError: `source.descriptor`, its module cannot be imported or has no `DESCRIPTOR`; `entry_point.ambiguous`, `entry_point.value`,
            the entry point of that name is broken.
    """
    found = DESCRIPTORS.get(kind)
    if found is None and (module := installed_sources().package_of(kind)) is not None:
        return installed_descriptor(kind, module, SourceDescriptor, code="source.descriptor")
    return found


def usable_sources() -> Mapping[str, SourceDescriptor]:
    """Return the descriptors of all known kinds, by name; those that cannot be imported are left out, with a warning."""
    found = {}
    for name in known_sources():
        try:
            descriptor = descriptor_of_source(name)
        except SpecError as err:
            logger.warning("source %s is left out: %s", name, err)
            continue
        if descriptor is not None:
            found[name] = descriptor
    return found


def with_source_defaults(kind: str, settings: dict[str, Setting]) -> dict[str, Setting]:
    """Return `settings` with the kind's defaults filled in; unchanged where they are wrong, or the kind is not installed here."""
    descriptor = descriptor_of_source(kind)
    if descriptor is None:
        return settings
    try:
        return descriptor.settings.model_validate(settings).model_dump(mode="json")
    except ValidationError:
        return settings
