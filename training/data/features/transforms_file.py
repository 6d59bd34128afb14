"""What `transforms.json` says of the columns that a model reads, without pandas and DuckDB: `transforms` applies it."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final, NotRequired, TypedDict

from training.contracts import JsonObject
from training.errors import DataError

FORMAT_VERSION: Final = 1


class DerivedEntry(TypedDict):
    """A derived column: the fields of `training.data.join.derived.DerivedColumn`."""

    name: str
    type: str
    sql: str


class FittedFeature(TypedDict):
    """A feature with its fitted transform."""

    name: str
    transform: str
    parameters: JsonObject
    """Of the transform's class."""
    serve_as: float | str | None
    column: NotRequired[str]
    """That it is made of, where that is not its name."""


class TransformsFile(TypedDict):
    """A `transforms.json`."""

    format_version: int
    derive: list[DerivedEntry]
    derive_from: list[str]
    derive_types: NotRequired[dict[str, str]]
    """Types in `derive_from` that pandas may lose, by the YAML's names."""
    features: list[FittedFeature]


def read_transforms(data: bytes) -> TransformsFile:
    """Return the values of a `transforms.json`.

    Raises:
        DataError: `transforms.newer` or `transforms.malformed`.
    """
    try:
        values: TransformsFile = json.loads(data)
        version = values["format_version"]
        is_newer = version > FORMAT_VERSION
    except (KeyError, TypeError, ValueError) as err:
        raise malformed(err) from err
    if is_newer:
        message = f"transforms.json has format {version}, this version reads up to {FORMAT_VERSION}"
        raise DataError("transforms.newer", message, hint="upgrade Nightshift")
    return values


def column_of(entry: FittedFeature) -> str:
    """Return the raw or derived column that a feature is made of."""
    return entry.get("column", entry["name"])


def malformed(err: Exception) -> DataError:
    what = f"it has no {err}" if isinstance(err, KeyError) else f"{type(err).__name__}: {err}"
    return DataError("transforms.malformed", f"transforms.json cannot be read: {what}", hint="docs/promotion.md has one by hand")


def raw_columns(used: Collection[str], derived: Collection[str], derive_from: Collection[str]) -> tuple[str, ...]:
    """Return the raw columns behind the columns of features, sorted.

    Args:
        used: raw and derived columns of the features.
        derived: names of all derived columns.
        derive_from: raw columns that these are computed from.
    """
    found = set(used) - set(derived)
    return tuple(sorted(found | set(derive_from) if set(used) & set(derived) else found))


def serving_inputs(data: bytes) -> tuple[str, ...]:
    """Return the raw columns that scoring reads, sorted: not those that a constant stands for.

    Args:
        data: a `transforms.json` that a model was made with.

    Raises:
        DataError: `transforms.newer` or `transforms.malformed`.
    """
    values = read_transforms(data)
    try:
        used = [column_of(feature) for feature in values["features"] if feature["serve_as"] is None]
        return raw_columns(used, [column["name"] for column in values["derive"]], values["derive_from"])
    except (KeyError, TypeError) as err:
        raise malformed(err) from err
