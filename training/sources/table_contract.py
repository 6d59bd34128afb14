"""What the YAML promises of each table. Light: operators list sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from training.spec import PipelineSpec
from training.spec.scalar_types import Setting
from training.spec.sections.data import Column, FeatureTable, PipelineSource
from training.spec.sections.derived import SourceDerived


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSample:
    """A part of the rows, by the hash of some columns."""

    share: float
    """Of the rows, more than 0 and less than 1."""
    seed: int
    by: tuple[str, ...]
    """Rows with equal values here are kept or left out together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableContract:
    """One table as the YAML declares it."""

    name: str
    kind: str
    """Of the source that reads it."""
    uri: str | None = None
    partition: str | None = None
    """Of files: the folder of an hour, a day or a month below `uri`, with placeholders."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """The kind's own."""
    columns: Mapping[str, Column]
    derived: Mapping[str, SourceDerived] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    """Columns that identify a row; a feature table's begin with those that it is joined on."""
    event_time: str | None = None
    known_at: str | None = None
    """The column that says when a row's label is known."""
    newest_by: str | None = None
    """The column with the time of a row's version: of each key the newest counts."""
    deleted_by: str | None = None
    """The column that says that a version is the end of its row."""
    where: str | None = None
    """SQL of the rows that are used; None: all."""
    sample: RowSample | None = None
    timezone: str = "UTC"
    """By whose clock partitions are named."""
    partitioned: bool = False
    """Whether each part of the main table is of one day, none of which is cut."""
    available_after: timedelta = timedelta()
    max_age: timedelta | None = None
    suite: str | None = None
    union: tuple[TableContract, ...] = ()
    """Further tables whose rows are rows of this one."""

    @property
    def members(self) -> tuple[TableContract, ...]:
        """The tables that are read for it, by their own names and places: itself first."""
        return (replace(self, union=()), *self.union) if self.union else (self,)

    @property
    def types(self) -> dict[str, str]:
        """Type name of each declared and derived column."""
        types: dict[str, str] = {name: column.type for name, column in self.columns.items()}
        return types | {name: derived.type for name, derived in self.derived.items()}

    @property
    def is_kept_as_is(self) -> bool:
        """Whether snapshots hold a source's Parquet files byte for byte: whole days, nothing to compute, to rename or leave out by row."""
        is_cut = any(each is not None for each in (self.known_at, self.newest_by, self.where, self.sample))
        # The engine that reads snapshots has no columns without a name.
        is_renamed = self.at_source() is not self or not all(name.strip() for name in self.ignore)
        is_typed = any(column.is_text_in_file or column.zone is not None for column in self.columns.values())
        return self.partitioned and not self.derived and not is_cut and not is_renamed and not is_typed

    @property
    def source_names(self) -> dict[str, str]:
        """What the source calls each column that declares it, by the column's name here."""
        return {name: column.source_name for name, column in self.columns.items() if column.source_name is not None}

    def at_source(self) -> TableContract:
        """Return the contract in the source's own names, without generated columns: as the source sees it. Expressions stay as they are."""
        names = self.source_names
        if not names and all(column.is_in_file for column in self.columns.values()):
            return self
        return replace(
            self,
            columns={names.get(name, name): column for name, column in self.columns.items() if column.is_in_file},
            key=tuple(names.get(name, name) for name in self.key),
            event_time=None if self.event_time is None else names.get(self.event_time, self.event_time),
            known_at=None if self.known_at is None else names.get(self.known_at, self.known_at),
            sample=None if self.sample is None else replace(self.sample, by=tuple(names.get(name, name) for name in self.sample.by)),
        )

    @property
    def place(self) -> str:
        """Where it is, as messages say it."""
        return self.uri or f"the source {self.kind}"


def contracts_of(spec: PipelineSpec) -> list[TableContract]:
    """Return the contract of the main table, then those of the feature tables in the YAML's order."""
    return [_main(spec), *(_feature(feature, spec.timezone) for feature in spec.data.features)]


def _main(spec: PipelineSpec) -> TableContract:
    source: PipelineSource = spec.data.source
    main = TableContract(
        name=source.table,
        kind=source.kind,
        uri=source.uri,
        partition=source.partition,
        settings=source.settings,
        columns=source.columns,
        derived=dict(source.derive_in_order()),
        ignore=tuple(source.ignore),
        key=tuple(source.key),
        event_time=source.event_time,
        known_at=spec.data.label.known_at,
        newest_by=source.newest_by,
        deleted_by=source.deleted_by,
        where=None if source.where is None else source.where.sql,
        sample=_sample(spec),
        timezone=spec.timezone,
        partitioned=source.is_daily,
        suite=spec.validate_.suite,
    )
    further = [
        replace(main, name=table.table, kind=table.kind, uri=table.uri, partition=table.partition, settings=table.settings)
        for table in source.union
    ]
    return replace(main, union=tuple(further))


def _sample(spec: PipelineSpec) -> RowSample | None:
    """Return how rows are sampled: by their key, or by whole groups where rows of one group are ranked against one another."""
    sample, group = spec.data.source.sample, spec.data.group
    if sample is None:
        return None
    return RowSample(share=sample.share, seed=sample.seed, by=tuple(spec.data.source.key) if group is None else (group,))


def _feature(feature: FeatureTable, timezone: str) -> TableContract:
    return TableContract(
        name=feature.table,
        kind=feature.kind,
        uri=feature.uri,
        partition=feature.partition,
        settings=feature.settings,
        columns=feature.columns,
        ignore=tuple(feature.ignore),
        key=tuple(feature.on.values()) + ((feature.event_time,) if feature.event_time else ()),
        event_time=feature.event_time,
        available_after=feature.available_after,
        max_age=feature.max_age,
        timezone=timezone,
        suite=feature.suite,
    )
