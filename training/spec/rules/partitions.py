"""Rules of the key `partition`, of the main table and of feature tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Final

from training.spec.descriptors.sources import SOURCES, Days
from training.spec.reader.yaml import Path
from training.spec.rules.rule_problems import Violation
from training.spec.scalar_types import duration_text, in_yaml
from training.spec.schedule.partitions import PARTS, Grain, grain_of, names_in, partition_fault
from training.spec.sections.data import Column, Data, Table

EXAMPLES: Final[Mapping[Grain, str]] = {
    Grain.HOUR: 'one folder an hour: "dt={date}/hour={hour}"',
    Grain.DAY: 'one folder a day: "dt={date}"',
    Grain.MONTH: 'one folder a month: "month={month}"',
}
TYPES_OF_GENERATED: Final[Mapping[str, str]] = {"row_number": "int64", "partition_start": "timestamp"}


def partitions_fit(data: Data) -> Iterator[Violation]:
    """Yield a violation where partitions are no folders of a time, or do not go with the window or the kind of source."""
    source = data.source
    if not data.has_partitions and source.wait:
        message = "wait needs a partition"
        yield Violation(("data", "source", "wait"), "field.conflict", message, "only a day's partition can be seen to be missing")
    if source.partition is not None:
        yield from _folder(("data", "source", "partition"), source, source.partition, source.columns)
    yield from _union(data)
    unit = timedelta(hours=1) if source.grain is Grain.HOUR else timedelta(days=1)
    for key, length in (("window", source.window), ("history", source.history)):
        if length is None or not length % unit or not (source.is_daily or source.grain is not None):
            continue
        words = f"{_plural(Grain.HOUR if source.grain is Grain.HOUR else Grain.DAY)}, and the partitions are {_plural(source.grain)}"
        message = f"{duration_text(length)} is not a whole number of {words}"
        yield Violation(("data", "source", key), "partition.window", message, "")
    for index, table in enumerate(data.features):
        if table.partition is None:
            continue
        path: Path = ("data", "features", index, "partition")
        yield from _folder(path, table, table.partition, table.columns)
        if table.event_time is None or data.reach_of(table) is None:
            message = f"partition needs an event_time and a max_age: they say which partitions of {table.table} are needed"
            yield Violation(path, "field.conflict", message, "set max_age, or leave partition out: all files below uri are read then")


def _union(data: Data) -> Iterator[Violation]:
    """Yield a violation for each table of the union whose name is taken, or whose parts are of other times than the main table's."""
    source, taken = data.source, {data.source.table, *(table.table for table in data.features)}
    main = Grain.DAY if source.is_daily else source.grain
    for index, table in enumerate(source.union):
        path: Path = ("data", "source", "union", index)
        if table.table in taken:
            yield Violation((*path, "table"), "table.clash", f"there is a table {table.table} already", "give each table a different name")
        taken.add(table.table)
        if table.partition is not None:
            yield from _folder((*path, "partition"), table, table.partition, source.columns)
        descriptor = SOURCES.get(table.kind)
        is_always_daily = descriptor is not None and descriptor.days is Days.ALWAYS
        grain = Grain.DAY if is_always_daily else None if table.partition is None else grain_of(table.partition)
        if grain is not main:
            found, wanted = ("no partitions" if each is None else f"partitions of {_plural(each)}" for each in (grain, main))
            message = f"table {table.table} has {found}, and the main table has {wanted}"
            yield Violation(path, "union.partition", message, "tables of one union have partitions of the same time")


def generated_columns_fit(data: Data) -> Iterator[Violation]:
    """Yield a violation for each column that ingest is to write, and cannot: of another type, or of a partition that is not there."""
    has_partitions = data.source.is_daily or data.source.partition is not None
    tables: list[tuple[Path, Table, Mapping[str, Column], bool]] = [(("data", "source"), data.source, data.source.columns, has_partitions)]
    for index, table in enumerate(data.features):
        tables.append((("data", "features", index), table, table.columns, table.partition is not None))
    for start, owner, columns, has_partitions in tables:
        for name, column in columns.items():
            path: Path = (*start, "columns", name)
            if column.generated is None:
                continue
            if column.generated == "partition_value":
                if owner.uri is None:
                    yield Violation((*path, "generated"), "field.conflict", "partition_value needs files: it is in their path", "remove it")
                continue
            if column.type != TYPES_OF_GENERATED[column.generated]:
                message = f"{name} is of type {column.type}, and {column.generated} is of type {TYPES_OF_GENERATED[column.generated]}"
                yield Violation((*path, "type"), "column.type", message, "correct the type")
            if column.source_name is not None:
                message = f"{name} has the key generated, so it is not in the file"
                yield Violation((*path, "source_name"), "field.conflict", message, "remove one of the two keys")
            if column.generated == "partition_start" and not has_partitions:
                yield Violation(
                    (*path, "generated"), "field.conflict", "partition_start needs a partition", "name the folders of the times"
                )


def _folder(path: Path, table: Table, partition: str, columns: Mapping[str, Column]) -> Iterator[Violation]:
    descriptor = SOURCES.get(table.kind)
    if descriptor is not None and descriptor.days is not Days.PARTITIONED:
        yield Violation(path, "field.conflict", f"a source of kind {table.kind} has no partition", "remove it")
    fault = partition_fault(partition)
    if fault:
        yield Violation(path, "partition.invalid", f"{in_yaml(partition)} {fault}", EXAMPLES[grain_of(partition) or Grain.DAY])
    known = {column.name_at_source(name) for name, column in columns.items()}
    for name in names_in(partition):
        if name not in known:
            message = f"{in_yaml(partition)} has {{{name}}}, which is neither a column nor a time ({', '.join(PARTS)})"
            hint = f"correct it, or declare {name} under columns with generated: partition_value"
            yield Violation(path, "partition.invalid", message, hint)


def _plural(grain: Grain | None) -> str:
    return f"{grain or Grain.DAY}s"
