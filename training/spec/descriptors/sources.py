"""Which kinds of sources there are: names and descriptors, as the spec's rules read them.

A row of `DESCRIPTORS` describes a kind of training/sources/kinds/. A distribution adds one by an entry point of the group
`nightshift.sources` whose value is a module with a `DESCRIPTOR` and a `SOURCE` (`training.sources.source.Source`). DAG files import that
module where a spec names its kind, so it imports its libraries in its functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
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


DESCRIPTORS: Final[Mapping[str, SourceDescriptor]] = {
    "csv": SourceDescriptor(days=Days.PARTITIONED),
    "jsonl": SourceDescriptor(days=Days.PARTITIONED),
    "parquet": SourceDescriptor(days=Days.PARTITIONED),
}
"""The kinds of training/sources/kinds/."""

SOURCES: Final[Registry[SourceDescriptor]] = Registry(
    group="nightshift.sources",
    built_in=DESCRIPTORS,
    descriptor_at="{}:DESCRIPTOR",
    implementation_at="{}:SOURCE",
    fits=lambda found: isinstance(found, SourceDescriptor),
    code="source.descriptor",
    hint="assign DESCRIPTOR = training.spec.descriptors.sources.SourceDescriptor(...)",
)
