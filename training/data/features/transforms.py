"""From a raw frame to a model's input: derived columns and one transform per feature, fitted once, the same everywhere.

The file `transforms.json` travels from `prepare` into every model: training, evaluation and serving run this code on it.
A model's input is a row-major matrix of 4-byte cells, floats first, then ids, each in the order of the spec.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from training.contracts import canonical_json
from training.data.dataset.frames import pandas_column
from training.data.dataset.shard_format import CellType
from training.data.features.datetime_parts import DatetimeFit, DatetimeId, DatetimeNumber
from training.data.features.encoders import ENCODERS, Encoder, EncoderSettings, ScaledNumber
from training.data.features.fitting import BucketFit, CategoryFit, Fit, HashFit, IdentityFit, NumberFit
from training.data.features.target_encoding import TargetEncode, TargetFit, TargetRows
from training.data.features.text_ngrams import TextFit, TextGrams
from training.data.features.transforms_file import FORMAT_VERSION, column_of, malformed, raw_columns, read_transforms
from training.data.features.vocabulary import QUERY_BYTES
from training.data.join.derived import HIDDEN, DerivedColumn, as_declared, check_derived, derive
from training.errors import DataError, shown
from training.sql.expressions import hardened

NO_TYPES: Final[Mapping[str, str]] = {}
KINDS: Final[Mapping[str, Callable[..., Encoder]]] = {
    **ENCODERS,
    "datetime": DatetimeNumber,
    "datetime_id": DatetimeId,
    "target_encode": TargetEncode,
    "text": TextGrams,
}
"""All transforms as `transforms.json` names them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FeaturePlan:
    """How one feature is to be made."""

    name: str
    """A raw or derived column."""
    settings: EncoderSettings
    serve_as: float | str | None = None
    """Value that stands for the column's own when scoring (so that a shown position does not decide a rank); None: its own."""
    target: TargetRows | None = field(default=None, compare=False)
    """For `target_encode`: the labels of the training rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutEntry:
    """One column of the model's input."""

    name: str
    dtype: CellType
    cardinality: int
    """Number of different ids, 0 included (the size of an embedding table); 0 for float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """A model's input, [n, features] in row-major 4-byte cells."""

    cells: NDArray[np.int32]
    """Float cells hold the bits of a float32."""
    layout: tuple[LayoutEntry, ...]

    @property
    def num_floats(self) -> int:
        return sum(entry.dtype == "float32" for entry in self.layout)

    @property
    def floats(self) -> NDArray[np.float32]:
        """[n, float features] float32, a view."""
        return self.cells.view(np.float32)[:, : self.num_floats]

    @property
    def ints(self) -> NDArray[np.int32]:
        """[n, id features] int32, a view."""
        return self.cells[:, self.num_floats :]

    def as_floats(self) -> NDArray[np.float32]:
        """[n, features] float32 with ids as numbers, a copy: what trees take. Ids above 2**24 would lose digits."""
        return np.concatenate([self.floats, self.ints.astype(np.float32)], axis=1)


class _Feature(NamedTuple):
    """One cell of the model's input, or those of a text."""

    name: str
    encoder: Encoder
    serve_as: float | str | None
    column: str
    """That it is made of; the name itself, unless each of several cells has a transform."""

    @property
    def cells(self) -> list[str]:
        return self.encoder.cell_names(self.name) if isinstance(self.encoder, TextGrams) else [self.name]


class FittedTransforms:
    """Derived columns and fitted transforms."""

    def __init__(
        self, *, derived: Sequence[DerivedColumn], derive_from: Collection[str], types: Mapping[str, str], features: Sequence[_Feature]
    ) -> None:
        """Take what `fit` or `from_json` made.

        Args:
            derived: columns to compute, checked.
            derive_from: raw columns that their expressions use.
            types: of `raw_types`; other columns than `derive_from` are ignored.
            features: in the order of the spec.
        """
        self.derived = tuple(derived)
        self._derive_from = frozenset(derive_from)
        self._types = {name: types[name] for name in sorted(self._derive_from & types.keys())}
        # Floats first: the float part and the id part of a gathered batch are plain slices then.
        self._features = tuple(sorted(features, key=lambda feature: feature.encoder.dtype != "float32"))
        self.layout = tuple(
            LayoutEntry(name=name, dtype=f.encoder.dtype, cardinality=f.encoder.cardinality) for f in self._features for name in f.cells
        )
        """Columns of the model's input, floats first."""
        self._database: duckdb.DuckDBPyConnection | None = None

    def inputs(self, *, serving: bool) -> tuple[str, ...]:
        """Return the raw columns that `apply` reads, sorted; when serving, not those that a constant stands for."""
        used = {feature.column for feature in self._features if not (serving and feature.serve_as is not None)}
        return raw_columns(used, [column.name for column in self.derived], self._derive_from)

    @classmethod
    def fit(cls, frame: pd.DataFrame, *, derived: Sequence[DerivedColumn], features: Sequence[FeaturePlan]) -> Self:
        """Fit on training rows.

        Args:
            frame: raw training rows alone; nothing of other splits may be in it.
            derived: columns to compute first, each from raw ones and those before it.
            features: what goes to the model, not empty.

        Raises:
            DataError: `derive.*`, an expression is refused; `schema.missing`, a feature's column is not there;
                or what the fits raise.
        """
        plan = cls.planned(list(frame.columns), derived=derived, features=features)
        return plan.fitted(features, [plan._columns(frame, serving=False)])

    @classmethod
    def planned(
        cls,
        raw_names: Sequence[str],
        *,
        derived: Sequence[DerivedColumn],
        features: Sequence[FeaturePlan],
        types: Mapping[str, str] = NO_TYPES,
    ) -> Self:
        """Return what `derive` and `fitted` begin with: the features' columns as they are, nothing fitted.

        Args:
            raw_names: the raw columns that there are.
            derived, features: as `fit`.
            types: that expressions see the raw columns with (`raw_types`); of others, as pandas has them.

        Raises:
            DataError: `derive.*`, `schema.missing`.
        """
        derive_from = check_derived(derived, raw_names)
        known = {*raw_names, *(column.name for column in derived)}
        missing = [plan.name for plan in features if plan.name not in known]
        if missing:
            raise DataError("schema.missing", f"no column {', '.join(shown(name) for name in missing)} for the feature of that name")
        plain = [_Feature(plan.name, ScaledNumber(mean=0.0, fill="keep"), None, plan.name) for plan in features]
        return cls(derived=derived, derive_from=derive_from, types=types, features=plain)

    def fitted(
        self,
        features: Sequence[FeaturePlan],
        batches: Iterable[Mapping[str, pd.Series[Any]]],
        folder: Path | None = None,
        memory_bytes: int = QUERY_BYTES,
    ) -> Self:
        """Return the transforms fitted on training rows.

        Args:
            features: those of `planned`.
            batches: of training rows, the raw or derived column of each feature; together all of them, at least one batch.
            folder: on local disk, for values that a fit has too many of; None: they stay in memory.
            memory_bytes: of a query over those values.

        Raises:
            DataError: what the fits raise.
        """
        fits = [_fit_of(plan, folder, memory_bytes) for plan in features]
        for columns in batches:
            for plan, fit in zip(features, fits, strict=True):
                fit.add(columns[plan.name])
        found = [
            _Feature(name, encoder, plan.serve_as, plan.name)
            for plan, fit in zip(features, fits, strict=True)
            for name, encoder in fit.cells()
        ]
        return type(self)(derived=self.derived, derive_from=self._derive_from, types=self._types, features=found)

    @property
    def derived_features(self) -> tuple[str, ...]:
        """The derived columns that are features, sorted."""
        return tuple(sorted({feature.column for feature in self._features} & {column.name for column in self.derived}))

    def derive(self, frame: pd.DataFrame) -> pa.Table:
        """Return all derived columns of raw rows.

        Raises:
            DataError: `schema.missing`, `schema.type`, `derive.failed`.
        """
        if self._database is None:
            self._database = hardened()
        self._check_present(frame, sorted(self._derive_from))
        raw = pa.table({name: as_declared(_arrow(frame[name]), self._types.get(name), name) for name in sorted(self._derive_from)})
        return derive(self._database, raw, self.derived)

    def apply(self, frame: pd.DataFrame, *, serving: bool, fold_numbers: NDArray[np.int32] | None = None) -> Matrix:
        """Return the model's input for `frame`, row for row.

        Args:
            frame: raw rows as the frame of a dataset has them, the columns `inputs` in any order among any others; a timestamp
                without zone counts as UTC.
            serving: True when scoring (evaluation and serving): a feature with `serve_as` has that value in every row.
            fold_numbers: [n], of `target_encoding.fold_numbers`: training rows do not see their own label; None: no row is one.

        Raises:
            DataError: `schema.missing` or `schema.type`.
        """
        columns = self._columns(frame, serving=serving)
        cells = np.empty((len(frame), len(self.layout)), dtype=np.int32)
        position = 0
        for feature in self._features:
            _, encoder, serve_as, column = feature
            if isinstance(encoder, TextGrams):
                width = encoder.width
                cells[:, position : position + width] = encoder.encode(columns[column], column).view(np.int32)
                position += width
                continue
            if serving and serve_as is not None:
                cells[:, position] = encoder.encode(pd.Series([serve_as]), column).view(np.int32)[0]
            elif fold_numbers is not None and isinstance(encoder, TargetEncode):
                cells[:, position] = encoder.encode_training(columns[column], column, fold_numbers).view(np.int32)
            else:
                cells[:, position] = encoder.encode(columns[column], column).view(np.int32)
            position += 1
        return Matrix(cells=cells, layout=self.layout)

    def to_json(self) -> bytes:
        """Return canonical JSON: equal transforms, equal bytes."""
        features = [
            {
                "name": f.name,
                "transform": f.encoder.kind,
                "parameters": f.encoder.parameters(),
                "serve_as": f.serve_as,
                **({} if f.column == f.name else {"column": f.column}),
            }
            for f in self._features
        ]
        derived = [dataclasses.asdict(column) for column in self.derived]
        types = {"derive_types": self._types} if self._types else {}
        return canonical_json(
            {"format_version": FORMAT_VERSION, "derive": derived, "derive_from": sorted(self._derive_from), **types, "features": features}
        )

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read what `to_json` wrote; expressions are checked again, since files travel.

        Raises:
            DataError: `transforms.newer`, `transforms.malformed` or `derive.*`.
        """
        values = read_transforms(data)
        try:
            derived = [DerivedColumn(**column) for column in values["derive"]]
            features = [
                _Feature(e["name"], KINDS[e["transform"]](**e["parameters"]), e["serve_as"], column_of(e)) for e in values["features"]
            ]
            derive_from = check_derived(derived, values["derive_from"])
            types = {name: type_ for name, type_ in values.get("derive_types", {}).items() if type_ in HIDDEN}
        except (KeyError, TypeError, ValueError) as err:
            raise malformed(err) from err
        return cls(derived=derived, derive_from=derive_from, types=types, features=features)

    def _columns(self, frame: pd.DataFrame, *, serving: bool) -> dict[str, pd.Series[Any]]:
        """Return the raw and derived columns that the features need."""
        inputs = self.inputs(serving=serving)
        self._check_present(frame, inputs)
        columns = {name: frame[name] for name in inputs}
        if not self.derived or not self._derive_from <= columns.keys():
            return columns
        made = self.derive(frame)
        return columns | {name: pandas_column(name, made[name]) for name in made.column_names}

    @staticmethod
    def _check_present(frame: pd.DataFrame, names: Collection[str]) -> None:
        missing = [name for name in names if name not in frame.columns]
        if missing:
            raise DataError("schema.missing", f"the frame lacks {', '.join(shown(name) for name in missing)}", hint="features need it")


def _fit_of(plan: FeaturePlan, folder: Path | None, memory_bytes: int) -> Fit:
    """Return what fits a feature.

    Raises:
        DataError: `transform.unknown`.
    """
    settings, name = plan.settings, plan.name
    fits: Mapping[str, Callable[[], Fit]] = {
        **dict.fromkeys(("number", "standard", "log"), lambda: NumberFit(settings, name)),
        "category": lambda: CategoryFit(settings, name, folder, memory_bytes),
        "hash": lambda: HashFit(settings, name),
        "bucket": lambda: BucketFit(settings, name, folder),
        "identity": lambda: IdentityFit(name),
        "datetime": lambda: DatetimeFit(settings, name),
        "text": lambda: TextFit(settings, name),
    }
    if plan.target is not None:
        return TargetFit(settings, plan.target, name)
    if settings.kind not in fits:
        message = f"feature {shown(name)}: no transform {shown(settings.kind)}"
        raise DataError("transform.unknown", message, hint=f"one of {', '.join([*fits, 'target_encode'])}")
    return fits[settings.kind]()


def _arrow(column: pd.Series[Any]) -> pa.Array:
    """Return a column for DuckDB; instants in UTC, since an expression reads a timestamp without zone as something else."""
    if not pd.api.types.is_datetime64_any_dtype(column.dtype):
        return pa.Array.from_pandas(column)
    naive = column if column.dt.tz is None else column.dt.tz_convert("UTC").dt.tz_localize(None)
    return pa.array(naive.to_numpy(), from_pandas=True).cast(pa.timestamp("us"), safe=False).cast(pa.timestamp("us", tz="UTC"))
