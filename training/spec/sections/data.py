"""The section `data`: which rows and columns."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationInfo, WithJsonSchema, field_validator

from training.errors import SpecError
from training.spec.descriptors.sources import SOURCES, Days, SourceDescriptor
from training.spec.key_types import ShareOrDuration, SplitEnd, TimeZone
from training.spec.reader.problems import nearest
from training.spec.reader.yaml import Path
from training.spec.registry import with_defaults
from training.spec.scalar_types import (
    FROZEN,
    ColumnName,
    Duration,
    Line,
    Many,
    Name,
    PositiveDuration,
    Scalar,
    Section,
    Seed,
    Setting,
    SourceName,
    Suite,
    in_yaml,
    refusal,
)
from training.spec.schedule.partitions import Grain, grain_of
from training.spec.sections.derived import ColumnType, Known, SourceDerived, Sql
from training.spec.sections.windows import Window
from training.sql.analysis import in_order_of_use

Generated = Literal["row_number", "partition_start", "partition_value"]
"""What ingest writes into a column that the file does not have."""

StoredAs = Literal["int96_utc", "decimal"]
"""How a Parquet file stores a column, where its type alone does not say what its values mean."""

Kind = Annotated[Name, WithJsonSchema({"enum": list(SOURCES.built_in)})]
"""A kind of source: of training/sources/kinds/, or of an entry point of the group `nightshift.sources`."""


Partition = Annotated[str, Field(max_length=200)]
MAX_COLUMNS: Final = 2000


class NumberFormat(Section):
    """How numbers are written in a column of texts. A text in another form is refused. Blanks around a number are allowed, a plus, and
    an exponent; `12 %` is 12."""

    decimal: Literal[".", ","] = "."
    """Before the fraction."""
    thousands: Literal["", ".", ",", " ", "'"] = ""
    """Between groups of three digits. Example: `"."`."""
    unit: Annotated[str, Field(max_length=20, pattern=r"^[^\s\d+-]*$")] = ""
    """Before or behind each number, and not read. Example: `"€"`."""


class Column(Section):
    """A column of the file; others than these and the ignored ones are refused. Its key is its name after reading."""

    type: ColumnType
    """Of the values; a value of another type is refused."""
    known: Known = "before"
    """`after`: known only after the decision, so never a feature."""
    nullable: bool = False
    """Whether values may be missing; without it, a missing value fails the validation."""
    source_name: SourceName | None = None
    """Its name in the file, or whatever the source is, such as `Home Goals`; absent: the key. `""` is the column without a
    name that pandas writes. Example: `"Home Goals"`."""
    generated: Generated | None = None
    """The column is not in the file. `row_number`, of type int64: the number of the row in its file, from 0. `partition_start`, of type
    timestamp: the instant at which the partition of the row begins. For tables without a key or a time of their own. `partition_value`:
    the value that a folder names, `country=DE`, or a placeholder of `partition`, `{country}`; `source_name` is its name there."""
    stored_as: StoredAs | None = None
    """Of Parquet. `int96_utc`, of type timestamp: INT96 as Spark, Hive and Impala write it, in UTC, cut to microseconds. `decimal`, of type
    double: the nearest double of decimals of more than 15 digits."""
    scale: Annotated[int, Field(ge=0, le=18)] | None = None
    """Of Parquet, of type int64: the integer is the file's number times 10 to this power: with 2, 12.34 is read as 1234. Unit: digits.
    Example: `2`."""
    zone: TimeZone | None = None
    """Of type timestamp: where the clock of times without a zone is, also of texts without an offset; a time that it shows twice or
    never is refused (`data.source.derive` can settle it). Example: `Europe/Berlin`."""
    number_format: NumberFormat | None = None
    """How the numbers are written, where the file has them as texts: `1.234,50 €`."""
    missing: Annotated[tuple[str, ...], Field(strict=False, max_length=20)] = ()
    """Texts that stand for a missing value, as the file has them. Example: `["NA", "?"]`."""

    def name_at_source(self, name: str) -> str:
        """Return what the source calls the column whose key is `name`."""
        return name if self.source_name is None else self.source_name

    @property
    def stored_keys(self) -> dict[str, str | int]:
        """Return the keys that say what the values of a Parquet file mean."""
        keys: dict[str, str | int | None] = {"stored_as": self.stored_as, "scale": self.scale, "zone": self.zone}
        return {key: value for key, value in keys.items() if value is not None}

    @property
    def is_in_file(self) -> bool:
        return self.generated is None

    @property
    def is_text_in_file(self) -> bool:
        """Whether the file's texts are converted after they are read."""
        return self.number_format is not None or bool(self.missing)


class JoinedColumn(Column):
    """A column of a feature table."""

    as_: ColumnName | None = Field(default=None, alias="as")
    """Another name for it in the joined frame."""


class Where(Section):
    """Which rows of the main table are used."""

    sql: Sql
    """One expression over the row's columns, also derived ones; rows for which it is false or null are left out."""
    because: Line | None = None
    """Why rows may be selected by a column that is known only afterwards.
    Example: `cancelled orders are removed before they are scored, too`."""


class Sample(Section):
    """A part of the rows, chosen by the hash of their key; with `data.group`, of their group."""

    share: Annotated[float, Field(gt=0, lt=1)]
    """Of the rows that `where` selects: 0.1 is about a tenth."""
    seed: Seed = 0
    """Another seed gives another sample. Unit: none."""


class Table(Section):
    """Where a table is, and what reads it."""

    table: Name
    """Its name in snapshots, reports and messages."""
    kind: Kind
    """Of the files (`jsonl`: JSON lines), or a kind that an installed distribution adds (docs/extending.md)."""
    uri: Annotated[Line | None, Field(validate_default=True)] = None
    """`${NAME_URI}/…`, or s3://, gs://, az://; a file, or the folder of the partitions. Required, unless the kind has no place."""
    settings: dict[str, Setting] = Field(default_factory=dict, validate_default=True)
    """The kind's own; defaults are filled in. Kinds of files have none. Example: `{table: orders}`."""

    @field_validator("kind", mode="after")
    @classmethod
    def _is_known(cls, value: str, info: ValidationInfo) -> str:
        if info.context == FROZEN:
            return value  # The stage that reads the source reports it.
        try:
            if SOURCES.get(value) is not None:
                return value
            known = SOURCES.names()
        except SpecError as err:
            raise refusal(err.code, err.problems[0].message, hint=err.problems[0].hint) from err
        listed = ", ".join(f"'{name}'" for name in known[:-1]) + f" or '{known[-1]}'"
        close = nearest(value, known)
        hint = close if close.startswith("did you mean") else "other kinds need an installed distribution that adds them"
        raise refusal("field.choice", f"must be {listed}, got {in_yaml(value)}", hint=hint)

    @field_validator("uri", mode="after")
    @classmethod
    def _fits_the_kind(cls, value: str | None, info: ValidationInfo) -> str | None:
        descriptor = _descriptor(info)
        if descriptor is None or descriptor.has_uri == (value is not None):
            return value
        if value is None:
            raise refusal("field.missing", "the key uri is missing")
        raise refusal("field.conflict", f"a source of kind {info.data['kind']} has no uri, got {in_yaml(value)}", hint="remove it")

    @field_validator("settings", mode="after")
    @classmethod
    def _fill(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        descriptor = _descriptor(info)
        return value if descriptor is None else with_defaults(descriptor.settings, value)


def _descriptor(info: ValidationInfo) -> SourceDescriptor | None:
    """Return the descriptor of a table's kind; None of a kind that is not known, and in a frozen spec, which was checked."""
    kind = info.data.get("kind")
    return None if kind is None or info.context == FROZEN else SOURCES.get(kind)


class UnionTable(Table):
    """A further table of the same rows as the main one: the same columns, types, key and derived columns."""

    partition: Partition | None = None
    """As of the main table: of the same time."""


class PipelineSource(Table):
    """The main table: one row per prediction."""

    partition: Partition | None = None
    """Folder of one day below `uri`, `dt={date}`; of one hour, `dt={date}/hour={hour}`; or of one month, `month={month}`. `%Y`, `%m`, `%d`
    and `%H` name parts of a time, `%-m`, `%-d` and `%-H` without zeros in front, `{country}` any value of a column. Complete when its
    time is over."""
    event_time: ColumnName
    """Column with the instant of a row: it decides the window, the split by time, and what a join may see."""
    decision_lead: Duration = Field(default="0s", validate_default=True)
    """The prediction is made this long before the event; joins see nothing later."""
    window: PositiveDuration
    """Rows this long before `as_of` are used."""
    history: PositiveDuration | None = None
    """Rows this long before the window are read too. `data.windows` look at them; they are in no split. Example: `28d`."""
    wait: Duration = Field(default="0s", validate_default=True)
    """A late partition of any table is waited for this long, then the run fails."""
    key: Annotated[Many[ColumnName], Field(min_length=1)]
    """Columns that together identify a row."""
    columns: Annotated[dict[ColumnName, Column], Field(min_length=1, max_length=MAX_COLUMNS)]
    """The columns that are read."""
    ignore: Many[str] = ()
    """Columns of the file that are not read, by their names there."""
    derive: dict[ColumnName, SourceDerived] = Field(default_factory=dict)
    """Columns that are computed when the table is read, and stored in the snapshot."""
    newest_by: ColumnName | None = None
    """Timestamp column: of rows with the same key the newest until `as_of` is read. Example: `updated_at`."""
    deleted_by: ColumnName | None = None
    """Boolean column, with `newest_by`: true where the row is deleted from then on. Example: `is_deleted`."""
    where: Where | None = None
    sample: Sample | None = None
    union: Many[UnionTable] = ()
    """Further tables, whose rows are rows of the main table; keys are unique over all of them."""

    @property
    def is_daily(self) -> bool:
        """Whether each part of it is of one day, which can be seen to be missing."""
        if self.partition is not None:
            return self.grain in (None, Grain.DAY)  # Without a placeholder it is refused.
        descriptor = SOURCES.get(self.kind)
        return descriptor is not None and descriptor.days is Days.ALWAYS

    @property
    def grain(self) -> Grain | None:
        """The time that one of its folders is of; None without `partition`."""
        return None if self.partition is None else grain_of(self.partition)

    @property
    def types(self) -> dict[str, str]:
        """Name to type of every column that the table has downstream, the derived ones last."""
        return {name: column.type for name, column in (self.columns | self.derive).items()}

    def derive_in_order(self) -> list[tuple[str, SourceDerived]]:
        """Return the derived columns such that each comes after those that it mentions."""
        return in_order_of_use(self.derive)


class FeatureTable(Table):
    """A table joined to the main one: point in time where it has an `event_time`, else a dimension that is known always."""

    on: Annotated[dict[ColumnName, ColumnName], Field(min_length=1)]
    """Ours to theirs: the main table's column to this file's column."""
    event_time: ColumnName | None = None
    """Column with the instant from which a row holds; absent: a dimension, one row for each key."""
    partition: Partition | None = None
    """Folder of one hour, day or month below `uri`, as of the main table; needs `max_age`, which says how far back they are needed.
    Example: `"dt={date}"`."""
    available_after: Duration = Field(default="0s", validate_default=True)
    """A row can be seen this long after its event time; of a partition, so long after its end."""
    max_age: PositiveDuration | None = None
    """An older row than this is not a match."""
    suite: Suite | None = None
    """Great Expectations suite that the table must pass: its file below expectations/."""
    columns: Annotated[dict[ColumnName, JoinedColumn], Field(min_length=1, max_length=MAX_COLUMNS)]
    """The columns that are read and joined."""
    ignore: Many[str] = ()
    """Columns of the file that are not read, by their names there."""

    @property
    def joined(self) -> dict[str, JoinedColumn]:
        """What the join adds to the main table, by its name there: neither the join's keys nor the event time."""
        own = {*self.on.values(), self.event_time}
        return {column.as_ or name: column for name, column in self.columns.items() if name not in own}


class Label(Section):
    """What is predicted."""

    column: ColumnName
    """Column of the main table or of `data.source.derive` that has it."""
    rule: Annotated[str, Field(pattern=r"^(<|<=|>|>=|=|==|!=|<>) ?-?[0-9]+(\.[0-9]+)?$")] | None = None
    """`> 15`: the label is whether the column is so; absent: its value."""
    positive: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """The class of a binary label of type string whose probability a model gives; the other class is the negative one. Example: `fraud`."""
    known_at: ColumnName | None = None
    """When it is known: rows whose label is not known at `as_of` are left out and counted (`validate.unknown_labels`)."""


class Split(Section):
    """Train, validation and test: each row is in one of them."""

    by: Literal["time", "random", "group", "stratified", "column"] = "time"
    """`time`: the newest rows are the test's. `random`: by a hash of the row's key. `group`: by a hash of `column` (or of `data.group`),
    whose values are never divided. `stratified`: at random such that each value of `column` (or each class) has its share in every
    split. `column`: the values of `column` name the splits. Example: `random`."""
    validation: ShareOrDuration | None = None
    """A duration for `time`, a share of the rows or groups (`0.1`) for `random`, `group` and `stratified`; not for `column`."""
    test: ShareOrDuration | None = None
    """As `validation`."""
    gap: PositiveDuration | None = None
    """Of `time`: rows this long before validation, and this long before test, are in no split (an embargo). Example: `7d`."""
    column: ColumnName | None = None
    """Of the main table, for `group`, `stratified` and `column`. Example: `customer_id`."""
    values: dict[Literal["train", "validation", "test"], Annotated[tuple[Scalar, ...], Field(strict=False, min_length=1)]] | None = None
    """Of `column`: the values of each split's rows, `{test: [2025]}`; absent: train, validation, test.
    Example: `{train: [2023, 2024], validation: [2025], test: [2026]}`."""
    seed: Seed = 0
    """Of `random`, `group` and `stratified`: another seed makes another division. Unit: none."""
    end: SplitEnd = "window"
    """Where the test split (every split, where `by` is not `time`) ends: at the window's end, where labels are complete
    (`labels_complete`), or this long before the window's end (`14d`). Rows after it are left out."""


class Data(Section):
    """Which tables are read, how they are joined, what is predicted, and how the rows are divided."""

    source: PipelineSource
    features: Many[FeatureTable] = ()
    """Tables that are joined to the main one."""
    windows: Annotated[dict[ColumnName, Window], Field(max_length=MAX_COLUMNS)] = Field(default_factory=dict)
    """Columns of the joined frame that are made of earlier rows: lags, rolling functions, the time since the last row."""
    label: Label
    group: ColumnName | None = None
    """Rows of one group are ranked against one another and never split."""
    weight: ColumnName | None = None
    """Column of the main table: how much each row counts in the training and validation loss. Never negative, null or NaN. Metrics and
    gates count each row once. Example: `sampling_weight`."""
    split: Split

    def tables(self) -> list[tuple[Path, Table]]:
        """Return (path in the YAML, table) of each table, the main one first."""
        features: list[tuple[Path, Table]] = [(("data", "features", index), table) for index, table in enumerate(self.features)]
        further: list[tuple[Path, Table]] = [(("data", "source", "union", at), table) for at, table in enumerate(self.source.union)]
        return [(("data", "source"), self.source), *further, *features]

    @property
    def has_partitions(self) -> bool:
        """Whether a part of some table can be seen to be missing."""
        source = self.source
        return source.is_daily or source.partition is not None or any(table.partition is not None for table in self.features)

    @property
    def has_text_label(self) -> bool:
        """Whether the label is the name of a class."""
        return self.label.rule is None and self.source.types.get(self.label.column) == "string"

    def frame_types(self) -> dict[str, str]:
        """Name to type of every column of the joined frame, in its order."""
        types = dict(self.source.types)
        for table in self.features:
            types.update({name: column.type for name, column in table.joined.items()})
        return types | {name: window.type_of(self._column_type(window)) for name, window in self.windows.items()}

    def declared_types(self) -> dict[str, str]:
        """Return `frame_types`, with `, nullable` after the type of a column that may miss values in the main table."""
        nullable = {name for name, column in self.source.columns.items() if getattr(column, "nullable", False)}
        return {name: f"{kind}, nullable" if name in nullable else kind for name, kind in self.frame_types().items()}

    def source_names(self, names: Iterable[str]) -> dict[str, str]:
        """Return what the source of the main table calls those of the columns that have another name there."""
        declared = {name: self.source.columns[name].source_name for name in names if name in self.source.columns}
        return {name: found for name, found in declared.items() if found is not None}

    def table_of(self, window: Window) -> FeatureTable | None:
        """Return the feature table whose rows a window looks at; None: the main table, or one that no window can look at."""
        return next((table for table in self.features if table.table == window.table and table.event_time is not None), None)

    def reach_of(self, table: FeatureTable) -> timedelta | None:
        """Return how long before a decision a row of the table can still matter; None: always."""
        reaches = [table.max_age, *(window.reach for window in self.windows.values() if window.table == table.table)]
        known = [reach for reach in reaches if reach is not None]
        return max(known) if len(known) == len(reaches) else None

    def _column_type(self, window: Window) -> str | None:
        table = self.table_of(window)
        if table is None:
            return self.source.types.get(window.column or "")
        column = table.columns.get(window.column or "")
        return None if column is None else column.type
