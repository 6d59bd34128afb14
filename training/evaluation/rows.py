"""What all measures of an evaluation know of the rows: compact arrays, whatever columns the rows have.

A row takes 8 bytes for its label, 8 for its group, 16 for its time and entity, and 2 for each column of slices and sensitive columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from training.evaluation.bootstrap.blocks import Origins
from training.evaluation.raw_rows import RawRows
from training.evaluation.slices import Values, values_of
from training.spec import PipelineSpec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class LabelledRows:
    """Rows with labels."""

    labels: Floats
    """[n]"""
    groups: Ints | None
    """[n] dense numbers."""
    origins: Origins | None = None
    values: Mapping[str, Values] = field(default_factory=dict)
    """Of the columns that rows are sliced by, and of the sensitive ones."""

    @classmethod
    def of(cls, spec: PipelineSpec, raw: RawRows, labels: Floats, group: str | None) -> Self:
        """Return rows that know when they happened, and whose they are: `evaluate.entities`, else the source's key without its event time.

        Args:
            raw: [n] rows; single columns of them are read.
            labels: [n].
            group: column whose values are the units, or None: the rows are.
        """
        event_time, rules = spec.data.source.event_time, spec.evaluate
        entities = rules.entities or tuple(name for name in spec.data.source.key if name != event_time)
        return cls(
            labels=labels,
            groups=None if group is None else dense_numbers(raw[group]),
            origins=_origins(raw, event_time, entities, are_named=bool(rules.entities)),
            values={name: values_of(raw[name]) for name in dict.fromkeys((*rules.slices, *rules.sensitive))},
        )

    @property
    def num_rows(self) -> int:
        return len(self.labels)

    @property
    def num_units(self) -> int:
        """Groups, or else rows."""
        return self.num_rows if self.groups is None else int(self.groups.max(initial=-1)) + 1


def dense_numbers(column: pd.Series[Any]) -> Ints:
    """Return [n] the place of each value among the sorted values."""
    return np.unique(column.to_numpy(), return_inverse=True)[1].astype(np.int64)


def _origins(raw: RawRows, event_time: str, entities: Sequence[str], *, are_named: bool) -> Origins:
    codes = {}
    if entities and set(entities) <= set(raw.names):
        hashes = np.concatenate([np.empty(0, dtype=np.uint64), *raw.hashes(entities)])
        codes[", ".join(entities)] = pd.factorize(hashes)[0].astype(np.int64)
    microseconds = raw[event_time].to_numpy(dtype="datetime64[us]").astype(np.int64)
    return Origins(microseconds=microseconds, entities=codes, are_named=are_named)
