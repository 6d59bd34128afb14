"""Names that a YAML cannot use: those of the DAGs that Nightshift makes itself, and columns that differ only by case.

plugins/ names its DAGs by these constants, so a new helper DAG is reserved as soon as it has its name from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from training.spec.reader.yaml import Path
from training.spec.rules.rule_problems import Violation
from training.spec.scalar_types import in_yaml
from training.spec.sections.data import Column, Data, FeatureTable, PipelineSource
from training.spec.sections.prepare import Prepare

APPROVAL_SUFFIX: Final = ".approval"
CANARY_SUFFIX: Final = ".canary"
TUNE_SUFFIX: Final = ".tune"
HELPER_SUFFIXES: Final = (APPROVAL_SUFFIX, CANARY_SUFFIX, TUNE_SUFFIX)
"""A pipeline's helper DAG is named `<pipeline><suffix>`."""

PIPELINE_TAG: Final = "nightshift-pipeline"
"""Of the DAGs that are pipelines: an Airflow has others, and helper DAGs beside them."""
HELPER_TAG: Final = "nightshift-helper"
"""Of the DAGs that work for pipelines and are not pipelines: `<pipeline><suffix>` and the shared ones."""

ROLLBACK: Final = "rollback"
HOUSEKEEPING: Final = "housekeeping"
SHARED_DAGS: Final = (HOUSEKEEPING, ROLLBACK)
"""One DAG for all pipelines each."""

ENGINE_COLUMNS: Final = ("file_row_number", "nightshift_file")
"""The engine adds them to the rows of a file: where a row is."""


def name_is_free(name: str) -> Iterator[Violation]:
    """Yield a violation for a pipeline name that is, or could be, the id of a helper DAG."""
    if name in SHARED_DAGS:
        yield Violation(("name",), "name.reserved", f"{in_yaml(name)} is the DAG of all pipelines", "give the pipeline another name")
    suffix = next((ending for ending in HELPER_SUFFIXES if name.endswith(ending)), None)
    if suffix is not None:
        owner = name.removesuffix(suffix)
        message = f"{in_yaml(name)} would be the helper DAG of a pipeline {in_yaml(owner)}: names ending in {suffix} are reserved"
        yield Violation(("name",), "name.reserved", message, "give the pipeline another name")


class Taken(NamedTuple):
    """A column name that is in use. SQL ignores case, so the keys of a mapping of these are lower-case."""

    name: str
    owner: str
    path: Path | None = None
    """Its place in the file, if it has one."""


def clash(path: Path, name: str, taken: Taken, hint: str) -> Violation:
    """Return the violation that a column's name is in use."""
    if name == taken.name:
        return Violation(path, "column.clash", f"{name} is a column of {taken.owner} already", hint)
    message = f"{name} and {taken.name}, a column of {taken.owner}, differ only by case; SQL treats them as one column"
    return Violation(path, "column.clash", message, hint, taken.path)


def columns_differ_by_more_than_case(data: Data) -> Iterator[Violation]:
    """Yield a violation for each column of a table whose name another one of the table has in other case, or the engine has."""
    tables: list[tuple[Path, str, Iterable[str]]] = [
        (("data", "source", "columns"), data.source.table, data.source.columns),
        (("data", "source", "derive"), data.source.table, data.source.derive),
    ]
    tables += [(("data", "features", index, "columns"), table.table, table.columns) for index, table in enumerate(data.features)]
    for path, owner, columns in tables:
        yield from _case_clashes(path, owner, columns)
        yield from (_reserved((*path, name), name) for name in columns if name.lower() in ENGINE_COLUMNS)
    sources: list[tuple[Path, PipelineSource | FeatureTable]] = [(("data", "source"), data.source)]
    sources += [(("data", "features", index), table) for index, table in enumerate(data.features)]
    for path, source in sources:
        # Partitions in Parquet are stored byte for byte, with the columns that nobody reads.
        if source.kind == "parquet" and source.partition is not None:
            yield from (_reserved((*path, "ignore"), name) for name in source.ignore if name.lower() in ENGINE_COLUMNS)


def columns_have_sources_of_their_own(data: Data) -> Iterator[Violation]:
    """Yield a violation for each column that is read from the same column of the file as another one of the table."""
    tables: list[tuple[Path, Mapping[str, Column]]] = [(("data", "source", "columns"), data.source.columns)]
    tables += [(("data", "features", index, "columns"), table.columns) for index, table in enumerate(data.features)]
    for path, columns in tables:
        known: dict[str, str] = {}
        for name, column in columns.items():
            if not column.is_in_file:
                continue
            found = column.name_at_source(name)
            first = known.setdefault(found, name)
            if first != name:
                # One of two that have the same is not called so itself.
                at, other = (name, first) if column.source_name is not None else (first, name)
                message = f"{other} and {at} are both the column {in_yaml(found)} of the file"
                hint = "keep one of the two, or correct its source_name"
                yield Violation((*path, at, "source_name"), "column.clash", message, hint, (*path, other))


def _reserved(path: Path, name: str) -> Violation:
    message = f"{name} is reserved: the engine calls the place of a row in its file so"
    return Violation(path, "column.clash", message, "give the column another name where the data is made")


def derived_features_differ_by_more_than_case(prepare: Prepare) -> Iterator[Violation]:
    """Yield a violation for each derived column of `prepare` whose name another one has in other case."""
    yield from _case_clashes(("prepare", "derive"), "prepare.derive", prepare.derive)


def _case_clashes(path: Path, owner: str, columns: Iterable[str]) -> Iterator[Violation]:
    known: dict[str, Taken] = {}
    for name in columns:
        first = known.setdefault(name.lower(), Taken(name, owner, (*path, name)))
        if first.name != name:
            yield clash((*path, name), name, first, "rename one of the two where the data is made")
