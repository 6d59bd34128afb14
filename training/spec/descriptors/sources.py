"""Which kinds of sources there are: names and descriptors, as the spec's rules read them.

A module of training/sources/kinds/ is a kind of files. A distribution adds another kind by an entry point of the group
`nightshift.sources` whose value is a module with a `DESCRIPTOR` and a `SOURCE` (`training.sources.interface.Source`). DAG files import that
module where a spec names its kind, so it imports its libraries in its functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from training.spec.registry import Registry
from training.spec.scalar_types import Section


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
    """What spec, schedule and work ids have to know of a kind."""

    settings: type[Section] = NoSettings
    """Of the table's `settings`; the JSON schema names it by its class."""
    days: Days = Days.NEVER
    """Of the main table; feature tables have no days."""
    has_uri: bool = True
    """Whether the key `uri` is required; otherwise it is refused."""
    variables: tuple[str, ...] = ()
    """Environment variables that `list` and `read` take, as an account's: Airflow's tasks and the stage `ingest` get them."""


KINDS_FOLDER: Final = Path(__file__).resolve().parents[2] / "sources" / "kinds"
FILES: Final = SourceDescriptor(days=Days.PARTITIONED)
"""Of each kind of files. It is not in the kind's module: this is code of every stage, and how files are read is code of `ingest` alone."""


def kinds_in(folder: Path) -> list[str]:
    """Return the names of the kinds of training/sources/kinds/, sorted: its modules."""
    return sorted(path.stem for path in folder.glob("[!_]*.py"))


SOURCES: Final[Registry[SourceDescriptor]] = Registry(
    group="nightshift.sources",
    built_in=dict.fromkeys(kinds_in(KINDS_FOLDER), FILES),
    descriptor_at="{}:DESCRIPTOR",
    implementation_at="{}:SOURCE",
    fits=lambda found: isinstance(found, SourceDescriptor),
    code="source.descriptor",
    hint="assign DESCRIPTOR = training.spec.descriptors.sources.SourceDescriptor(...)",
)
